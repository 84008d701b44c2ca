// SPDX-License-Identifier: Apache-2.0
// The one includer of the kernel's virtio, TUN and vhost headers. linux/virtio_net.h names a field
// `class`, and Debian 12's headers lack the UDP segmentation bits; both are mended here and nowhere else.
#pragma once

#include <linux/if_tun.h>
#include <linux/virtio_config.h>
#define VIRTIO_RING_NO_LEGACY  // its inline functions are not C++
#include <linux/virtio_ring.h>
#undef VIRTIO_RING_NO_LEGACY

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wkeyword-macro"
#endif
#define class class_
#include <linux/virtio_net.h>
#undef class
#ifdef __clang__
#pragma clang diagnostic pop
#endif

#include <cstdint>

#ifndef VIRTIO_NET_F_GUEST_USO4
#define VIRTIO_NET_F_GUEST_USO4 54
#define VIRTIO_NET_F_GUEST_USO6 55
#define VIRTIO_NET_F_HOST_USO 56
#endif
#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif
#ifndef TUN_F_USO4
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

namespace vxdp {

/// The header in front of each frame in a guest's buffers: 12 bytes with VERSION_1 or MRG_RXBUF,
/// else the first 10 of them. Source: virtio 1.2, 5.1.6.
using VnetHeader = virtio_net_hdr_mrg_rxbuf;
static_assert(sizeof(VnetHeader) == 12);
static_assert(sizeof(vring_desc) == 16 && sizeof(vring_used_elem) == 8);

/// The bit of virtio feature number `feature`.
constexpr std::uint64_t feature_bit(unsigned feature) noexcept {
  return std::uint64_t{1} << feature;
}

/// VHOST_USER_F_PROTOCOL_FEATURES, a bit of the virtio feature word that only vhost-user uses.
constexpr unsigned kVhostUserFProtocolFeatures = 30;

}  // namespace vxdp
