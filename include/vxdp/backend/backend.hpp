// SPDX-License-Identifier: Apache-2.0
// Where frames go when they leave the guest, and where they come from. The send side has the shape of
// vhost_net's contract with TUN (include/linux/if_tun.h, struct tun_msg_ctl): one sendmsg() whose control
// part says "an array of N XDP buffers", or one single frame.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "vxdp/base/result.hpp"
#include "vxdp/memory/guest_memory.hpp"
#include "vxdp/packet/xdp_buff.hpp"

namespace vxdp {

enum class MessageType : std::uint16_t {
  kFrame,     // one frame on its own
  kXdpBuffs,  // a batch; TUN_MSG_PTR in the kernel
};

/// The control part of a message.
struct MessageControl {
  MessageType type = MessageType::kXdpBuffs;
  std::uint16_t num = 0;  // 1 .. 64; 1 for kFrame
  XdpBuff* ptr = nullptr;
};

/// Room for one frame to the guest: its virtio-net header and bytes are read straight into it.
struct ReceiveRoom {
  std::span<const iovec> iov;
  std::int32_t result = 0;  // bytes the frame and its header have (more than `iov` means it did not fit), or -errno
};

struct Moved {
  std::size_t frames = 0;
  unsigned syscalls = 0;
};

/// One queue of one interface. sendmsg() and recvmmsg() belong to one worker thread; they never block.
/// The other calls are for the control thread while that worker does not use the direction they concern.
class Backend {
 public:
  virtual ~Backend() = default;

  /// Submits frames in order and returns how many are done with, a prefix: delivered, or refused with
  /// XdpBuff::error set. Fewer than `num` means the interface has no room now. Nothing of the frames is
  /// read after the call.
  virtual Moved sendmsg(const MessageControl& control) noexcept = 0;
  /// Reads frames into `rooms`, in order, until there are no more; returns how many rooms have a result.
  /// Fewer than all means there is nothing to read now.
  virtual Moved recvmmsg(std::span<ReceiveRoom> rooms) noexcept = 0;

  /// Readable and writable as the interface is; for epoll.
  [[nodiscard]] virtual int event_fd() const noexcept = 0;
  /// Whether frames must go singly because the interface limits what it buffers.
  [[nodiscard]] virtual bool send_limited() const noexcept = 0;

  /// Makes `memory` the memory that sendmsg() will find frames in; empty forgets it. May take long: pages are pinned.
  virtual void use_send_memory(std::shared_ptr<const GuestMemory> memory) = 0;
  /// The same for the rooms of recvmmsg(); the other direction may be running.
  virtual void use_receive_memory(std::shared_ptr<const GuestMemory> memory) = 0;
  /// Bytes of the virtio-net header in front of each frame: 10 or 12.
  virtual void use_header_bytes(std::uint32_t bytes) noexcept = 0;
  /// How a batch is submitted, a static string: "uring-fixed", "uring" or "writev"; and why.
  [[nodiscard]] virtual const char* method() const noexcept = 0;
  [[nodiscard]] virtual std::string method_reason() const = 0;
};

}  // namespace vxdp
