// SPDX-License-Identifier: Apache-2.0
// How a port gets its front-end: a listening socket that takes one at a time, or a client that keeps trying.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "vxdp/base/event_loop.hpp"
#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/port/port_config.hpp"

namespace vxdp {

/// Control thread. The socket file of server mode is removed with the object.
class PortSocket {
 public:
  using Connected = std::function<void(Fd socket)>;

  /// `connected` gets each front-end's non-blocking socket; the next one is taken after release().
  /// Errors: path taken by a living process, no permission, no such folder that could be made.
  static Result<std::unique_ptr<PortSocket>> create(EventLoop& loop, std::string path, SocketMode mode,
                                                    Connected connected);
  ~PortSocket();
  PortSocket(const PortSocket&) = delete;
  PortSocket& operator=(const PortSocket&) = delete;

  /// The front-end is gone: take or look for the next.
  void release();

 private:
  PortSocket(EventLoop& loop, std::string path, SocketMode mode, Connected connected);
  Result<> listen();
  void accept_one();
  void try_connect();

  EventLoop& loop_;
  const std::string path_;
  const SocketMode mode_;
  Connected connected_;
  Fd listener_;
  bool busy_ = false;
  EventLoop::TimerId retry_ = 0;
};

}  // namespace vxdp
