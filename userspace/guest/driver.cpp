// SPDX-License-Identifier: Apache-2.0
#include "guest/driver.hpp"

#include <atomic>
#include <bit>

#include <fmt/format.h>

namespace vxdp {
namespace {

static_assert(std::endian::native == std::endian::little, "virtio 1.x rings are little-endian");

constexpr std::uint32_t kGapBytes = 64;         // between two pieces, so that they never touch
constexpr std::uint32_t kSplitHeaderBytes = 5;  // an odd cut, inside a field

std::uint16_t load(const std::uint16_t& shared, std::memory_order order) noexcept {
  return std::atomic_ref(const_cast<std::uint16_t&>(shared)).load(order);
}
void store(std::uint16_t& shared, std::uint16_t value, std::memory_order order) noexcept {
  std::atomic_ref(shared).store(value, order);
}

}  // namespace

DriverQueue::Geometry DriverQueue::geometry(const DriverQueueOptions& options, std::uint32_t frame_bytes) noexcept {
  constexpr auto kHeader = static_cast<std::uint32_t>(kHeaderBytes);
  Geometry g;
  switch (options.layout) {
    case HeaderLayout::kInline:
      g = {{0}, {kHeader + frame_bytes}, 1, 0};
      break;
    case HeaderLayout::kSeparate:
      g = {{0, kGapBytes * 2}, {kHeader, frame_bytes}, 2, 1};
      break;
    case HeaderLayout::kSplit: {
      const std::uint32_t room = options.buffer_bytes / 3 + 2 + kGapBytes;
      const std::uint32_t third = std::max(frame_bytes / 3, 1U);
      g.offset = {0, kGapBytes * 2, kGapBytes * 4, kGapBytes * 4 + room, kGapBytes * 4 + 2 * room};
      g.bytes = {kSplitHeaderBytes, kHeader - kSplitHeaderBytes, third, third, 0};
      g.pieces = 5;
      g.header_pieces = 2;
      // Frames of 1 or 2 bytes have fewer pieces: a descriptor is never empty.
      if (frame_bytes < 3) {
        g.pieces = 2 + frame_bytes;
      } else {
        g.bytes[4] = frame_bytes - 2 * third;
      }
      break;
    }
  }
  return g;
}

std::uint64_t DriverQueue::block_bytes(const DriverQueueOptions& options) noexcept {
  const Geometry g = geometry(options, std::max(options.buffer_bytes, 3U));
  return (std::uint64_t{g.offset[g.pieces - 1]} + g.bytes[g.pieces - 1] + 2 + 63) / 64 * 64;
}

std::uint64_t DriverQueue::memory_bytes(const DriverQueueOptions& options) noexcept {
  const unsigned step = options.indirect ? 1 : geometry(options, std::max(options.buffer_bytes, 3U)).pieces;
  const std::uint64_t indirect_bytes = options.indirect ? kMaxPieces * sizeof(vring_desc) + 64 : 0;
  const std::uint64_t ring_bytes = options.size * (sizeof(vring_desc) + 2 + sizeof(vring_used_elem)) + 4096;
  return ring_bytes + options.size / step * (block_bytes(options) + indirect_bytes);
}

Result<DriverQueue> DriverQueue::create(GuestRam& ram, const DriverQueueOptions& options) {
  if (!std::has_single_bit(options.size) || options.size < 8 || options.size > 32768) {
    return invalid(
        fmt::format("a ring of {} descriptors is not possible: use a power of two, 8 to 32768", options.size));
  }
  if (options.buffer_bytes < 3 || options.buffer_bytes > 1U << 20) {
    return invalid(fmt::format("a buffer of {} bytes is not possible: use 3 to 1048576", options.buffer_bytes));
  }
  DriverQueue queue;
  queue.options_ = options;
  queue.full_ = geometry(options, options.buffer_bytes);
  queue.mask_ = static_cast<std::uint16_t>(options.size - 1);
  const std::size_t size = options.size;
  // virtio 1.2, 2.7: alignments 16, 2, 4; each part gets its own cache lines.
  const GuestRam::Block desc = ram.allocate(size * sizeof(vring_desc), 64);
  const GuestRam::Block avail = ram.allocate(sizeof(vring_avail) + size * 2 + 2, 64);
  const GuestRam::Block used = ram.allocate(sizeof(vring_used) + size * sizeof(vring_used_elem) + 2, 64);
  const Error full = invalid("guest memory is too small for its rings");
  if (desc.data == nullptr || avail.data == nullptr || used.data == nullptr) {
    return full;
  }
  queue.desc_ = reinterpret_cast<vring_desc*>(desc.data);
  queue.avail_ = reinterpret_cast<vring_avail*>(avail.data);
  queue.used_ = reinterpret_cast<vring_used*>(used.data);
  queue.used_event_ = &queue.avail_->ring[size];
  queue.avail_event_ = reinterpret_cast<std::uint16_t*>(&queue.used_->ring[size]);
  queue.addresses_ = {ram.fva(desc.data), ram.fva(avail.data), ram.fva(used.data)};
  queue.next_avail_ = queue.kicked_avail_ = queue.last_used_ = options.first_index;
  queue.avail_->idx = queue.used_->idx = options.first_index;
  *queue.used_event_ = options.first_index;

  queue.blocks_.resize(size);
  queue.indirect_.resize(options.indirect ? size : 0);
  queue.with_device_.resize(size);
  queue.prepared_bytes_.resize(size);
  queue.free_.resize(size);
  const unsigned step = options.indirect ? 1 : queue.full_.pieces;
  for (unsigned head = 0; head + step <= size; head += step) {
    const auto slot = static_cast<Slot>(head);
    queue.blocks_[slot] = ram.allocate(block_bytes(options), 64);
    if (options.indirect) {
      queue.indirect_[slot] = ram.allocate(kMaxPieces * sizeof(vring_desc), 16);
    }
    if (queue.blocks_[slot].data == nullptr || (options.indirect && queue.indirect_[slot].data == nullptr)) {
      return full;
    }
    queue.slots_.push_back(slot);
    queue.free_[queue.free_tail_++] = slot;
    queue.write_chain(slot, queue.full_);
    queue.prepared_bytes_[slot] = options.buffer_bytes;
  }
  queue.first_frame_offset_ = options.layout == HeaderLayout::kInline ? kHeaderBytes : queue.full_.offset[1];
  queue.parts_.reserve(size * kMaxPieces);
  queue.gathered_.reserve(size);
  return queue;
}

void DriverQueue::write_chain(Slot slot, const Geometry& shape) noexcept {
  vring_desc* chain = options_.indirect ? reinterpret_cast<vring_desc*>(indirect_[slot].data) : &desc_[slot];
  const unsigned first = options_.indirect ? 0 : slot;
  const unsigned writable = options_.direction == RingDirection::kToGuest ? VRING_DESC_F_WRITE : 0;
  for (unsigned i = 0; i < shape.pieces; ++i) {
    const bool last = i + 1 == shape.pieces;
    chain[i].addr = blocks_[slot].gpa + shape.offset[i];
    chain[i].len = shape.bytes[i];
    chain[i].flags = static_cast<std::uint16_t>(writable | (last ? 0U : VRING_DESC_F_NEXT));
    chain[i].next = static_cast<std::uint16_t>(last ? 0U : first + i + 1);
  }
  if (options_.indirect) {
    desc_[slot].addr = indirect_[slot].gpa;
    desc_[slot].len = static_cast<std::uint32_t>(shape.pieces * sizeof(vring_desc));
    desc_[slot].flags = VRING_DESC_F_INDIRECT;
    desc_[slot].next = 0;
  }
}

void DriverQueue::scatter(Slot slot, const Geometry& shape, std::uint32_t offset,
                          std::span<const std::byte> bytes) noexcept {
  for (unsigned i = 0; i < shape.pieces && !bytes.empty(); ++i) {
    if (offset >= shape.bytes[i]) {
      offset -= shape.bytes[i];
      continue;
    }
    const std::size_t n = std::min<std::size_t>(bytes.size(), shape.bytes[i] - offset);
    std::memcpy(blocks_[slot].data + shape.offset[i] + offset, bytes.data(), n);
    bytes = bytes.subspan(n);
    offset = 0;
  }
}

void DriverQueue::prepare(Slot slot, std::span<const std::byte> frame, const VnetHeader& header) noexcept {
  const auto frame_bytes = static_cast<std::uint32_t>(frame.size());
  const Geometry shape = geometry(options_, frame_bytes);
  if (prepared_bytes_[slot] != frame_bytes) {
    write_chain(slot, shape);
    prepared_bytes_[slot] = frame_bytes;
  }
  scatter(slot, shape, 0, std::as_bytes(std::span(&header, 1)));
  scatter(slot, shape, kHeaderBytes, frame);
}

void DriverQueue::write(Slot slot, std::uint32_t offset, std::span<const std::byte> bytes) noexcept {
  scatter(slot, geometry(options_, prepared_bytes_[slot]), static_cast<std::uint32_t>(kHeaderBytes) + offset, bytes);
}

bool DriverQueue::add_frame(std::span<const std::byte> frame, const VnetHeader& header) noexcept {
  if (free_slots() == 0 || frame.empty() || frame.size() > options_.buffer_bytes) {
    return false;
  }
  const Slot slot = take();
  prepare(slot, frame, header);
  add(slot);
  return true;
}

void DriverQueue::add(Slot slot) noexcept {
  with_device_[slot] = 1;
  std::uint16_t& entry = avail_->ring[next_avail_ & mask_];
  // Slots come back in order, so the entry mostly holds this value from the last lap. Not writing it leaves the
  // cache line with the device.
  if (entry != slot) {
    entry = slot;
  }
  ++next_avail_;
}

void DriverQueue::publish() noexcept {
  store(avail_->idx, next_avail_, std::memory_order_release);
}

bool DriverQueue::kick_needed() noexcept {
  const std::uint16_t before = kicked_avail_;
  kicked_avail_ = next_avail_;
  if (before == next_avail_) {
    return false;
  }
  // The device enables kicks, then looks at avail->idx; we write avail->idx, then look whether they are enabled.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!options_.event_idx) {
    return (load(used_->flags, std::memory_order_relaxed) & VRING_USED_F_NO_NOTIFY) == 0;
  }
  const std::uint16_t event = load(*avail_event_, std::memory_order_relaxed);
  // virtio 1.2, 2.7.10: kick if `event` was passed since the last kick was considered.
  return static_cast<std::uint16_t>(next_avail_ - event - 1) < static_cast<std::uint16_t>(next_avail_ - before);
}

std::uint16_t DriverQueue::used_index() const noexcept {
  return load(used_->idx, std::memory_order_acquire);
}

bool DriverQueue::read_used(std::uint16_t index, Slot& slot, std::uint32_t& bytes) noexcept {
  const vring_used_elem element = used_->ring[index & mask_];
  if (element.id > mask_ || with_device_[element.id] == 0) {
    broken_ = "the back end returned a descriptor that it did not have";
    return false;
  }
  slot = static_cast<Slot>(element.id);
  bytes = element.len;
  return true;
}

void DriverQueue::give_back(Slot slot) noexcept {
  with_device_[slot] = 0;
  free_[free_tail_++ & mask_] = slot;
}

unsigned DriverQueue::reclaim(unsigned max) noexcept {
  unsigned pending = static_cast<std::uint16_t>(used_index() - last_used_);
  if (pending > in_flight()) {
    broken_ = "the back end returned more descriptors than it had";
  }
  if (broken_ != nullptr) {
    return 0;
  }
  pending = std::min(pending, max);
  for (unsigned i = 0; i < pending; ++i) {
    Slot slot = 0;
    std::uint32_t bytes = 0;
    if (!read_used(last_used_, slot, bytes)) {
      return i;
    }
    give_back(slot);
    ++last_used_;
  }
  return pending;
}

unsigned DriverQueue::post_buffers() noexcept {
  const unsigned count = free_slots();
  for (unsigned i = 0; i < count; ++i) {
    add(take());
  }
  if (count > 0) {
    publish();
  }
  return count;
}

std::uint32_t DriverQueue::append_parts(Slot slot, std::uint32_t bytes, bool first) noexcept {
  std::uint32_t skip = first ? static_cast<std::uint32_t>(kHeaderBytes) : 0;
  std::uint32_t appended = 0;
  for (unsigned i = 0; i < full_.pieces && bytes > 0; ++i) {
    const std::uint32_t written = std::min(bytes, full_.bytes[i]);
    const std::uint32_t skipped = std::min(skip, written);
    if (written > skipped) {
      parts_.emplace_back(blocks_[slot].data + full_.offset[i] + skipped, written - skipped);
      appended += written - skipped;
    }
    bytes -= written;
    skip -= skipped;
  }
  return appended;
}

unsigned DriverQueue::gather(ReceivedFrame& frame) noexcept {
  if (broken_ != nullptr) {
    return 0;
  }
  const unsigned pending = static_cast<std::uint16_t>(used_index() - last_used_);
  if (pending == 0) {
    return 0;
  }
  if (pending > in_flight()) {
    broken_ = "the back end returned more descriptors than it had";
    return 0;
  }
  parts_.clear();
  gathered_.clear();
  frame.bytes = 0;
  unsigned buffers = 1;
  for (unsigned i = 0; i < buffers; ++i) {
    Slot slot = 0;
    std::uint32_t bytes = 0;
    if (!read_used(static_cast<std::uint16_t>(last_used_ + i), slot, bytes)) {
      return 0;
    }
    if (bytes > kHeaderBytes + options_.buffer_bytes || (i == 0 && bytes != 0 && bytes < kHeaderBytes)) {
      broken_ = "the back end wrote an impossible length in a used element";
      return 0;
    }
    if (i == 0) {
      auto* to = reinterpret_cast<std::byte*>(&frame.header);
      if (full_.header_pieces == 2) {
        std::memcpy(to, blocks_[slot].data, kSplitHeaderBytes);
        std::memcpy(to + kSplitHeaderBytes, blocks_[slot].data + full_.offset[1], kHeaderBytes - kSplitHeaderBytes);
      } else {
        std::memcpy(to, blocks_[slot].data, kHeaderBytes);
      }
      // A buffer that came back empty carries no header.
      buffers = options_.mergeable && bytes != 0 ? frame.header.num_buffers : 1U;
      if (buffers == 0 || buffers > slot_count()) {
        broken_ = "the back end wrote an impossible num_buffers";
        return 0;
      }
      if (buffers > pending) {
        return 0;  // virtio 1.2, 5.1.6.4: all buffers of a frame become used together; look again later
      }
    }
    frame.bytes += append_parts(slot, bytes, i == 0);
    gathered_.push_back(slot);
  }
  last_used_ = static_cast<std::uint16_t>(last_used_ + buffers);
  frame.parts = parts_;
  return buffers;
}

void DriverQueue::enable_calls(unsigned after) noexcept {
  if (options_.event_idx) {
    store(*used_event_, static_cast<std::uint16_t>(last_used_ + std::max(after, 1U) - 1), std::memory_order_relaxed);
  } else {
    store(avail_->flags, 0, std::memory_order_relaxed);
  }
  calls_enabled_ = true;
  // Pairs with the device: it writes used->idx, then reads the event; the caller reads used->idx after this.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void DriverQueue::disable_calls() noexcept {
  if (options_.event_idx) {
    // An event as far away as can be; renewed only when it has come near, because the device reads this cache line.
    const auto ahead = static_cast<std::uint16_t>(load(*used_event_, std::memory_order_relaxed) - last_used_);
    if (calls_enabled_ || ahead < 0x4000) {
      store(*used_event_, static_cast<std::uint16_t>(last_used_ + 0x7fff), std::memory_order_relaxed);
    }
  } else if (calls_enabled_) {
    store(avail_->flags, VRING_AVAIL_F_NO_INTERRUPT, std::memory_order_relaxed);
  }
  calls_enabled_ = false;
}

}  // namespace vxdp
