// SPDX-License-Identifier: Apache-2.0
// One vring as a session knows it, and where its parts lie in guest memory.
#pragma once

#include <cstdint>
#include <optional>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/memory/guest_memory.hpp"

namespace vxdp {

struct VringAddresses {
  std::uint64_t desc_fva;
  std::uint64_t avail_fva;
  std::uint64_t used_fva;
};

struct Vring {
  std::uint16_t size = 0;  // descriptors; 0: not told yet
  std::optional<VringAddresses> addresses;
  std::uint16_t next_avail = 0;
  bool next_avail_known = false;  // told by SET_VRING_BASE, or the vring has run
  bool started = false;           // SET_VRING_KICK came, with or without descriptor, and no GET_VRING_BASE since
  bool enabled = false;
  bool was_enabled = false;
  bool running = false;  // the device has it
  Fd kick, call, err;
};

/// Checks that each part of `vring` (size and addresses set) is aligned and lies whole in one region of
/// `memory`; returns the index its device last published, read from the guest's used ring.
/// Errors: one sentence that names the part. Source: virtio 1.2, 2.7 (sizes and alignment).
Result<std::uint16_t> check_layout(const GuestMemory& memory, const Vring& vring);

}  // namespace vxdp
