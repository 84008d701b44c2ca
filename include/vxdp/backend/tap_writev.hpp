// SPDX-License-Identifier: Apache-2.0
// A TAP queue, one non-blocking system call a frame: the reference, and the fallback where io_uring is forbidden.
#pragma once

#include "vxdp/backend/backend.hpp"
#include "vxdp/base/fd.hpp"

namespace vxdp {

class TapWritev : public Backend {
 public:
  /// `queue`: an open, non-blocking TAP queue. `reason`: why not io_uring.
  TapWritev(Fd queue, std::string reason);

  Moved sendmsg(const MessageControl& control) noexcept override;
  Moved recvmmsg(std::span<ReceiveRoom> rooms) noexcept override;
  [[nodiscard]] int event_fd() const noexcept override { return queue_.get(); }
  [[nodiscard]] bool send_limited() const noexcept override { return send_limited_; }
  void use_send_memory(std::shared_ptr<const GuestMemory> /*memory*/) override {}
  void use_receive_memory(std::shared_ptr<const GuestMemory> /*memory*/) override {}
  void use_header_bytes(std::uint32_t bytes) noexcept override { header_bytes_ = bytes; }
  [[nodiscard]] const char* method() const noexcept override { return "writev"; }
  [[nodiscard]] std::string method_reason() const override { return reason_; }

 protected:
  [[nodiscard]] std::uint32_t header_bytes() const noexcept { return header_bytes_; }
  /// Whether [data - header, data_end) is the whole message, as it lies in guest memory.
  [[nodiscard]] static bool contiguous(const XdpBuff& frame) noexcept {
    return frame.header_in_front && frame.iov_count == 2;
  }

 private:
  const Fd queue_;
  const std::string reason_;
  std::uint32_t header_bytes_ = 12;
  bool send_limited_ = false;
};

}  // namespace vxdp
