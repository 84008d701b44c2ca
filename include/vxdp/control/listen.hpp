// SPDX-License-Identifier: Apache-2.0
// Listening sockets of the daemon, with errors a user can act on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"

namespace vxdp {

/// Whether `path` fits in a socket address: 1 .. 107 bytes.
bool is_socket_path(std::string_view path) noexcept;

/// Host and port of "127.0.0.1:9477", "[::1]:9477" or "node:9477"; the port is 1 .. 65535.
std::optional<std::pair<std::string, std::string>> split_address(std::string_view address);

/// Listens on TCP `address`. Errors: not resolvable, in use, not allowed.
Result<Fd> listen_tcp(const std::string& address);

/// A unix socket's listener; the path goes when it is destroyed, unless another process has replaced it.
class UnixListener {
 public:
  /// Listens on `path` with mode 0660 and makes its directory (0755) if there is none. A socket that nobody
  /// listens on is replaced. Errors: path too long, another process listens there, `path` is not a socket.
  static Result<UnixListener> create(const std::string& path);

  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&&) = delete;
  ~UnixListener();

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  UnixListener() = default;
  Fd fd_;
  std::string path_;
  unsigned long device_ = 0;
  unsigned long inode_ = 0;
};

}  // namespace vxdp
