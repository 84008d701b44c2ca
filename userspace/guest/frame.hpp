// SPDX-License-Identifier: Apache-2.0
// The frames the built-in guest sends: Ethernet, perhaps IPv4 with UDP or TCP, then a stamp that a receiver
// can follow (who sent it, which one it is) and a pattern that shows damage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vxdp/base/mac.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {

/// The address in "10.0.0.1", in host order.
Result<std::uint32_t> parse_ipv4(const std::string& text);

/// What follows the headers of every frame, little-endian. The last even-aligned 2 bytes of a frame are its tail,
/// the complement of the Internet sum of the sequence: so a checksum over both never changes, and a frame that was
/// cut or glued together from two is seen. Between stamp and tail lies a pattern that depends on `key`.
/// `key` is the buffer's, not the sequence's: a sender rewrites 10 bytes a frame, whatever its length.
struct FrameStamp {
  static constexpr std::uint32_t kMagic = 0x50445856;  // "VXDP"
  static constexpr std::uint8_t kNoTail = 1;           // of flags: the frame may be segmented on its way

  std::uint32_t magic = kMagic;
  std::uint16_t queue = 0;  // the sender's queue pair
  std::uint8_t key = 0;
  std::uint8_t flags = 0;
  std::uint64_t sequence = 0;  // from 0 in each of the sender's queues
};
static_assert(sizeof(FrameStamp) == 16);
constexpr std::size_t kFrameTailBytes = 2;

std::uint16_t frame_tail(std::uint64_t sequence) noexcept;
/// `bytes` of the pattern for `key`; bytes <= 65535.
std::span<const std::byte> frame_pattern(std::uint8_t key, std::size_t bytes) noexcept;
/// The Internet checksum's sum (not complemented) of `bytes`, continued from `sum`; an even number of bytes but
/// in the last part.
std::uint32_t internet_sum(std::span<const std::byte> bytes, std::uint32_t sum = 0) noexcept;
std::uint16_t internet_fold(std::uint32_t sum) noexcept;

enum class FrameKind { kRaw, kUdp, kTcp };

struct FrameSpec {
  FrameKind kind = FrameKind::kRaw;
  std::uint32_t bytes = 64;  // 14 .. 65535, virtio header not counted
  MacAddress destination_mac{0x02, 0, 0, 0, 0, 0x02};
  MacAddress source_mac{0x02, 0, 0, 0, 0, 0x01};
  std::uint16_t ethertype = 0x88b5;  // IEEE 802 local experimental; kRaw only
  std::uint32_t source_ip = 0x0a000001;
  std::uint32_t destination_ip = 0x0a000002;
  std::uint16_t source_port = 4096;
  std::uint16_t destination_port = 4097;
  bool partial_checksum = false;    // leave the UDP or TCP checksum to the device (NEEDS_CSUM)
  std::uint16_t segment_bytes = 0;  // not 0: one TCP super-frame to be cut at this payload (TSO4)
};

/// One kind of frame, ready to be written into buffers.
class FrameTemplate {
 public:
  /// Errors: a length the headers do not fit in, or offloads that the kind does not have.
  static Result<FrameTemplate> create(const FrameSpec& spec);

  /// The frame of `queue` with sequence 0.
  [[nodiscard]] std::vector<std::byte> frame(std::uint16_t queue, std::uint8_t key) const;
  [[nodiscard]] const VnetHeader& header() const noexcept { return header_; }
  [[nodiscard]] const FrameSpec& spec() const noexcept { return spec_; }
  /// Frame offset of the sequence; 0 if the frame is too short to be stamped.
  [[nodiscard]] std::uint32_t sequence_offset() const noexcept { return sequence_offset_; }
  /// Frame offset of the tail; 0 if there is none.
  [[nodiscard]] std::uint32_t tail_offset() const noexcept { return tail_offset_; }

 private:
  FrameSpec spec_;
  VnetHeader header_{};
  std::uint32_t payload_offset_ = 0;
  std::uint32_t sequence_offset_ = 0;
  std::uint32_t tail_offset_ = 0;
};

/// What a received frame turned out to be.
struct FrameVerdict {
  enum Kind { kGood, kForeign, kCorrupted, kBadChecksum } kind = kForeign;
  std::uint16_t queue = 0;     // the sender's; not for kForeign
  std::uint64_t sequence = 0;  // only for kGood
};
/// Looks for our stamp behind Ethernet or IPv4 UDP/TCP headers and checks what it promises.
/// `checksum_unfinished`: the device said that the UDP or TCP checksum need not be right.
FrameVerdict judge_frame(std::span<const std::byte> frame, bool checksum_unfinished) noexcept;

}  // namespace vxdp
