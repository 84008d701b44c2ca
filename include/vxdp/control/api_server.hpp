// SPDX-License-Identifier: Apache-2.0
// The control API: HTTP and JSON on a unix socket. Routes and shapes are in userspace/control/README.md.
#pragma once

#include <memory>

#include "vxdp/base/event_loop.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/port/port_manager.hpp"

namespace vxdp {

/// Serves on threads of its own; whatever touches `ports` runs on `loop`'s thread.
class ApiServer {
 public:
  /// Serves on `listener` (borrowed; listening, non-blocking), which, as `loop` and `ports`, must outlive the server.
  static Result<std::unique_ptr<ApiServer>> start(int listener, EventLoop& loop, PortManager& ports);
  virtual ~ApiServer() = default;  ///< Not on the loop's thread while the loop runs: handlers wait for it.
};

}  // namespace vxdp
