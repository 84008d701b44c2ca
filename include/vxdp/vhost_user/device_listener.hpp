// SPDX-License-Identifier: Apache-2.0
// What a vhost-user session asks of the device behind it. All calls come on the control thread.
#pragma once

#include <cstdint>
#include <memory>

#include "vxdp/base/result.hpp"
#include "vxdp/virtqueue/vring_config.hpp"

namespace vxdp {

class DeviceListener {
 public:
  virtual ~DeviceListener() = default;

  /// virtio feature bits offered, VHOST_USER_F_PROTOCOL_FEATURES included.
  [[nodiscard]] virtual std::uint64_t features() const = 0;
  /// Highest vring index accepted plus one: 2 x queue pairs.
  [[nodiscard]] virtual unsigned vring_limit() const = 0;
  /// MTU announced or 0.
  [[nodiscard]] virtual std::uint16_t mtu() const = 0;

  /// The features the driver acknowledged; a subset of features(). No vring runs.
  virtual Result<> set_features(std::uint64_t acknowledged) = 0;
  /// A new memory table, before any vring starts with it. No vring runs.
  virtual Result<> set_memory(std::shared_ptr<const GuestMemory> memory) = 0;
  /// Starts vring `index` (even = to_guest, odd = from_guest). An error closes the session.
  virtual Result<> start_vring(unsigned index, VringConfig config) = 0;
  /// Stops a running vring; when it returns nothing of the guest is touched any more on its behalf.
  /// Returns the next available index. The session then drops its own references.
  virtual std::uint16_t stop_vring(unsigned index) = 0;
  /// Front-end set the MTU the driver will use (VHOST_USER_NET_SET_MTU).
  virtual Result<> set_mtu(std::uint16_t mtu) = 0;
  /// VHOST_USER_SEND_RARP: announce this MAC (6 bytes) on the network.
  virtual void send_rarp(const std::uint8_t* mac) = 0;
};

}  // namespace vxdp
