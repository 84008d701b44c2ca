// SPDX-License-Identifier: Apache-2.0
// A TAP queue by io_uring: one system call a batch, guest memory registered as fixed buffers where allowed.
#pragma once

#include "vxdp/backend/tap_writev.hpp"

namespace vxdp {

class TapUring final : public TapWritev {
 public:
  /// Errors: io_uring is switched off or forbidden; the sentence says which.
  static Result<std::unique_ptr<TapUring>> create(const Fd& queue);
  ~TapUring() override;

  Moved sendmsg(const MessageControl& control) noexcept override;
  Moved recvmmsg(std::span<ReceiveRoom> rooms) noexcept override;
  void use_send_memory(std::shared_ptr<const GuestMemory> memory) override;
  void use_receive_memory(std::shared_ptr<const GuestMemory> memory) override;
  [[nodiscard]] const char* method() const noexcept override;
  [[nodiscard]] std::string method_reason() const override;

 private:
  struct Rings;
  TapUring(Fd queue, std::unique_ptr<Rings> rings);
  Moved send_batch(std::span<XdpBuff> frames) noexcept;
  std::unique_ptr<Rings> rings_;
};

/// A backend on a duplicate of `queue`, the best the kernel allows: io_uring, else writev (then method_reason() says
/// why). `require_uring`: an error instead of the fallback. `forbid_uring`: writev without asking.
Result<std::unique_ptr<Backend>> make_tap_queue(const Fd& queue, bool require_uring, bool forbid_uring);

}  // namespace vxdp
