// SPDX-License-Identifier: Apache-2.0
// Guest memory as the front-end shared it: an immutable table of mapped regions. A new memory table is a
// new GuestMemory; the last holder unmaps the old one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/mapping.hpp"
#include "vxdp/base/result.hpp"

namespace vxdp {

/// One region as SET_MEM_TABLE describes it. gpa = guest-physical, fva = front-end virtual.
struct RegionRequest {
  std::uint64_t gpa = 0;
  std::uint64_t bytes = 0;
  std::uint64_t fva = 0;
  std::uint64_t mmap_offset = 0;  // bytes into the file
  Fd fd;
};

class GuestMemory {
 public:
  static constexpr std::size_t kMaxRegions = 8;

  struct Region {
    std::uint64_t gpa;
    std::uint64_t bytes;
    std::uint64_t fva;
    std::byte* host;
  };

  /// Maps every region.
  /// Errors: no region or more than 8, a size of 0, wrap-around, overlapping gpa or fva, a file that is
  /// shorter than its region, mmap refused. Source: vhost-user specification, "Memory region description".
  static Result<std::shared_ptr<const GuestMemory>> map(std::vector<RegionRequest> requests);
  ~GuestMemory();
  GuestMemory(const GuestMemory&) = delete;
  GuestMemory& operator=(const GuestMemory&) = delete;

  /// The longest contiguous part of [gpa, gpa + bytes) that begins at gpa: shorter than `bytes` where the
  /// range goes on in another region, empty where gpa is unmapped. `bytes` >= 1. Any thread.
  [[nodiscard]] std::span<std::byte> translate(std::uint64_t gpa, std::uint64_t bytes) const noexcept {
    for (const auto& region : regions_) {
      const std::uint64_t offset = gpa - region.gpa;  // wraps to something huge when gpa lies below
      if (offset < region.bytes) {
        return {region.host + offset, bytes < region.bytes - offset ? bytes : region.bytes - offset};
      }
    }
    return {};
  }
  /// Exactly `bytes` at front-end virtual address `fva`, or nullptr.
  [[nodiscard]] std::byte* translate_fva(std::uint64_t fva, std::uint64_t bytes) const noexcept;

  [[nodiscard]] std::span<const Region> regions() const noexcept { return regions_; }
  /// True once an access found a region's file shorter than promised: its pages are zeros of ours now and
  /// the port must stop. Any thread.
  [[nodiscard]] bool poisoned() const noexcept { return poisoned_.load(std::memory_order_relaxed); }

 private:
  GuestMemory() = default;
  std::vector<Region> regions_;
  std::vector<Mapping> mappings_;
  mutable std::atomic<bool> poisoned_{false};
};

}  // namespace vxdp
