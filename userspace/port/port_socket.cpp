// SPDX-License-Identifier: Apache-2.0
#include "port/port_socket.hpp"

#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>

#include "vxdp/base/log.hpp"

namespace vxdp {
namespace {

constexpr std::chrono::milliseconds kRetry{100};

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

Fd stream_socket() {
  return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool connect_to(const Fd& socket, const std::string& path) {
  const sockaddr_un address = address_of(path);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

PortSocket::PortSocket(EventLoop& loop, std::string path, SocketMode mode, Connected connected)
    : loop_(loop), path_(std::move(path)), mode_(mode), connected_(std::move(connected)) {}

Result<std::unique_ptr<PortSocket>> PortSocket::create(EventLoop& loop, std::string path, SocketMode mode,
                                                       Connected connected) {
  std::unique_ptr<PortSocket> socket(new PortSocket(loop, std::move(path), mode, std::move(connected)));
  if (mode == SocketMode::kClient) {
    socket->retry_ = loop.after(std::chrono::milliseconds(0), [raw = socket.get()] { raw->try_connect(); });
    return socket;
  }
  if (auto listening = socket->listen(); !listening) {
    return listening.error();
  }
  return socket;
}

PortSocket::~PortSocket() {
  loop_.cancel(retry_);
  if (listener_) {
    loop_.remove(listener_.get());
    ::unlink(path_.c_str());
  }
}

Result<> PortSocket::listen() {
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::error_code error;
  if (!folder.empty() && !std::filesystem::exists(folder, error)) {
    std::filesystem::create_directory(folder, error);  // one level: a mistyped path is not built up
    if (error) {
      return errno_error("create", "folder " + folder.string(), error.value());
    }
  }
  // A file left by a daemon that died is in the way; a living one answers, and anything else is not ours.
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      return invalid(fmt::format("socket path {} exists and is not a socket", path_));
    }
    const Fd probe = stream_socket();
    if (connect_to(probe, path_) || errno != ECONNREFUSED) {
      return Error{std::make_error_code(std::errc::address_in_use),
                   fmt::format("socket path {} is in use by another process", path_)};
    }
    ::unlink(path_.c_str());
  }
  Fd socket = stream_socket();
  const sockaddr_un address = address_of(path_);
  if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return errno_error("listen on", path_);
  }
  constexpr int kBacklog = 4;
  if (::listen(socket.get(), kBacklog) != 0) {
    return errno_error("listen on", path_);
  }
  listener_ = std::move(socket);
  return loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t /*events*/) { accept_one(); });
}

void PortSocket::accept_one() {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    return;
  }
  if (busy_) {
    log_warn("{}: a second front-end was refused; the first one is served", path_);
    return;
  }
  busy_ = true;
  connected_(std::move(socket));
}

void PortSocket::try_connect() {
  retry_ = 0;
  Fd socket = stream_socket();
  if (socket && connect_to(socket, path_)) {
    busy_ = true;
    connected_(std::move(socket));
    return;
  }
  retry_ = loop_.after(kRetry, [this] { try_connect(); });
}

void PortSocket::release() {
  busy_ = false;
  if (mode_ == SocketMode::kClient && retry_ == 0) {
    retry_ = loop_.after(kRetry, [this] { try_connect(); });
  }
}

}  // namespace vxdp
