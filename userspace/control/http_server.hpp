// SPDX-License-Identifier: Apache-2.0
// HTTP on a listening socket of ours: cpp-httplib parses and routes, we own the threads and the time a client gets.
#pragma once

#include <httplib.h>

#include <cstddef>
#include <thread>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"

namespace vxdp {

/// A few threads that accept and serve one request a connection. httplib's own accept loop is not used: it
/// ends for good when accept() fails once, its queue of connections has no bound, and a client that
/// sends a byte now and then keeps a thread as long as it likes.
class HttpServer : private httplib::Server {
 public:
  /// `listener` is borrowed, non-blocking, and must outlive the server; a request may have `max_request_bytes` in all.
  HttpServer(int listener, std::size_t max_request_bytes);
  ~HttpServer() override { stop(); }

  using Server::Delete;
  using Server::Get;
  using Server::Post;

  /// Starts to serve. Call after all routes are set.
  Result<> start();
  /// Ends all connections and returns when no handler runs any more.
  void stop();

 private:
  void serve();
  void serve_connection(Fd connection);

  const int listener_;
  const std::size_t max_request_bytes_;
  Fd stop_;  // readable once stop() was called
  std::vector<std::thread> threads_;
};

}  // namespace vxdp
