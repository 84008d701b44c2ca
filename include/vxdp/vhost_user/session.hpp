// SPDX-License-Identifier: Apache-2.0
// One vhost-user connection: reads messages, checks them, keeps each vring's state and starts and stops
// vrings on the device behind it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "vxdp/base/event_loop.hpp"
#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/metrics/counters.hpp"
#include "vxdp/vhost_user/device_listener.hpp"

namespace vxdp {

/// Lives on the control thread. Destroying it stops every running vring and closes the connection.
class Session {
 public:
  using Closed = std::function<void(const std::string& reason)>;

  /// Serves the connected, non-blocking `socket`. `device`, `loop` and `counters` must outlive the session.
  /// When the connection ends, for whatever reason, all vrings are stopped and `closed` is called once, as
  /// the last thing, from a fresh turn of the loop (so it may destroy the session).
  static Result<std::unique_ptr<Session>> create(std::string port, Fd socket, EventLoop& loop, DeviceListener& device,
                                                 SessionCounters& counters, Closed closed);
  ~Session();

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vxdp
