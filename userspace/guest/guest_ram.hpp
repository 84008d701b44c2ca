// SPDX-License-Identifier: Apache-2.0
// The built-in guest's memory: one memfd, shown to the back end as one or several regions with holes between
// their guest-physical addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/mapping.hpp"
#include "vxdp/base/result.hpp"

namespace vxdp {

class GuestRam {
 public:
  struct Region {
    std::uint64_t gpa = 0;
    std::uint64_t bytes = 0;
    std::uint64_t fva = 0;
    std::uint64_t file_offset = 0;
  };
  /// Memory inside one region; `data` is null when no region had room.
  struct Block {
    std::byte* data = nullptr;
    std::uint64_t gpa = 0;
  };

  /// Memory of at least `bytes`, really allocated, in `regions` (1 .. 8) equal regions.
  static Result<GuestRam> create(std::uint64_t bytes, unsigned regions = 1);

  /// A zeroed block of `bytes` at a multiple of `alignment` (a power of two). Consecutive blocks come from
  /// consecutive regions, so that a ring's buffers are spread over all of them.
  Block allocate(std::uint64_t bytes, std::uint64_t alignment) noexcept;

  /// The front-end virtual address of `data`, which must lie in a block.
  [[nodiscard]] std::uint64_t fva(const void* data) const noexcept;
  [[nodiscard]] const std::vector<Region>& regions() const noexcept { return regions_; }
  [[nodiscard]] int fd() const noexcept { return memory_.get(); }

 private:
  Fd memory_;
  Mapping mapping_;
  std::vector<Region> regions_;
  std::vector<std::uint64_t> taken_bytes_;  // of each region
  std::size_t next_region_ = 0;
};

}  // namespace vxdp
