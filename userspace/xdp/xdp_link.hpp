// SPDX-License-Identifier: Apache-2.0
// The bpf_link that ties a program to an interface. It dies with the process, so a crash leaves nothing attached.
#pragma once

#include <string>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"

namespace vxdp {

class XdpLink {
 public:
  XdpLink() = default;
  XdpLink(XdpLink&&) noexcept = default;
  XdpLink& operator=(XdpLink&& other) noexcept;
  ~XdpLink() { detach(); }

  /// Attaches program `program_fd` in native mode, or in generic mode where the driver refuses native.
  /// Errors: no such interface, another program on it (EBUSY, names its id), no privilege.
  static Result<XdpLink> create(int ifindex, int program_fd);

  /// Puts `program_fd` in the place of the attached program in one step; on error that one stays.
  Result<> update(int program_fd);

  /// Whether the interface still exists with this link on it.
  [[nodiscard]] bool alive() const noexcept;
  [[nodiscard]] int ifindex() const noexcept { return ifindex_; }
  /// Why the mode is generic; empty in native mode.
  [[nodiscard]] const std::string& generic_reason() const noexcept { return generic_reason_; }

 private:
  void detach() noexcept;

  Fd link_;
  int ifindex_ = 0;
  std::string interface_;
  std::string generic_reason_;
};

}  // namespace vxdp
