// SPDX-License-Identifier: Apache-2.0
#include "vring.hpp"

#include <fmt/core.h>

#include <atomic>
#include <cstddef>
#include <string_view>

#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {
namespace {

Result<std::byte*> find_part(const GuestMemory& memory, std::string_view part, std::uint64_t fva, std::uint64_t bytes,
                             std::uint64_t alignment) {
  std::byte* host = memory.translate_fva(fva, bytes);
  if (host == nullptr) {
    return invalid(fmt::format("the {} of {} bytes at {:#x} does not lie in one memory region", part, bytes, fva));
  }
  // Ours must be aligned because it is read with atomics, theirs because virtio says so; a front-end that
  // shares memory at odd offsets can make them differ.
  if (((fva | reinterpret_cast<std::uintptr_t>(host)) & (alignment - 1)) != 0) {
    return invalid(fmt::format("the {} at {:#x} is not aligned to {} bytes", part, fva, alignment));
  }
  return host;
}

}  // namespace

Result<std::uint16_t> check_layout(const GuestMemory& memory, const Vring& vring) {
  const std::uint64_t entries = vring.size;
  // Both rings end with the field of VIRTIO_F_EVENT_IDX, acknowledged or not.
  const std::uint64_t desc_bytes = entries * sizeof(vring_desc);
  const std::uint64_t avail_bytes = offsetof(vring_avail, ring) + (entries + 1) * sizeof(std::uint16_t);
  const std::uint64_t used_bytes =
      offsetof(vring_used, ring) + entries * sizeof(vring_used_elem) + sizeof(std::uint16_t);
  if (auto desc = find_part(memory, "descriptor table", vring.addresses->desc_fva, desc_bytes, 16); !desc) {
    return desc.error();
  }
  if (auto avail = find_part(memory, "available ring", vring.addresses->avail_fva, avail_bytes, 2); !avail) {
    return avail.error();
  }
  const auto used = find_part(memory, "used ring", vring.addresses->used_fva, used_bytes, 4);
  if (!used) {
    return used.error();
  }
  auto& used_index = *reinterpret_cast<std::uint16_t*>(*used + offsetof(vring_used, idx));
  return std::atomic_ref(used_index).load(std::memory_order_relaxed);
}

}  // namespace vxdp
