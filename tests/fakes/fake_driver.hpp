// SPDX-License-Identifier: Apache-2.0
// The guest's side of one split ring, in real shared memory, as hostile as a test wants it.
#pragma once

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "vxdp/base/virtio_uapi.hpp"
#include "vxdp/virtqueue/vring_config.hpp"

namespace vxdp::testing {

constexpr std::uint64_t kDefaultFeatures = feature_bit(VIRTIO_F_VERSION_1);

class FakeDriver {
 public:
  static constexpr std::uint64_t kRegionBytes = 4 << 20;
  static constexpr std::uint64_t kBuffers = 1 << 20;  // gpa from which tests place their buffers
  static constexpr std::uint64_t kFvaBase = 0x7f00'0000'0000;

  /// Two memory regions, neighbours in gpa but not in our address space.
  explicit FakeDriver(std::uint16_t size, std::uint64_t features = kDefaultFeatures, std::uint16_t first_index = 0)
      : size_(size), features_(features), first_index_(first_index), avail_index_(first_index) {
    std::vector<RegionRequest> regions;
    for (std::uint64_t i = 0; i < 2; ++i) {
      Fd fd(::memfd_create("fake-guest", MFD_CLOEXEC));
      if (::ftruncate(fd.get(), kRegionBytes) != 0) {
        std::abort();
      }
      // The first region ends where the second begins, in gpa; their fva have a hole between them.
      regions.push_back({.gpa = i * kRegionBytes,
                         .bytes = kRegionBytes,
                         .fva = kFvaBase + i * 2 * kRegionBytes,
                         .mmap_offset = 0,
                         .fd = fd.duplicate()});
      files_.push_back(std::move(fd));
    }
    memory_ = *GuestMemory::map(std::move(regions));
    *avail_word(1) = first_index;
    *used_word(1) = first_index;
  }

  /// An empty ring again, at its first index; descriptors and buffers keep what they hold.
  void reset() {
    set_avail_index(first_index_);
    *used_word(1) = first_index_;
  }

  VringConfig config() {
    VringConfig config;
    config.memory = memory_;
    config.features = features_;
    config.size = size_;
    config.desc_fva = kFvaBase + kDesc;
    config.avail_fva = kFvaBase + kAvail;
    config.used_fva = kFvaBase + kUsed;
    config.next_avail = first_index_;
    config.kick = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    config.call = call_.duplicate();
    config.err = err_.duplicate();
    return config;
  }

  [[nodiscard]] const std::shared_ptr<const GuestMemory>& memory() const { return memory_; }
  [[nodiscard]] int file(std::size_t region) const { return files_[region].get(); }
  [[nodiscard]] std::byte* at(std::uint64_t gpa) { return memory_->translate(gpa, 1).data(); }
  void write(std::uint64_t gpa, const std::string& bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      *at(gpa + i) = static_cast<std::byte>(bytes[i]);
    }
  }
  [[nodiscard]] std::string read(std::uint64_t gpa, std::size_t bytes) {
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i) {
      text.push_back(static_cast<char>(*at(gpa + i)));
    }
    return text;
  }

  void set_desc(std::uint16_t index, const vring_desc& desc) {
    std::memcpy(at(kDesc) + index * sizeof desc, &desc, sizeof desc);
  }
  /// A descriptor in an indirect table at `table` (gpa), which may lie across regions.
  void set_table_desc(std::uint64_t table, std::uint16_t index, const vring_desc& desc) {
    write(table + index * sizeof desc, std::string(reinterpret_cast<const char*>(&desc), sizeof desc));
  }
  void make_available(std::uint16_t head) {
    *avail_word(2 + (avail_index_ & (size_ - 1))) = head;
    set_avail_index(static_cast<std::uint16_t>(avail_index_ + 1));
  }
  void set_avail_index(std::uint16_t index) {
    avail_index_ = index;
    __atomic_store_n(avail_word(1), index, __ATOMIC_RELEASE);
  }
  void set_avail_flags(std::uint16_t flags) { *avail_word(0) = flags; }
  void set_used_event(std::uint16_t index) { *avail_word(2U + size_) = index; }
  [[nodiscard]] std::uint16_t avail_event() { return *reinterpret_cast<std::uint16_t*>(at(kUsed) + 4 + size_ * 8U); }
  [[nodiscard]] std::uint16_t used_flags() { return *used_word(0); }
  [[nodiscard]] std::uint16_t used_index() { return __atomic_load_n(used_word(1), __ATOMIC_ACQUIRE); }
  [[nodiscard]] vring_used_elem used(std::uint16_t index) {
    vring_used_elem elem;
    std::memcpy(&elem, at(kUsed) + 4 + (index & (size_ - 1)) * sizeof elem, sizeof elem);
    return elem;
  }
  [[nodiscard]] bool called() { return drain(call_); }
  [[nodiscard]] bool error_signalled() { return drain(err_); }

 private:
  static constexpr std::uint64_t kDesc = 0;  // 32768 x 16 bytes
  static constexpr std::uint64_t kAvail = 512 << 10;
  static constexpr std::uint64_t kUsed = 640 << 10;

  static bool drain(const Fd& event) {
    std::uint64_t count = 0;
    return ::read(event.get(), &count, sizeof count) == sizeof count;
  }
  std::uint16_t* avail_word(std::size_t index) { return reinterpret_cast<std::uint16_t*>(at(kAvail)) + index; }
  std::uint16_t* used_word(std::size_t index) { return reinterpret_cast<std::uint16_t*>(at(kUsed)) + index; }

  std::uint16_t size_;
  std::uint64_t features_;
  std::uint16_t first_index_;
  std::uint16_t avail_index_;
  std::vector<Fd> files_;
  std::shared_ptr<const GuestMemory> memory_;
  Fd call_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  Fd err_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
};

}  // namespace vxdp::testing
