// SPDX-License-Identifier: Apache-2.0
#include "vxdp/virtqueue/split_queue.hpp"

#include <unistd.h>

#include <atomic>

#include "vxdp/virtqueue/ring_access.hpp"

namespace vxdp {

Result<SplitQueue> SplitQueue::create(VringConfig config) {
  const std::uint64_t size = config.size;
  if (size == 0 || size > 32768 || (size & (size - 1)) != 0) {
    return invalid("a split ring's size is a power of two up to 32768");
  }
  if (config.desc_fva % 16 != 0 || config.avail_fva % 2 != 0 || config.used_fva % 4 != 0) {
    return invalid("a ring address is not aligned");
  }
  SplitQueue queue;
  const auto& memory = *config.memory;
  // Each ring carries one event index behind its entries, negotiated or not.
  auto* desc = memory.translate_fva(config.desc_fva, size * sizeof(vring_desc));
  auto* avail = memory.translate_fva(config.avail_fva, sizeof(RingHead) + size * sizeof(std::uint16_t) + 2);
  auto* used = memory.translate_fva(config.used_fva, sizeof(RingHead) + size * sizeof(vring_used_elem) + 2);
  if (desc == nullptr || avail == nullptr || used == nullptr) {
    return invalid("a ring address lies outside guest memory");
  }
  queue.desc_ = reinterpret_cast<const vring_desc*>(desc);
  queue.avail_ = reinterpret_cast<const RingHead*>(avail);
  queue.avail_ring_ = reinterpret_cast<const std::uint16_t*>(queue.avail_ + 1);
  queue.used_ = reinterpret_cast<RingHead*>(used);
  queue.used_ring_ = reinterpret_cast<vring_used_elem*>(queue.used_ + 1);
  queue.mask_ = static_cast<std::uint16_t>(size - 1);
  queue.next_avail_ = config.next_avail;
  queue.next_used_ = queue.published_used_ = queue.called_used_ = load_relaxed(queue.used_->idx);
  queue.event_idx_ = (config.features & feature_bit(VIRTIO_RING_F_EVENT_IDX)) != 0;
  queue.indirect_ = (config.features & feature_bit(VIRTIO_RING_F_INDIRECT_DESC)) != 0;
  queue.config_ = std::move(config);
  return queue;
}

const std::uint16_t& SplitQueue::used_event() const noexcept {
  return avail_ring_[config_.size];
}

std::uint16_t& SplitQueue::avail_event() const noexcept {
  return *reinterpret_cast<std::uint16_t*>(&used_ring_[config_.size]);
}

std::uint16_t SplitQueue::available() noexcept {
  if (broken_) [[unlikely]] {
    return 0;
  }
  // Acquire: the entries and descriptors behind the index must not be read before it.
  const auto pending = static_cast<std::uint16_t>(load_acquire(avail_->idx) - next_avail_);
  if (pending > config_.size) [[unlikely]] {
    set_broken();
    return 0;
  }
  return pending;
}

void SplitQueue::prefetch(std::uint16_t count) const noexcept {
  for (std::uint16_t i = 0; i < count; ++i) {
    const auto head = load_relaxed(avail_ring_[static_cast<std::uint16_t>(next_avail_ + i) & mask_]);
    __builtin_prefetch(&desc_[head & mask_]);
  }
}

/// One walk along a chain: collects host buffers and judges.
class SplitQueue::Walk {
 public:
  Walk(const SplitQueue& queue, ChainUse use, std::span<iovec> room, Chain& chain) noexcept
      : queue_(queue), use_(use), room_(room), chain_(chain) {}

  void run() noexcept {
    follow_ring();
    if (chain_.verdict == VXDP_DROP_NONE && chain_.segments == 0 && !chain_.no_room) {
      chain_.verdict = VXDP_DROP_BAD_CHAIN;  // nothing but empty descriptors
    }
    if (chain_.verdict != VXDP_DROP_NONE || chain_.no_room) [[unlikely]] {
      chain_.segments = 0;
      chain_.bytes = 0;
    }
  }

 private:
  /// Descriptors in the ring's own table; the last may be an indirect one (virtio 1.2, 2.7.5.3.2).
  bool follow_ring() noexcept {
    std::uint16_t index = chain_.head;
    // A chain cannot be longer than its table: one more step is a loop.
    for (std::uint32_t steps = 0; steps < queue_.config_.size; ++steps) {
      const vring_desc desc = read_once(&queue_.desc_[index]);
      if ((desc.flags & VRING_DESC_F_INDIRECT) != 0) [[unlikely]] {
        return follow_indirect(desc);
      }
      if (!append(desc)) {
        return false;
      }
      if ((desc.flags & VRING_DESC_F_NEXT) == 0) {
        return true;
      }
      if (desc.next >= queue_.config_.size) {
        break;
      }
      index = desc.next;
    }
    return fail(VXDP_DROP_BAD_CHAIN);
  }

  /// A table of at most ring-size descriptors, at the end of its chain, not nested. Source: virtio 1.2, 2.7.5.3.
  bool follow_indirect(const vring_desc& table) noexcept {
    const std::uint32_t entries = table.len / sizeof(vring_desc);
    if (!queue_.indirect_ || (table.flags & VRING_DESC_F_NEXT) != 0 || entries == 0 ||
        table.len % sizeof(vring_desc) != 0 || entries > queue_.config_.size) {
      return fail(VXDP_DROP_BAD_CHAIN);
    }
    std::uint32_t index = 0;
    for (std::uint32_t steps = 0; steps < entries; ++steps) {
      vring_desc desc;
      if (!fetch(table.addr + std::uint64_t{index} * sizeof desc, desc)) {
        return fail(VXDP_DROP_BAD_ADDRESS);
      }
      if ((desc.flags & VRING_DESC_F_INDIRECT) != 0) {
        break;
      }
      if (!append(desc)) {
        return false;
      }
      if ((desc.flags & VRING_DESC_F_NEXT) == 0) {
        return true;
      }
      if (desc.next >= entries) {
        break;
      }
      index = desc.next;
    }
    return fail(VXDP_DROP_BAD_CHAIN);
  }

  /// Copies a descriptor that may lie across two memory regions.
  bool fetch(std::uint64_t gpa, vring_desc& desc) noexcept {
    const auto whole = queue_.config_.memory->translate(gpa, sizeof desc);
    if (whole.size() == sizeof desc) [[likely]] {
      desc = read_once(reinterpret_cast<const vring_desc*>(whole.data()));
      return true;
    }
    auto* out = reinterpret_cast<std::byte*>(&desc);
    for (std::size_t done = 0; done < sizeof desc;) {
      const auto part = queue_.config_.memory->translate(gpa + done, sizeof desc - done);
      if (part.empty()) {
        return false;
      }
      std::memcpy(out + done, part.data(), part.size());
      done += part.size();
    }
    asm volatile("" ::: "memory");
    return true;
  }

  /// Adds a descriptor's buffer: one iovec, or one per region where it crosses some.
  bool append(const vring_desc& desc) noexcept {
    if (((desc.flags & VRING_DESC_F_WRITE) != 0) != (use_ == ChainUse::kDeviceWrites)) {
      return fail(VXDP_DROP_BAD_CHAIN);
    }
    std::uint64_t gpa = desc.addr;
    std::uint32_t bytes = desc.len;
    if (bytes == 0) {
      // CVE-2020-10725: an empty descriptor's address is checked like any other.
      return !queue_.config_.memory->translate(gpa, 1).empty() || fail(VXDP_DROP_BAD_ADDRESS);
    }
    while (bytes != 0) {
      const auto part = queue_.config_.memory->translate(gpa, bytes);
      if (part.empty()) {
        return fail(VXDP_DROP_BAD_ADDRESS);
      }
      if (chain_.segments == room_.size()) [[unlikely]] {
        chain_.no_room = true;
        return false;
      }
      room_[chain_.segments++] = {part.data(), part.size()};
      chain_.bytes += part.size();
      gpa += part.size();
      bytes -= static_cast<std::uint32_t>(part.size());
    }
    return true;
  }

  bool fail(vxdp_drop_reason reason) noexcept {
    chain_.verdict = reason;
    return false;
  }

  const SplitQueue& queue_;
  const ChainUse use_;
  const std::span<iovec> room_;
  Chain& chain_;
};

Chain SplitQueue::take(ChainUse use, std::span<iovec> room) noexcept {
  Chain chain;
  chain.head = load_relaxed(avail_ring_[next_avail_ & mask_]);
  if (chain.head >= config_.size) [[unlikely]] {
    set_broken();
    chain.verdict = VXDP_DROP_BAD_CHAIN;
    return chain;
  }
  Walk(*this, use, room, chain).run();
  if (!chain.no_room) {
    ++next_avail_;
  }
  return chain;
}

std::uint16_t SplitQueue::skip() noexcept {
  return load_relaxed(avail_ring_[next_avail_++ & mask_]) & mask_;
}

void SplitQueue::complete(std::uint16_t head, std::uint32_t written) noexcept {
  auto& entry = used_ring_[next_used_ & mask_];
  store_relaxed(entry.id, std::uint32_t{head});
  store_relaxed(entry.len, written);
  ++next_used_;
}

std::uint16_t SplitQueue::publish() noexcept {
  const auto fresh = static_cast<std::uint16_t>(next_used_ - published_used_);
  if (fresh != 0) {
    // Release: the entries must be visible before the index.
    store_release(used_->idx, next_used_);
    published_used_ = next_used_;
  }
  return fresh;
}

bool SplitQueue::wants_call() noexcept {
  // The index just published must be visible before the guest's wish is read, or both sides could sleep.
  // Source: virtio 1.2, 2.7.7.2.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool wanted = false;
  if (event_idx_) {
    // vring_need_event(): has the published index moved past the one the guest named?
    const auto since_event = static_cast<std::uint16_t>(published_used_ - load_relaxed(used_event()) - 1);
    const auto since_call = static_cast<std::uint16_t>(published_used_ - called_used_);
    wanted = call_due_ || since_event < since_call;
  } else {
    wanted = (load_relaxed(avail_->flags) & VRING_AVAIL_F_NO_INTERRUPT) == 0;
  }
  called_used_ = published_used_;
  call_due_ = false;
  return wanted;
}

bool SplitQueue::call() const noexcept {
  const std::uint64_t one = 1;
  return config_.call && ::write(config_.call.get(), &one, sizeof one) == sizeof one;
}

void SplitQueue::enable_kicks() noexcept {
  if (event_idx_) {
    store_relaxed(avail_event(), next_avail_);
  } else {
    store_relaxed(used_->flags, std::uint16_t{0});
  }
  // The request must be visible before the caller looks at the available index again.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void SplitQueue::disable_kicks() noexcept {
  if (!event_idx_) {  // with EVENT_IDX the old index, now behind, asks for none
    store_relaxed(used_->flags, std::uint16_t{VRING_USED_F_NO_NOTIFY});
  }
}

void SplitQueue::set_broken() noexcept {
  broken_ = true;
  const std::uint64_t one = 1;
  if (config_.err) {
    (void)!::write(config_.err.get(), &one, sizeof one);
  }
}

}  // namespace vxdp
