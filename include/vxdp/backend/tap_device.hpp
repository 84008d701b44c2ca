// SPDX-License-Identifier: Apache-2.0
// A TAP interface: opened or created, one descriptor a queue, offloads as the guest acknowledged them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"

namespace vxdp {

/// Control thread. Destroying it closes the queues; an interface made here goes with the last of them.
class TapDevice {
 public:
  /// Opens interface `name`, or creates it and sets it up, with `queues` non-blocking descriptors.
  /// Errors: no privilege, not a TAP, other flags, in use.
  static Result<TapDevice> open(const std::string& name, unsigned queues);
  /// Takes already open TAP descriptors (duplicated), one a queue.
  static Result<TapDevice> adopt(const std::vector<int>& fds);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] int ifindex() const noexcept { return ifindex_; }
  [[nodiscard]] unsigned queues() const noexcept { return static_cast<unsigned>(queues_.size()); }
  [[nodiscard]] const Fd& queue(unsigned index) const noexcept { return queues_[index]; }
  /// Whether the kernel's TAP segments UDP (Linux 6.2).
  [[nodiscard]] bool has_uso() const noexcept { return has_uso_; }
  [[nodiscard]] bool up() const;
  [[nodiscard]] bool exists() const;

  /// Lets the host hand the guest what these acknowledged features allow. Source: tun.c set_offload().
  Result<> set_offloads(std::uint64_t features);
  Result<> set_header_bytes(unsigned bytes);
  Result<> set_mtu(std::uint16_t mtu);
  /// The MTU now, or 1500 if it cannot be read.
  [[nodiscard]] std::uint32_t mtu() const;
  /// Whether the link has a carrier: a guest is there.
  void set_carrier(bool on) noexcept;
  /// Whether the host may choose `queue` for frames to the guest. No effect on a single-queue device.
  void set_queue_attached(unsigned queue, bool attached) noexcept;

 private:
  TapDevice() = default;
  Result<> finish_open();
  std::string name_;
  int ifindex_ = 0;
  std::vector<Fd> queues_;
  std::vector<bool> attached_;
  bool multi_queue_ = false;
  bool has_uso_ = false;
};

}  // namespace vxdp
