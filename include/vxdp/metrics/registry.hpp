// SPDX-License-Identifier: Apache-2.0
// The list of things to scrape. The control thread adds and removes; the scrape thread takes snapshots.
// Workers never come here: they hold a reference to their own counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vxdp/metrics/counters.hpp"

namespace vxdp {

/// Counts of one XDP program on one port since it was first attached there.
struct ProgramStats {
  std::string program;  // name as shown to users: "drop", or the file's stem
  std::string tag;      // kernel's program tag, hex
  bool attached = false;
  bool native = false;
  std::vector<std::uint64_t> action_frames;  // index = XDP action; empty when the program has no vxdp_stats map
  std::vector<std::uint64_t> action_bytes;
  std::vector<std::uint64_t> drop_frames;  // index = vxdp_drop_reason
};

/// Gives the scrape thread a port's program counts. Implemented by xdp/.
class ProgramStatsSource {
 public:
  virtual ~ProgramStatsSource() = default;
  /// Any thread.
  [[nodiscard]] virtual std::vector<ProgramStats> program_stats() const = 0;
};

/// One queue pair of a port.
struct QueuePairMetrics {
  QueueCounters from_guest;
  QueueCounters to_guest;
  std::atomic<double> from_guest_fps{0};  // frames per second over the last second; control thread writes
  std::atomic<double> to_guest_fps{0};
};

struct PortMetrics {
  PortMetrics(std::string name, std::size_t queue_pairs) : port(std::move(name)), queues(queue_pairs) {}
  const std::string port;
  std::vector<QueuePairMetrics> queues;
  SessionCounters session;
  std::shared_ptr<const ProgramStatsSource> programs;  // set before the port is registered
  std::atomic<const char*> submit{"none"};             // "uring-fixed", "uring", "writev"; static strings
};

class MetricsRegistry {
 public:
  void add_port(std::shared_ptr<PortMetrics> port);
  void remove_port(const std::string& name);
  void add_worker(std::shared_ptr<WorkerCounters> worker);
  [[nodiscard]] std::vector<std::shared_ptr<PortMetrics>> ports() const;
  [[nodiscard]] std::vector<std::shared_ptr<WorkerCounters>> workers() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<PortMetrics>> ports_;
  std::vector<std::shared_ptr<WorkerCounters>> workers_;
};

}  // namespace vxdp
