// SPDX-License-Identifier: Apache-2.0
// All ports and workers of the daemon.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vxdp/base/event_loop.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/metrics/registry.hpp"
#include "vxdp/port/port_config.hpp"

namespace vxdp {

struct WorkerPlan {
  unsigned workers = 1;        // threads, 1 .. 64
  std::vector<unsigned> cpus;  // CPU of worker i is cpus[i % size]; empty: not pinned
};

/// Lives on the control thread; every method is for that thread (other threads use EventLoop::call).
class PortManager {
 public:
  static Result<std::unique_ptr<PortManager>> create(EventLoop& loop, MetricsRegistry& registry,
                                                     const WorkerPlan& plan);
  virtual ~PortManager() = default;

  /// Errors: name taken (code file_exists), bad field, missing privilege, TAP refused, socket path taken.
  virtual Result<> add(PortConfig config) = 0;
  /// Error: no such port (code no_such_file_or_directory).
  virtual Result<> remove(const std::string& name) = 0;
  [[nodiscard]] virtual std::vector<PortStatus> list() const = 0;
  [[nodiscard]] virtual Result<PortStatus> show(const std::string& name) const = 0;
  /// Replaces (or first attaches) the port's XDP program while traffic flows.
  virtual Result<ProgramInfo> swap_program(const std::string& name, const std::string& program,
                                           const std::string& redirect_to) = 0;
};

/// Checks every field that can be checked without touching the system; the error is one sentence.
Result<> check(const PortConfig& config);

}  // namespace vxdp
