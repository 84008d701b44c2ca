// SPDX-License-Identifier: Apache-2.0
// One frame on its way from a guest: the user-space sibling of the kernel's struct xdp_buff
// (include/net/xdp.h). It points into guest memory; only the virtio-net header is a private copy.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "vxdp/abi/drop_reasons.h"
#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {

struct XdpBuff {
  std::byte* data = nullptr;      // first byte of the frame
  std::byte* data_end = nullptr;  // end of its linear part
  const iovec* iov = nullptr;     // the private header, the linear part, then fragments: ready for writev
  std::uint16_t iov_count = 0;    // 2 when there are no fragments
  std::uint16_t chain = 0;        // position of its chain in the batch
  std::uint32_t frame_bytes = 0;  // linear part and fragments, header excluded
  VnetHeader header{};            // read once from the guest, checked
  bool header_in_front = false;   // the guest's own header lies in memory right before `data`
  bool alone = false;             // must not share a batch with others
  std::uint16_t error = 0;        // set by the backend: 0, or the errno of this frame

  [[nodiscard]] std::uint32_t linear_bytes() const noexcept { return static_cast<std::uint32_t>(data_end - data); }
};
static_assert(sizeof(XdpBuff) <= 64, "one cache line a frame");

}  // namespace vxdp
