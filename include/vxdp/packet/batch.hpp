// SPDX-License-Identifier: Apache-2.0
// Up to 64 chains that cross every stage together. A queue pair owns one and reuses it, so that no stage
// allocates. 64 = VHOST_NET_BATCH (drivers/vhost/net.c).
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "vxdp/packet/xdp_buff.hpp"

namespace vxdp {

/// Chains in the order in which the guest made them available, and the frames among them: a chain that was
/// refused has no frame but is handed back in its turn (VIRTIO_F_IN_ORDER asks for that).
class Batch {
 public:
  static constexpr std::size_t kFrames = 64;           // chains, and so frames
  static constexpr std::size_t kSegments = 2048;       // iovecs shared by all frames
  static constexpr std::size_t kFrameSegments = 1023;  // iovecs in one frame; with its header UIO_MAXIOV

  static constexpr std::size_t kFewSegments = 8;  // fewer left than this and the batch is full

  [[nodiscard]] bool full() const noexcept { return chains_ == kFrames || kSegments - segments_ < kFewSegments; }
  [[nodiscard]] bool empty() const noexcept { return chains_ == 0; }
  [[nodiscard]] std::span<XdpBuff> frames() noexcept { return {frames_.data(), frame_count_}; }
  [[nodiscard]] std::span<const std::uint16_t> heads() const noexcept { return {heads_.data(), chains_}; }
  /// Room for the next chain's segments, at least 2; shorter than kFrameSegments once the pool runs low. One
  /// iovec before it is kept for the frame's private header.
  [[nodiscard]] std::span<iovec> free_segments() noexcept {
    const std::size_t left = kSegments - segments_ - 1;
    return {&pool_[segments_ + 1], left < kFrameSegments ? left : kFrameSegments};
  }

  /// Takes chain `head`, whose segments are the first `segments` of free_segments(), and returns its frame to fill.
  XdpBuff& add(std::uint16_t head, std::size_t segments) noexcept {
    segments_ += segments + 1;
    XdpBuff& frame = frames_[frame_count_++];
    frame.chain = static_cast<std::uint16_t>(chains_);
    heads_[chains_++] = head;
    return frame;
  }
  /// Takes chain `head` without a frame.
  void add_refused(std::uint16_t head) noexcept { heads_[chains_++] = head; }
  /// Forgets all frames but the first `count`; their chains stay.
  void keep_frames(std::size_t count) noexcept { frame_count_ = count; }
  void clear() noexcept { frame_count_ = chains_ = segments_ = 0; }

 private:
  std::array<XdpBuff, kFrames> frames_;
  std::array<std::uint16_t, kFrames> heads_;
  std::array<iovec, kSegments> pool_;
  std::size_t frame_count_ = 0;
  std::size_t chains_ = 0;
  std::size_t segments_ = 0;
};

}  // namespace vxdp
