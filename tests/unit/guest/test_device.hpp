// SPDX-License-Identifier: Apache-2.0
// The device side of a split ring, written from the specification alone: checks the driver from outside.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include "vxdp/base/result.hpp"
#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp::testing {

/// The value of a Result that must have one.
template <typename T>
T value_of(Result<T> result) {
  if (!result) {
    throw std::runtime_error(result.error().what);
  }
  return std::move(*result);
}

/// A memory table as a back end sees it: its own mapping of the shared file.
class DeviceMemory {
 public:
  struct Region {
    std::uint64_t gpa, bytes, fva, file_offset;
  };
  DeviceMemory() = default;
  DeviceMemory(int fd, std::vector<Region> regions) : regions_(std::move(regions)) {
    for (const Region& region : regions_) {
      size_ = std::max(size_, region.file_offset + region.bytes);
    }
    void* mapped = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
      throw std::runtime_error("mmap");
    }
    base_ = static_cast<std::byte*>(mapped);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(regions_, other.regions_);
    std::swap(base_, other.base_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceMemory() {
    if (base_ != nullptr) {
      ::munmap(base_, size_);
    }
  }

  std::byte* at_gpa(std::uint64_t gpa, std::uint64_t bytes) const { return at(gpa, bytes, &Region::gpa); }
  std::byte* at_fva(std::uint64_t fva, std::uint64_t bytes) const { return at(fva, bytes, &Region::fva); }

 private:
  std::byte* at(std::uint64_t address, std::uint64_t bytes, std::uint64_t Region::*start) const {
    for (const Region& region : regions_) {
      if (address >= region.*start && address - region.*start + bytes <= region.bytes) {
        return base_ + region.file_offset + (address - region.*start);
      }
    }
    throw std::runtime_error("address outside of guest memory");
  }
  std::vector<Region> regions_;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
};

class TestDevice {
 public:
  struct Piece {
    std::span<std::byte> bytes;
    bool writable;
  };
  struct Chain {
    std::uint16_t head = 0;
    std::vector<Piece> pieces;

    std::size_t bytes() const {
      std::size_t sum = 0;
      for (const Piece& piece : pieces) {
        sum += piece.bytes.size();
      }
      return sum;
    }
    std::vector<std::byte> read() const {
      std::vector<std::byte> all;
      for (const Piece& piece : pieces) {
        all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
      }
      return all;
    }
    /// Writes as much as fits; returns how much.
    std::size_t write(std::span<const std::byte> from) const {
      std::size_t done = 0;
      for (const Piece& piece : pieces) {
        const std::size_t n = std::min(piece.bytes.size(), from.size() - done);
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(done), n, piece.bytes.begin());
        done += n;
      }
      return done;
    }
  };

  TestDevice(const DeviceMemory& memory, std::uint16_t size, std::uint64_t desc_fva, std::uint64_t avail_fva,
             std::uint64_t used_fva, std::uint16_t base, bool event_idx)
      : memory_(memory), size_(size), next_(base), used_idx_(base), event_idx_(event_idx) {
    desc_ = reinterpret_cast<vring_desc*>(memory.at_fva(desc_fva, size * 16U));
    avail_ = reinterpret_cast<std::uint16_t*>(memory.at_fva(avail_fva, size * 2U + 6));
    used_ = memory.at_fva(used_fva, size * 8U + 6);
  }

  std::uint16_t available() const {
    return static_cast<std::uint16_t>(std::atomic_ref(avail_[1]).load(std::memory_order_acquire) - next_);
  }
  std::uint16_t next() const { return next_; }
  std::uint16_t avail_flags() const { return std::atomic_ref(avail_[0]).load(); }
  std::uint16_t used_event() const { return std::atomic_ref(avail_[2 + size_]).load(); }
  void set_avail_event(std::uint16_t value) {
    std::atomic_ref(*reinterpret_cast<std::uint16_t*>(used_ + 4 + size_ * 8U)).store(value);
  }
  void set_used_flags(std::uint16_t value) { std::atomic_ref(*reinterpret_cast<std::uint16_t*>(used_)).store(value); }

  /// Takes the next chain; available() must not be 0.
  Chain pop() {
    Chain chain;
    chain.head = avail_[2 + next_ % size_];
    ++next_;
    const vring_desc* table = desc_;
    std::uint16_t i = chain.head;
    if ((table[i].flags & VRING_DESC_F_INDIRECT) != 0) {
      table = reinterpret_cast<const vring_desc*>(memory_.at_gpa(table[i].addr, table[i].len));
      i = 0;
    }
    while (chain.pieces.size() <= size_) {
      chain.pieces.push_back(
          {{memory_.at_gpa(table[i].addr, table[i].len), table[i].len}, (table[i].flags & VRING_DESC_F_WRITE) != 0});
      if ((table[i].flags & VRING_DESC_F_NEXT) == 0) {
        return chain;
      }
      i = table[i].next;
    }
    throw std::runtime_error("a chain without end");
  }
  /// Adds a used element; publish() shows it.
  void push(std::uint32_t id, std::uint32_t bytes) {
    const vring_used_elem element{id, bytes};
    std::memcpy(used_ + 4 + used_idx_ % size_ * 8U, &element, sizeof element);
    ++used_idx_;
  }
  /// Returns whether the driver wants a call for it.
  bool publish() {
    std::atomic_ref(*reinterpret_cast<std::uint16_t*>(used_ + 2)).store(used_idx_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::uint16_t before = published_once_ ? published_ : static_cast<std::uint16_t>(used_idx_ - 1);
    published_ = used_idx_;
    published_once_ = true;
    if (!event_idx_) {
      return (avail_flags() & VRING_AVAIL_F_NO_INTERRUPT) == 0;
    }
    return static_cast<std::uint16_t>(used_idx_ - used_event() - 1) < static_cast<std::uint16_t>(used_idx_ - before);
  }
  void jump_used_index(std::uint16_t by) { used_idx_ = static_cast<std::uint16_t>(used_idx_ + by); }

 private:
  const DeviceMemory& memory_;
  std::uint16_t size_;
  std::uint16_t next_;
  std::uint16_t used_idx_;
  std::uint16_t published_ = 0;
  bool published_once_ = false;
  bool event_idx_;
  vring_desc* desc_;
  std::uint16_t* avail_;
  std::byte* used_;
};

}  // namespace vxdp::testing
