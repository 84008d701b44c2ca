// SPDX-License-Identifier: Apache-2.0
#include "xdp_link.hpp"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/core.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <cstdint>
#include <utility>

#include "libbpf_error.hpp"
#include "vxdp/base/log.hpp"

namespace vxdp {
namespace {

/// The link's descriptor, or a negative errno.
int create_link(int ifindex, int program_fd, std::uint32_t mode) noexcept {
  LIBBPF_OPTS(bpf_link_create_opts, options, .flags = mode);
  return bpf_link_create(program_fd, ifindex, BPF_XDP, &options);
}

/// The id of any program on the interface, 0 if there is none.
std::uint32_t attached_program(int ifindex) noexcept {
  LIBBPF_OPTS(bpf_xdp_query_opts, found);
  if (bpf_xdp_query(ifindex, 0, &found) != 0) {
    return 0;
  }
  for (const std::uint32_t id : {found.prog_id, found.drv_prog_id, found.skb_prog_id, found.hw_prog_id}) {
    if (id != 0) {
      return id;
    }
  }
  return 0;
}

Error foreign_program(const std::string& interface, std::uint32_t id) {
  return {std::make_error_code(std::errc::device_or_resource_busy),
          fmt::format("interface {} already has an XDP program of someone else (id {}): detach that one first",
                      interface, id)};
}

/// What drivers answer to native mode they do not have, or do not have for this MTU or program.
bool refuses_native(int error) noexcept {
  constexpr int kNotSupportedInKernel = 524;  // ENOTSUPP, which has no name outside the kernel
  return error == EOPNOTSUPP || error == EINVAL || error == ERANGE || error == kNotSupportedInKernel;
}

}  // namespace

XdpLink& XdpLink::operator=(XdpLink&& other) noexcept {
  if (this != &other) {
    detach();
    link_ = std::move(other.link_);
    ifindex_ = other.ifindex_;
    interface_ = std::move(other.interface_);
    generic_reason_ = std::move(other.generic_reason_);
  }
  return *this;
}

Result<XdpLink> XdpLink::create(int ifindex, int program_fd) {
  char name[IF_NAMESIZE];
  if (ifindex <= 0 || ::if_indextoname(static_cast<unsigned>(ifindex), name) == nullptr) {
    return Error{std::make_error_code(std::errc::no_such_device),
                 fmt::format("cannot attach an XDP program: there is no interface with index {}", ifindex)};
  }
  XdpLink link;
  link.ifindex_ = ifindex;
  link.interface_ = name;
  // Asked first because a driver that refuses native mode hides the other program behind its own error.
  if (const std::uint32_t id = attached_program(ifindex); id != 0) {
    return foreign_program(link.interface_, id);
  }
  int fd = create_link(ifindex, program_fd, XDP_FLAGS_DRV_MODE);
  if (fd < 0 && refuses_native(-fd)) {
    link.generic_reason_ = fmt::format("interface {} refuses native XDP: {}", name,
                                       std::error_code(-fd, std::generic_category()).message());
    fd = create_link(ifindex, program_fd, XDP_FLAGS_SKB_MODE);
  }
  if (fd < 0) {
    if (const std::uint32_t id = attached_program(ifindex); id != 0) {  // someone came between
      return foreign_program(link.interface_, id);
    }
    return kernel_error(-fd, fmt::format("attach an XDP program to {}", name), "");
  }
  link.link_ = Fd(fd);
  if (!link.generic_reason_.empty()) {
    log_warn("{}; generic mode is used, which costs an skb per frame", link.generic_reason_);
  }
  return link;
}

Result<> XdpLink::update(int program_fd) {
  if (const int error = bpf_link_update(link_.get(), program_fd, nullptr); error != 0) {
    return kernel_error(-error, fmt::format("replace the XDP program of {}", interface_), "");
  }
  return Ok{};
}

bool XdpLink::alive() const noexcept {
  bpf_link_info info{};
  __u32 bytes = sizeof info;
  return link_ && bpf_obj_get_info_by_fd(link_.get(), &info, &bytes) == 0 && info.xdp.ifindex != 0;
}

void XdpLink::detach() noexcept {
  if (link_) {
    bpf_link_detach(link_.get());  // now, not when the last copy of the descriptor is closed
    link_.reset();
  }
}

}  // namespace vxdp
