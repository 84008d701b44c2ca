// SPDX-License-Identifier: Apache-2.0
// /metrics, /healthz and /readyz on TCP. The scrape threads only read counters.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "vxdp/base/event_loop.hpp"
#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/metrics/registry.hpp"

namespace vxdp {

class MetricsServer {
 public:
  /// Why the daemon is not ready, as a sentence; empty when it is. Called on scrape threads.
  using NotReady = std::function<std::string()>;

  /// Serves on `listener`. `loop` and `registry` must outlive the server.
  static Result<std::unique_ptr<MetricsServer>> start(Fd listener, EventLoop& loop, const MetricsRegistry& registry,
                                                      NotReady not_ready);
  virtual ~MetricsServer() = default;
};

}  // namespace vxdp
