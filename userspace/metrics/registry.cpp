// SPDX-License-Identifier: Apache-2.0
#include "vxdp/metrics/registry.hpp"

namespace vxdp {

void MetricsRegistry::add_port(std::shared_ptr<PortMetrics> port) {
  const std::lock_guard lock(mutex_);
  ports_.push_back(std::move(port));
}

void MetricsRegistry::remove_port(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::erase_if(ports_, [&name](const auto& port) { return port->port == name; });
}

void MetricsRegistry::add_worker(std::shared_ptr<WorkerCounters> worker) {
  const std::lock_guard lock(mutex_);
  workers_.push_back(std::move(worker));
}

std::vector<std::shared_ptr<PortMetrics>> MetricsRegistry::ports() const {
  const std::lock_guard lock(mutex_);
  return ports_;
}

std::vector<std::shared_ptr<WorkerCounters>> MetricsRegistry::workers() const {
  const std::lock_guard lock(mutex_);
  return workers_;
}

}  // namespace vxdp
