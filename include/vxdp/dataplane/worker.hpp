// SPDX-License-Identifier: Apache-2.0
// A pinned thread that owns queue pairs: polls while there is work and a little after, then sleeps in one
// wait over kicks, backends and its mailbox.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/dataplane/mailbox.hpp"
#include "vxdp/dataplane/queue_pair.hpp"
#include "vxdp/metrics/counters.hpp"

namespace vxdp {

/// Public methods are for the control thread; each returns when the worker has applied it.
class Worker {
 public:
  /// `cpu`: the one CPU to run on; empty: not pinned. Errors: no such CPU, no thread.
  static Result<std::unique_ptr<Worker>> create(unsigned index, std::optional<unsigned> cpu,
                                                std::shared_ptr<WorkerCounters> counters);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Takes `pair` until detach(). Errors: the backend's descriptor cannot be waited for.
  Result<> attach(QueuePair& pair);
  /// Lets `pair` go; its rings must be stopped.
  void detach(QueuePair& pair);

  /// Exchanges the backend of an attached pair, rings running or not; returns the one before.
  Result<std::unique_ptr<Backend>> replace_backend(QueuePair& pair, std::unique_ptr<Backend> backend);
  /// Returns after the round that runs now: what the worker reads per batch has been read anew.
  void synchronize() {
    mailbox_.execute([] {});
  }

  /// Starts a direction of an attached pair. Errors: the kick descriptor cannot be waited for.
  Result<> start_from_guest(QueuePair& pair, SplitQueue queue);
  Result<> start_to_guest(QueuePair& pair, SplitQueue queue, std::uint32_t frame_bytes);
  /// Stops it and returns the next available index; nothing of the guest is touched afterwards.
  std::uint16_t stop_from_guest(QueuePair& pair);
  std::uint16_t stop_to_guest(QueuePair& pair);

  [[nodiscard]] unsigned index() const noexcept { return index_; }
  [[nodiscard]] std::size_t pairs() const noexcept { return pair_count_; }

 private:
  /// What a descriptor in the epoll set stands for.
  enum class Source : std::uint8_t { kMailbox, kKickFromGuest, kKickToGuest, kBackend };

  Worker(unsigned index, std::shared_ptr<WorkerCounters> counters, Fd epoll, Fd wake);
  template <typename Start>
  Result<> start(QueuePair& pair, Source kick, SplitQueue& queue, const Start& start);
  template <typename Direction>
  std::uint16_t stop(Direction& direction);
  void run();
  [[nodiscard]] bool round() noexcept;
  void look(int timeout_ms) noexcept;
  void sleep() noexcept;
  void update_busy_poll() noexcept;
  Result<> watch(int fd, std::uint32_t events, QueuePair* pair, Source source);
  void unwatch(int fd) noexcept;

  const unsigned index_;
  const std::shared_ptr<WorkerCounters> counters_;
  Fd epoll_;
  Mailbox mailbox_;
  std::size_t pair_count_ = 0;  // control thread

  // The worker's own.
  std::vector<QueuePair*> pairs_;
  std::uint64_t busy_poll_ns_ = 0;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace vxdp
