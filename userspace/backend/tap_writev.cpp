// SPDX-License-Identifier: Apache-2.0
#include "vxdp/backend/tap_writev.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <climits>

#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {

TapWritev::TapWritev(Fd queue, std::string reason) : queue_(std::move(queue)), reason_(std::move(reason)) {
  // With a send buffer that is limited the kernel leaves the native XDP path and may ask to wait
  // (tun.c, tun_can_build_skb()).
  int send_buffer_bytes = INT_MAX;
  send_limited_ = ::ioctl(queue_.get(), TUNGETSNDBUF, &send_buffer_bytes) == 0 && send_buffer_bytes != INT_MAX;
}

Moved TapWritev::sendmsg(const MessageControl& control) noexcept {
  Moved moved;
  for (XdpBuff& frame : std::span(control.ptr, control.num)) {
    ssize_t written = 0;
    do {
      ++moved.syscalls;
      written = contiguous(frame)
                    ? ::write(queue_.get(), frame.data - header_bytes_, header_bytes_ + frame.linear_bytes())
                    : ::writev(queue_.get(), frame.iov, frame.iov_count);
    } while (written < 0 && errno == EINTR);
    if (written < 0 && errno == EAGAIN) {
      break;
    }
    frame.error = static_cast<std::uint16_t>(written < 0 ? errno : 0);
    ++moved.frames;
  }
  return moved;
}

Moved TapWritev::recvmmsg(std::span<ReceiveRoom> rooms) noexcept {
  Moved moved;
  for (ReceiveRoom& room : rooms) {
    ssize_t got = 0;
    do {
      ++moved.syscalls;
      got = ::readv(queue_.get(), room.iov.data(), static_cast<int>(room.iov.size()));
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN) {
      break;
    }
    room.result = static_cast<std::int32_t>(got < 0 ? -errno : got);
    ++moved.frames;
    if (got < 0) {
      break;
    }
  }
  return moved;
}

}  // namespace vxdp
