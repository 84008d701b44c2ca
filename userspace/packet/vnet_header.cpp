// SPDX-License-Identifier: Apache-2.0
#include "vxdp/packet/vnet_header.hpp"

#include <cstring>

namespace vxdp {
namespace {

bool has(std::uint64_t features, unsigned feature) {
  return (features & feature_bit(feature)) != 0;
}

bool segmentation_negotiated(std::uint8_t gso_type, std::uint64_t features) {
  if ((gso_type & VIRTIO_NET_HDR_GSO_ECN) != 0 && !has(features, VIRTIO_NET_F_HOST_ECN)) {
    return false;
  }
  switch (gso_type & ~VIRTIO_NET_HDR_GSO_ECN) {
    case VIRTIO_NET_HDR_GSO_TCPV4:
      return has(features, VIRTIO_NET_F_HOST_TSO4);
    case VIRTIO_NET_HDR_GSO_TCPV6:
      return has(features, VIRTIO_NET_F_HOST_TSO6);
    case VIRTIO_NET_HDR_GSO_UDP_L4:
      return has(features, VIRTIO_NET_F_HOST_USO) && (gso_type & VIRTIO_NET_HDR_GSO_ECN) == 0;
    default:
      return false;
  }
}

/// The Internet checksum's sum over `bytes` at `data`, not folded. Source: RFC 1071.
std::uint64_t sum_words(const std::byte* data, std::size_t bytes) {
  std::uint64_t sum = 0;
  for (; bytes >= 4; data += 4, bytes -= 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, data, 4);
    sum += word;
  }
  if (bytes != 0) {
    std::uint32_t word = 0;  // padded with zeros behind, as the RFC asks
    std::memcpy(&word, data, bytes);
    sum += word;
  }
  return sum;
}

std::uint16_t fold(std::uint64_t sum) {
  while ((sum >> 16) != 0) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<std::uint16_t>(sum);
}

}  // namespace

bool vnet_header_valid(const VnetHeader& header, std::uint32_t frame_bytes, std::uint64_t features) noexcept {
  const auto& hdr = header.hdr;
  if ((hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) != 0) {
    const std::uint32_t field = std::uint32_t{hdr.csum_start} + hdr.csum_offset;
    if (!has(features, VIRTIO_NET_F_CSUM) || field + 2 > frame_bytes || hdr.csum_start < kEthernetHeaderBytes) {
      return false;
    }
  }
  if (hdr.gso_type != VIRTIO_NET_HDR_GSO_NONE &&
      (!segmentation_negotiated(hdr.gso_type, features) || hdr.gso_size == 0)) {
    return false;
  }
  return hdr.hdr_len <= frame_bytes;  // tun.c refuses more, with or without segmentation
}

void finish_checksum(VnetHeader& header, std::byte* frame, std::size_t frame_bytes) noexcept {
  auto& hdr = header.hdr;
  if ((hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) == 0) {
    return;
  }
  // The field holds the pseudo-header's sum already, so summing from csum_start includes it.
  auto checksum = static_cast<std::uint16_t>(~fold(sum_words(frame + hdr.csum_start, frame_bytes - hdr.csum_start)));
  constexpr std::uint16_t kUdpChecksumOffset = 6;
  if (checksum == 0 && hdr.csum_offset == kUdpChecksumOffset) {
    checksum = 0xffff;  // 0 means "no checksum" in UDP; in one's complement both are zero
  }
  std::memcpy(frame + hdr.csum_start + hdr.csum_offset, &checksum, sizeof checksum);
  hdr.flags = 0;
  hdr.csum_start = hdr.csum_offset = 0;
}

}  // namespace vxdp
