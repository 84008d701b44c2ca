// SPDX-License-Identifier: Apache-2.0
// The other end of a vhost-user socket: sends any message, right or wrong, and reads replies.
#pragma once

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/vhost_user/message.hpp"

namespace vxdp::testing {

using Bytes = std::vector<std::byte>;

/// The objects one after the other, as they lie on the wire.
template <typename... T>
Bytes bytes_of(const T&... parts) {
  Bytes all;
  const auto append = [&all](const auto& part) {
    const auto* begin = reinterpret_cast<const std::byte*>(&part);
    all.insert(all.end(), begin, begin + sizeof part);
  };
  (append(parts), ...);
  return all;
}

inline Bytes message_bytes(std::uint32_t request, const Bytes& payload, std::uint32_t flags = kVhostUserVersion) {
  Bytes all = bytes_of(VhostUserHeader{request, flags, static_cast<std::uint32_t>(payload.size())});
  all.insert(all.end(), payload.begin(), payload.end());
  return all;
}

inline Fd make_eventfd() {
  return Fd(::eventfd(0, EFD_CLOEXEC));
}

inline Fd make_memfd(std::size_t bytes) {
  Fd fd(::memfd_create("guest", MFD_CLOEXEC));
  return ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 ? std::move(fd) : Fd();
}

class FrontEnd {
 public:
  struct Reply {
    VhostUserHeader header;
    Bytes payload;
    template <typename T>
    [[nodiscard]] T as() const {
      T value{};
      if (payload.size() == sizeof value) {
        std::memcpy(&value, payload.data(), sizeof value);
      }
      return value;
    }
  };

  explicit FrontEnd(Fd socket) : socket_(std::move(socket)) {
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }

  /// One sendmsg() with `fds` (at most 16) beside its first byte; false if it did not go out whole, at once.
  bool send_raw(std::span<const std::byte> bytes, std::span<const int> fds = {}) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(16 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
  }

  bool send(VhostUserRequest request, const Bytes& payload = {}, const std::vector<int>& fds = {},
            std::uint32_t flags = kVhostUserVersion) {
    return send_raw(message_bytes(static_cast<std::uint32_t>(request), payload, flags), fds);
  }

  /// The next reply; nothing when the back end has closed, or after five seconds.
  std::optional<Reply> receive() {
    Reply reply{};
    if (!read_exactly(&reply.header, sizeof reply.header)) {
      return std::nullopt;
    }
    reply.payload.resize(reply.header.payload_bytes);
    if (!reply.payload.empty() && !read_exactly(reply.payload.data(), reply.payload.size())) {
      return std::nullopt;
    }
    return reply;
  }

  /// The u64 of the reply to `request`.
  std::optional<std::uint64_t> ask(VhostUserRequest request, const Bytes& payload = {},
                                   const std::vector<int>& fds = {}) {
    if (!send(request, payload, fds, kVhostUserVersion | kVhostUserNeedReply)) {
      return std::nullopt;
    }
    const auto reply = receive();
    const bool right = reply && reply->header.request == static_cast<std::uint32_t>(request) &&
                       reply->header.flags == (kVhostUserVersion | kVhostUserReply) && reply->payload.size() == 8;
    return right ? std::optional(reply->as<std::uint64_t>()) : std::nullopt;
  }

  /// True once the back end has closed its end and nothing is left to read.
  bool closed_by_peer() {
    std::byte byte{};
    const ssize_t got = ::recv(socket_.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  void close() { socket_.reset(); }
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  bool read_exactly(void* to, std::size_t bytes) {
    return ::recv(socket_.get(), to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  Fd socket_;
};

}  // namespace vxdp::testing
