// SPDX-License-Identifier: Apache-2.0
// Everything that starts one vring.
#pragma once

#include <cstdint>
#include <memory>

#include "vxdp/base/fd.hpp"
#include "vxdp/memory/guest_memory.hpp"

namespace vxdp {

struct VringConfig {
  std::shared_ptr<const GuestMemory> memory;
  std::uint64_t features = 0;  // acknowledged virtio features
  std::uint16_t size = 0;      // descriptors; a power of two, 1 .. 32768
  std::uint64_t desc_fva = 0;  // front-end virtual addresses
  std::uint64_t avail_fva = 0;
  std::uint64_t used_fva = 0;
  std::uint16_t next_avail = 0;  // where to go on reading
  Fd kick;                       // empty: the guest's ring must be polled
  Fd call;                       // empty: the guest polls
  Fd err;                        // written when the ring is found broken; may be empty
  bool discard = false;          // from_guest: give frames back unsent, the ring was switched off
};

}  // namespace vxdp
