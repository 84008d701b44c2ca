// SPDX-License-Identifier: Apache-2.0
#include "guest/guest_ram.hpp"

#include <fcntl.h>
#include <sys/mman.h>

namespace vxdp {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kFirstGpa = 0x1'0000'0000;
constexpr std::uint64_t kHoleBytes = 0x1000'0000;  // between two regions
// Not our own addresses: a back end that takes a front-end address for a guest-physical one must fail.
constexpr std::uint64_t kFirstFva = 0x7e00'0000'0000;

}  // namespace

Result<GuestRam> GuestRam::create(std::uint64_t bytes, unsigned regions) {
  if (regions < 1 || regions > 8 || bytes == 0) {
    return invalid("guest memory needs 1 to 8 regions");
  }
  const std::uint64_t region_bytes = ((bytes + regions - 1) / regions + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::uint64_t file_bytes = region_bytes * regions;
  GuestRam ram;
  ram.memory_ = Fd(::memfd_create("vhost-xdp-guest", MFD_CLOEXEC));
  if (!ram.memory_) {
    return errno_error("create", "guest memory");
  }
  // fallocate, not ftruncate: too little memory is an error here instead of SIGBUS later.
  if (::fallocate(ram.memory_.get(), 0, 0, static_cast<off_t>(file_bytes)) != 0) {
    return errno_error("allocate", "guest memory");
  }
  Result<Mapping> mapping = Mapping::shared_file(ram.memory_.get(), file_bytes, 0);
  if (!mapping) {
    return mapping.error();
  }
  ram.mapping_ = std::move(*mapping);
  for (unsigned i = 0; i < regions; ++i) {
    ram.regions_.push_back(
        {kFirstGpa + i * (region_bytes + kHoleBytes), region_bytes, kFirstFva + i * region_bytes, i * region_bytes});
  }
  ram.taken_bytes_.resize(regions);
  return ram;
}

GuestRam::Block GuestRam::allocate(std::uint64_t bytes, std::uint64_t alignment) noexcept {
  for (std::size_t tried = 0; tried < regions_.size(); ++tried) {
    const std::size_t i = next_region_++ % regions_.size();
    const std::uint64_t start = (taken_bytes_[i] + alignment - 1) & ~(alignment - 1);
    if (start + bytes <= regions_[i].bytes) {
      taken_bytes_[i] = start + bytes;
      return {mapping_.data() + regions_[i].file_offset + start, regions_[i].gpa + start};
    }
  }
  return {};
}

std::uint64_t GuestRam::fva(const void* data) const noexcept {
  return kFirstFva + static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - mapping_.data());
}

}  // namespace vxdp
