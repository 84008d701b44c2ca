// SPDX-License-Identifier: Apache-2.0
#include "vxdp/base/mapping.hpp"

#include <sys/mman.h>

namespace vxdp {

Mapping::~Mapping() {
  if (address_ != nullptr) {
    ::munmap(address_, bytes_);
  }
}

Result<Mapping> Mapping::shared_file(int fd, std::size_t bytes, std::uint64_t offset) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) {
    return errno_error("map", "a shared file");
  }
  return Mapping(static_cast<std::byte*>(address), bytes);
}

Result<Mapping> Mapping::anonymous(std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return errno_error("map", "private memory");
  }
  return Mapping(static_cast<std::byte*>(address), bytes);
}

}  // namespace vxdp
