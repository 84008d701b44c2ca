// SPDX-License-Identifier: Apache-2.0
// Owning memory mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "vxdp/base/result.hpp"

namespace vxdp {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  /// Maps `bytes` of `fd` from `offset` (a multiple of the page size), shared, readable and writable.
  static Result<Mapping> shared_file(int fd, std::size_t bytes, std::uint64_t offset);
  /// Maps `bytes` of zeroed private memory.
  static Result<Mapping> anonymous(std::size_t bytes);

  [[nodiscard]] std::byte* data() const noexcept { return address_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

 private:
  Mapping(std::byte* address, std::size_t bytes) noexcept : address_(address), bytes_(bytes) {}
  std::byte* address_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace vxdp
