// SPDX-License-Identifier: Apache-2.0
#include "vxdp/control/listen.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "vxdp/control/port_fields.hpp"

namespace vxdp {
namespace {

constexpr int kBacklog = 64;          // connections
constexpr mode_t kSocketMask = 0117;  // leaves 0660

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

Fd unix_socket() {
  return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Result<> make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::create_directories(directory, error)) {
    ::chmod(directory.c_str(), 0755);
  }
  if (error) {
    return errno_error("create directory", directory.native(), error.value());
  }
  return Ok{};
}

/// A descriptor that holds the lock of `directory`. Waits a second at most: in a shared directory anyone may hold it.
Result<Fd> lock_directory(const std::string& directory) {
  Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int tries_left = 100; fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0; --tries_left) {
    if (errno != EWOULDBLOCK || tries_left == 0) {
      return errno_error("lock directory", directory);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fd ? Result<Fd>(std::move(fd)) : errno_error("open directory", directory);
}

/// Removes `path` if it is a socket nobody listens on.
Result<> remove_stale(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? Result<>(Ok{}) : errno_error("look at", path);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return invalid(fmt::format("control path {} exists and is not a socket", path));
  }
  const Fd probe = unix_socket();
  const sockaddr_un address = unix_address(path);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN) {
    return Error{std::make_error_code(std::errc::address_in_use),
                 fmt::format("another daemon answers on control socket {}", path)};
  }
  if (errno != ECONNREFUSED) {
    return errno_error("connect to", path);
  }
  if (::unlink(path.c_str()) != 0) {
    return errno_error("remove stale socket", path);
  }
  return Ok{};
}

}  // namespace

bool is_socket_path(std::string_view path) noexcept {
  return !path.empty() && path.size() < sizeof(sockaddr_un::sun_path) && path.find('\0') == std::string_view::npos;
}

std::optional<std::pair<std::string, std::string>> split_address(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || !parse_number(address.substr(colon + 1), 1, 65'535)) {
    return std::nullopt;
  }
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return std::nullopt;  // an IPv6 address needs its brackets
  }
  if (host.empty()) {
    return std::nullopt;
  }
  return std::pair(std::string(host), std::string(address.substr(colon + 1)));
}

Result<Fd> listen_tcp(const std::string& address) {
  const auto parts = split_address(address);
  if (!parts) {
    return invalid(fmt::format("metrics address {} is not of the form 127.0.0.1:9477", address));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int failed = ::getaddrinfo(parts->first.c_str(), parts->second.c_str(), &hints, &found); failed != 0) {
    return invalid(fmt::format("cannot listen on {}: {}", address, ::gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    return errno_error("listen on", address);
  }
  // Not SO_REUSEPORT: a second daemon on the same address must be refused.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return errno_error("listen on", address);
  }
  return fd;
}

Result<UnixListener> UnixListener::create(const std::string& path) {
  if (!is_socket_path(path)) {
    return invalid(fmt::format("control path {} has {} bytes; 1 to 107 are possible", path, path.size()));
  }
  const auto parent = std::filesystem::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.native();
  if (const auto made = make_directory(directory); !made) {
    return made.error();
  }
  // Two daemons that start at once must not each find the other's socket stale.
  const auto lock = lock_directory(directory);
  if (!lock) {
    return lock.error();
  }
  if (const auto free = remove_stale(path); !free) {
    return free.error();
  }
  UnixListener listener;
  listener.fd_ = unix_socket();
  const sockaddr_un address = unix_address(path);
  const mode_t old_mask = ::umask(kSocketMask);
  const int bound = ::bind(listener.fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int bind_errno = errno;
  ::umask(old_mask);
  if (bound != 0) {
    return errno_error("listen on control socket", path, bind_errno);
  }
  struct stat status {};
  if (::listen(listener.fd_.get(), kBacklog) != 0 || ::lstat(path.c_str(), &status) != 0) {
    return errno_error("listen on control socket", path);
  }
  listener.path_ = path;
  listener.device_ = status.st_dev;
  listener.inode_ = status.st_ino;
  return listener;
}

UnixListener::~UnixListener() {
  struct stat status {};
  if (fd_ && ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

}  // namespace vxdp
