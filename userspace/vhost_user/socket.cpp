// SPDX-License-Identifier: Apache-2.0
#include "vxdp/vhost_user/socket.hpp"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <utility>

namespace vxdp {

Result<std::optional<VhostUserMessage>> VhostUserSocket::receive() {
  while (received_bytes_ < sizeof(VhostUserHeader) + partial_.payload.size()) {
    const auto got = receive_part();
    if (!got) {
      partial_ = {};
      return got.error();
    }
    if (*got == 0) {
      return std::optional<VhostUserMessage>();
    }
    received_bytes_ += *got;
    if (received_bytes_ == sizeof(VhostUserHeader)) {
      if (auto good = check_header(); !good) {
        partial_ = {};
        return good.error();
      }
      partial_.payload.resize(partial_.header.payload_bytes);
    }
  }
  received_bytes_ = 0;
  return std::optional<VhostUserMessage>(std::exchange(partial_, {}));
}

// Reads at most up to the end of the header or of the payload. Descriptors belong to the byte they were sent
// with, so a read that never goes past this message never takes a descriptor of the next one.
Result<std::size_t> VhostUserSocket::receive_part() {
  iovec part{};
  if (received_bytes_ < sizeof(VhostUserHeader)) {
    part.iov_base = reinterpret_cast<std::byte*>(&partial_.header) + received_bytes_;
    part.iov_len = sizeof(VhostUserHeader) - received_bytes_;
  } else {
    const std::size_t offset = received_bytes_ - sizeof(VhostUserHeader);
    part.iov_base = partial_.payload.data() + offset;
    part.iov_len = partial_.payload.size() - offset;
  }
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kVhostUserMaxFds * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN) {
      return std::size_t{0};
    }
    return errno_error("read", "vhost-user socket");
  }
  if (auto taken = take_fds(message); !taken) {
    return taken.error();
  }
  if (got == 0) {
    if (received_bytes_ != 0) {
      return invalid("the front-end closed the connection inside a message");
    }
    return Error{std::make_error_code(std::errc::connection_reset), "the front-end closed the connection"};
  }
  return static_cast<std::size_t>(got);
}

Result<> VhostUserSocket::take_fds(const msghdr& from) {
  for (const cmsghdr* control = CMSG_FIRSTHDR(&from); control != nullptr;
       control = CMSG_NXTHDR(const_cast<msghdr*>(&from), const_cast<cmsghdr*>(control))) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= control->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const std::byte*>(control) + at, sizeof fd);
      partial_.fds.emplace_back(fd);
    }
  }
  // The kernel truncates when there are more than fit here, or when this process may open no more.
  if ((from.msg_flags & MSG_CTRUNC) != 0 || partial_.fds.size() > kVhostUserMaxFds) {
    return invalid(
        fmt::format("a message carries more descriptors than {} or than this process can open", kVhostUserMaxFds));
  }
  return Ok{};
}

Result<> VhostUserSocket::check_header() const {
  const auto& header = partial_.header;
  if ((header.flags & kVhostUserVersionMask) != kVhostUserVersion) {
    return invalid(
        fmt::format("a message has version {}, not {}", header.flags & kVhostUserVersionMask, kVhostUserVersion));
  }
  if ((header.flags & kVhostUserReply) != 0) {
    return invalid("a message is a reply to nothing");
  }
  if (header.payload_bytes > kVhostUserMaxPayloadBytes) {
    return invalid(fmt::format("a message has {} bytes of payload, more than {}", header.payload_bytes,
                               kVhostUserMaxPayloadBytes));
  }
  return Ok{};
}

Result<> VhostUserSocket::reply_bytes(const VhostUserHeader& request, std::span<const std::byte> payload) {
  VhostUserHeader header{request.request, kVhostUserVersion | kVhostUserReply,
                         static_cast<std::uint32_t>(payload.size())};
  std::array<iovec, 2> parts{{{&header, sizeof header}, {const_cast<std::byte*>(payload.data()), payload.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    return errno_error("reply on", "vhost-user socket");
  }
  if (static_cast<std::size_t>(sent) != sizeof header + payload.size()) {
    return errno_error("reply on", "vhost-user socket", EAGAIN);
  }
  return Ok{};
}

void VhostUserSocket::close() noexcept {
  socket_.reset();
  partial_ = {};
  received_bytes_ = 0;
}

}  // namespace vxdp
