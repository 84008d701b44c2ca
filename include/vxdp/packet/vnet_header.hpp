// SPDX-License-Identifier: Apache-2.0
// Checks of the virtio-net header a guest put in front of a frame.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {

constexpr std::uint32_t kEthernetHeaderBytes = 14;

/// Bytes of the header for these acknowledged features: 12, or 10 for a driver from before VERSION_1.
/// Source: virtio 1.2, 5.1.6.1.
constexpr std::uint32_t vnet_header_bytes(std::uint64_t features) noexcept {
  return (features & (feature_bit(VIRTIO_F_VERSION_1) | feature_bit(VIRTIO_NET_F_MRG_RXBUF))) != 0 ? 12 : 10;
}

/// Whether `header` may stand before a frame of `frame_bytes` from a guest that acknowledged `features`:
/// checksum and segmentation only as negotiated, offsets inside the frame, segment size not 0.
/// Source: virtio 1.2, 5.1.6.2; include/linux/virtio_net.h virtio_net_hdr_to_skb().
[[nodiscard]] bool vnet_header_valid(const VnetHeader& header, std::uint32_t frame_bytes,
                                     std::uint64_t features) noexcept;

/// Adds the checksum that `header` asks for into the contiguous `frame` and clears the request.
/// `header` must be valid for the frame (vnet_header_valid) and have no segmentation.
void finish_checksum(VnetHeader& header, std::byte* frame, std::size_t frame_bytes) noexcept;

}  // namespace vxdp
