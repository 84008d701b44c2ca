// SPDX-License-Identifier: Apache-2.0
// The driver side of one split ring in guest memory, for virtio-net in either direction.
// A ring is cut into slots: a slot is a buffer with its descriptor chain, written once and used again and again.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "guest/guest_ram.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {

/// How the 12-byte header and the frame lie in a chain.
enum class HeaderLayout {
  kInline,    // one descriptor holds both
  kSeparate,  // the header has its own
  kSplit,     // header over two (5 and 7 bytes), frame over three
};
enum class RingDirection { kFromGuest, kToGuest };

struct DriverQueueOptions {
  RingDirection direction = RingDirection::kFromGuest;
  HeaderLayout layout = HeaderLayout::kInline;
  std::uint16_t size = 256;           // descriptors; a power of two, 8 .. 32768
  std::uint32_t buffer_bytes = 2048;  // frame bytes that one slot holds, header not counted
  bool event_idx = false;
  bool indirect = false;
  bool mergeable = false;         // to_guest: a frame may take several slots
  std::uint16_t first_index = 0;  // where both ring indices start (VRING_BASE)
};

/// Front-end virtual addresses of a ring's three parts.
struct RingAddresses {
  std::uint64_t desc_fva = 0;
  std::uint64_t avail_fva = 0;
  std::uint64_t used_fva = 0;
};

/// One frame as it lies in guest buffers.
struct ReceivedFrame {
  VnetHeader header;                                  // num_buffers as the device wrote it
  std::span<const std::span<const std::byte>> parts;  // the frame without its header, in order
  std::uint32_t bytes = 0;                            // sum of the parts
};

/// Used by one thread at a time. `ram` must outlive it. Nothing here blocks or makes a system call.
/// The device is trusted with nothing that could crash us: a wrong used element makes the queue broken.
class DriverQueue {
 public:
  /// Names a slot: the index of its head descriptor.
  using Slot = std::uint16_t;
  static constexpr std::size_t kHeaderBytes = sizeof(VnetHeader);

  /// How much of `ram` create() takes at most, in bytes.
  static std::uint64_t memory_bytes(const DriverQueueOptions& options) noexcept;
  static Result<DriverQueue> create(GuestRam& ram, const DriverQueueOptions& options);

  [[nodiscard]] const DriverQueueOptions& options() const noexcept { return options_; }
  [[nodiscard]] const RingAddresses& addresses() const noexcept { return addresses_; }
  /// Frames that fit in the ring at once.
  [[nodiscard]] unsigned slot_count() const noexcept { return static_cast<unsigned>(slots_.size()); }
  [[nodiscard]] std::span<const Slot> slots() const noexcept { return slots_; }
  [[nodiscard]] unsigned free_slots() const noexcept { return static_cast<unsigned>(free_tail_ - free_head_); }
  [[nodiscard]] unsigned in_flight() const noexcept { return slot_count() - free_slots(); }
  /// Not empty after the device broke the rules; the queue then does nothing more.
  [[nodiscard]] const char* broken() const noexcept { return broken_; }

  // --- from_guest ---

  /// Copies `header` and `frame` (1 .. buffer_bytes) into a free slot and adds it; false if there is none.
  bool add_frame(std::span<const std::byte> frame, const VnetHeader& header = {}) noexcept;
  /// The pieces of a fast sender: prepare() each slot once, then take() a free one (free_slots() > 0),
  /// change bytes in place and add() it.
  void prepare(Slot slot, std::span<const std::byte> frame, const VnetHeader& header) noexcept;
  Slot take() noexcept { return free_[free_head_++ & mask_]; }
  void add(Slot slot) noexcept;
  /// Overwrites frame bytes from `offset` in a prepared slot.
  void write(Slot slot, std::uint32_t offset, std::span<const std::byte> bytes) noexcept;
  /// Where the frame lies in one piece, or null with HeaderLayout::kSplit.
  [[nodiscard]] std::byte* contiguous_frame(Slot slot) noexcept {
    return options_.layout == HeaderLayout::kSplit ? nullptr : blocks_[slot].data + first_frame_offset_;
  }
  /// Takes back up to `max` slots that the device has used; returns how many.
  unsigned reclaim(unsigned max) noexcept;

  // --- to_guest ---

  /// Adds and publishes every free slot; returns how many.
  unsigned post_buffers() noexcept;
  /// Calls `on_frame(const ReceivedFrame&)` for up to `max` frames and frees their slots; returns how many.
  template <typename OnFrame>
  unsigned receive(unsigned max, OnFrame&& on_frame);

  // --- both ---

  /// Lets the device see what was added.
  void publish() noexcept;
  /// True if the device wants a kick for what was published since the last question.
  [[nodiscard]] bool kick_needed() noexcept;
  [[nodiscard]] bool used_pending() const noexcept { return used_index() != last_used_; }
  /// Asks for a call once `after` (1 ..) more slots are used. Check used_pending() afterwards, before sleeping.
  void enable_calls(unsigned after = 1) noexcept;
  void disable_calls() noexcept;

 private:
  static constexpr std::size_t kMaxPieces = 5;
  /// Where the pieces of a chain lie in a slot's block, for one frame length.
  struct Geometry {
    std::array<std::uint32_t, kMaxPieces> offset{};
    std::array<std::uint32_t, kMaxPieces> bytes{};
    unsigned pieces = 0;
    unsigned header_pieces = 0;  // that hold nothing but header
  };
  static Geometry geometry(const DriverQueueOptions& options, std::uint32_t frame_bytes) noexcept;
  static std::uint64_t block_bytes(const DriverQueueOptions& options) noexcept;

  DriverQueue() = default;
  [[nodiscard]] std::uint16_t used_index() const noexcept;
  void write_chain(Slot slot, const Geometry& shape) noexcept;
  /// Copies into the chain's bytes (header first) from `offset`.
  void scatter(Slot slot, const Geometry& shape, std::uint32_t offset, std::span<const std::byte> bytes) noexcept;
  /// Reads used element `index`; false (and broken) if the device wrote nonsense.
  bool read_used(std::uint16_t index, Slot& slot, std::uint32_t& bytes) noexcept;
  void give_back(Slot slot) noexcept;
  /// Appends the frame bytes of the `bytes` that the device wrote to `slot`; returns how many.
  std::uint32_t append_parts(Slot slot, std::uint32_t bytes, bool first) noexcept;
  /// Gathers the next frame into parts_; 0 = none yet, otherwise the number of slots it took.
  unsigned gather(ReceivedFrame& frame) noexcept;

  DriverQueueOptions options_;
  RingAddresses addresses_;
  vring_desc* desc_ = nullptr;
  vring_avail* avail_ = nullptr;
  vring_used* used_ = nullptr;
  std::uint16_t* used_event_ = nullptr;   // we write: when to call us
  std::uint16_t* avail_event_ = nullptr;  // device writes: when to kick it
  std::uint16_t mask_ = 0;
  std::uint16_t next_avail_ = 0;    // index after the last slot added
  std::uint16_t kicked_avail_ = 0;  // index at the last kick_needed()
  std::uint16_t last_used_ = 0;
  std::uint32_t first_frame_offset_ = 0;
  const char* broken_ = nullptr;
  bool calls_enabled_ = true;

  std::vector<Slot> slots_;
  std::vector<Slot> free_;  // a ring buffer: slots come back in the order they went
  std::uint32_t free_head_ = 0;
  std::uint32_t free_tail_ = 0;
  std::vector<GuestRam::Block> blocks_;        // by slot
  std::vector<GuestRam::Block> indirect_;      // by slot, only with INDIRECT_DESC
  std::vector<std::uint8_t> with_device_;      // by slot
  std::vector<std::uint32_t> prepared_bytes_;  // by slot: frame length its chain is written for
  Geometry full_;                              // of a whole buffer
  std::vector<std::span<const std::byte>> parts_;
  std::vector<Slot> gathered_;
};

template <typename OnFrame>
unsigned DriverQueue::receive(unsigned max, OnFrame&& on_frame) {
  unsigned received = 0;
  ReceivedFrame frame;
  while (received < max && gather(frame) != 0) {
    on_frame(static_cast<const ReceivedFrame&>(frame));
    for (const Slot slot : gathered_) {
      give_back(slot);
    }
    ++received;
  }
  return received;
}

}  // namespace vxdp
