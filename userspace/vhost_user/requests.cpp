// SPDX-License-Identifier: Apache-2.0
// Every request of the front-end: what it may carry, and what it changes.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "session_impl.hpp"
#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {
namespace {

constexpr std::uint64_t kProtocolFeatures = feature_bit(kVhostUserProtocolMq) | feature_bit(kVhostUserProtocolRarp) |
                                            feature_bit(kVhostUserProtocolReplyAck) |
                                            feature_bit(kVhostUserProtocolNetMtu);
// QEMU takes the answer for queue pairs, Cloud Hypervisor for vrings; both only refuse to have more than it.
// What a port really has is enforced by vring_limit().
constexpr std::uint64_t kQueueNumAnswer = 128;
constexpr std::uint32_t kMaxRingEntries = 32768;  // virtio 1.2, 2.7
constexpr std::uint64_t kMinMtu = 68;             // virtio 1.2, 5.1.4.1
constexpr std::uint64_t kMaxMtu = 65535;

/// Workers write call and read kick without ever waiting, which only an eventfd in non-blocking mode allows:
/// a full pipe, or a counter that the front-end filled, would hold a worker and with it other ports.
Result<> check_event_fd(int fd) {
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), target.data(), target.size());
  if (length < 0) {
    return errno_error("look at", "a vring's descriptor in /proc/self/fd");
  }
  if (std::string_view(target.data(), static_cast<std::size_t>(length)) != "anon_inode:[eventfd]") {
    return invalid("the descriptor is not an eventfd");
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return errno_error("make non-blocking", "a vring's eventfd");
  }
  return Ok{};
}

}  // namespace

const std::array<Session::Impl::Rule, 20> Session::Impl::kRules{{
    {VhostUserRequest::kGetFeatures, "GET_FEATURES", 0, 0, 0, true, &Impl::get_features},
    {VhostUserRequest::kSetFeatures, "SET_FEATURES", 8, 8, 0, false, &Impl::set_features},
    {VhostUserRequest::kSetOwner, "SET_OWNER", 0, 0, 0, false, &Impl::set_owner},
    {VhostUserRequest::kResetOwner, "RESET_OWNER", 0, 0, 0, false, &Impl::reset_owner},
    {VhostUserRequest::kSetMemTable, "SET_MEM_TABLE", sizeof(VhostUserMemoryTable),
     sizeof(VhostUserMemoryTable) + GuestMemory::kMaxRegions * sizeof(VhostUserMemoryRegion), GuestMemory::kMaxRegions,
     false, &Impl::set_mem_table},
    {VhostUserRequest::kSetLogBase, "SET_LOG_BASE", 8, 16, 1, false, &Impl::refuse_log},
    {VhostUserRequest::kSetLogFd, "SET_LOG_FD", 0, 8, 1, false, &Impl::refuse_log},
    {VhostUserRequest::kSetVringNum, "SET_VRING_NUM", 8, 8, 0, false, &Impl::set_vring_num},
    {VhostUserRequest::kSetVringAddr, "SET_VRING_ADDR", 40, 40, 0, false, &Impl::set_vring_addr},
    {VhostUserRequest::kSetVringBase, "SET_VRING_BASE", 8, 8, 0, false, &Impl::set_vring_base},
    {VhostUserRequest::kGetVringBase, "GET_VRING_BASE", 8, 8, 0, true, &Impl::get_vring_base},
    {VhostUserRequest::kSetVringKick, "SET_VRING_KICK", 8, 8, 1, false, &Impl::set_vring_kick},
    {VhostUserRequest::kSetVringCall, "SET_VRING_CALL", 8, 8, 1, false, &Impl::set_vring_call},
    {VhostUserRequest::kSetVringErr, "SET_VRING_ERR", 8, 8, 1, false, &Impl::set_vring_err},
    {VhostUserRequest::kGetProtocolFeatures, "GET_PROTOCOL_FEATURES", 0, 0, 0, true, &Impl::get_protocol_features},
    {VhostUserRequest::kSetProtocolFeatures, "SET_PROTOCOL_FEATURES", 8, 8, 0, false, &Impl::set_protocol_features},
    {VhostUserRequest::kGetQueueNum, "GET_QUEUE_NUM", 0, 0, 0, true, &Impl::get_queue_num},
    {VhostUserRequest::kSetVringEnable, "SET_VRING_ENABLE", 8, 8, 0, false, &Impl::set_vring_enable},
    {VhostUserRequest::kSendRarp, "SEND_RARP", 8, 8, 0, false, &Impl::send_rarp},
    {VhostUserRequest::kNetSetMtu, "NET_SET_MTU", 8, 8, 0, false, &Impl::net_set_mtu},
}};

// --- requests about the device

Handled Session::Impl::get_features(VhostUserMessage& message) {
  return reply(message, device_.features());
}

Handled Session::Impl::set_features(VhostUserMessage& message) {
  const auto acknowledged = message.read<std::uint64_t>();
  if (const auto excess = acknowledged & ~device_.features(); excess != 0) {
    return invalid(fmt::format("features {:#x} were not offered", excess));
  }
  // Vrings begin disabled; only a front-end that cannot say SET_VRING_ENABLE gets them enabled by this.
  if ((acknowledged & feature_bit(kVhostUserFProtocolFeatures)) == 0) {
    for (auto& vring : vrings_) {
      vring.enabled = true;
    }
  }
  if (features_ == acknowledged) {
    return kDone;  // QEMU repeats it for each queue pair
  }
  pause_all();
  if (auto set = device_.set_features(acknowledged); !set) {
    return set.error();
  }
  features_ = acknowledged;
  return kDone;
}

Handled Session::Impl::get_protocol_features(VhostUserMessage& message) {
  return reply(message, kProtocolFeatures);
}

Handled Session::Impl::set_protocol_features(VhostUserMessage& message) {
  const auto acknowledged = message.read<std::uint64_t>();
  if (const auto excess = acknowledged & ~kProtocolFeatures; excess != 0) {
    return invalid(fmt::format("protocol features {:#x} were not offered", excess));
  }
  protocol_features_ = acknowledged;
  return kDone;
}

Handled Session::Impl::get_queue_num(VhostUserMessage& message) {
  return reply(message, kQueueNumAnswer);
}

Handled Session::Impl::set_owner(VhostUserMessage& /*message*/) {
  return kDone;
}

Handled Session::Impl::reset_owner(VhostUserMessage& /*message*/) {
  for (unsigned index = 0; index < vrings_.size(); ++index) {
    pause(index);
    vrings_[index].started = false;
    vrings_[index].kick.reset();
  }
  return kDone;
}

Handled Session::Impl::set_mem_table(VhostUserMessage& message) {
  const auto table = message.read<VhostUserMemoryTable>();
  if (table.regions == 0 || table.regions > GuestMemory::kMaxRegions || table.regions != message.fds.size() ||
      message.payload.size() < sizeof table + table.regions * sizeof(VhostUserMemoryRegion)) {
    return invalid(fmt::format("{} regions in {} bytes with {} descriptors", table.regions, message.payload.size(),
                               message.fds.size()));
  }
  std::vector<RegionRequest> requests;
  for (std::size_t i = 0; i < table.regions; ++i) {
    const auto region = message.read<VhostUserMemoryRegion>(sizeof table + i * sizeof(VhostUserMemoryRegion));
    requests.push_back({region.gpa, region.bytes, region.fva, region.mmap_offset, std::move(message.fds[i])});
  }
  auto memory = GuestMemory::map(std::move(requests));
  if (!memory) {
    return memory.error();
  }
  pause_all();
  memory_ = std::move(*memory);
  if (auto set = device_.set_memory(memory_); !set) {
    return set.error();
  }
  return kDone;
}

Handled Session::Impl::refuse_log(VhostUserMessage& /*message*/) {
  return std::optional(Refusal{"a log of dirty pages is not offered"});
}

Handled Session::Impl::send_rarp(VhostUserMessage& message) {
  const auto mac = message.read<std::array<std::uint8_t, 6>>();
  device_.send_rarp(mac.data());
  return kDone;
}

Handled Session::Impl::net_set_mtu(VhostUserMessage& message) {
  const auto mtu = message.read<std::uint64_t>();
  if (mtu < kMinMtu || mtu > kMaxMtu) {
    return std::optional(Refusal{fmt::format("an MTU of {} is not {} to {}", mtu, kMinMtu, kMaxMtu)});
  }
  if (auto set = device_.set_mtu(static_cast<std::uint16_t>(mtu)); !set) {
    return std::optional(Refusal{set.error().what});
  }
  return kDone;
}

// --- requests about one vring

Handled Session::Impl::set_vring_num(VhostUserMessage& message) {
  const auto state = message.read<VhostUserVringState>();
  const auto index = checked_index(state.index);
  if (!index) {
    return index.error();
  }
  if (state.num == 0 || state.num > kMaxRingEntries || (state.num & (state.num - 1)) != 0) {
    return invalid(fmt::format("{} descriptors are not a power of two up to {}", state.num, kMaxRingEntries));
  }
  pause(*index);
  vrings_[*index].size = static_cast<std::uint16_t>(state.num);
  return kDone;
}

Handled Session::Impl::set_vring_addr(VhostUserMessage& message) {
  const auto address = message.read<VhostUserVringAddr>();
  const auto index = checked_index(address.index);
  if (!index) {
    return index.error();
  }
  pause(*index);
  vrings_[*index].addresses = VringAddresses{address.desc_fva, address.avail_fva, address.used_fva};
  return kDone;
}

Handled Session::Impl::set_vring_base(VhostUserMessage& message) {
  const auto state = message.read<VhostUserVringState>();
  const auto index = checked_index(state.index);
  if (!index) {
    return index.error();
  }
  if (state.num > UINT16_MAX) {
    return invalid(fmt::format("{} is no index of a split ring", state.num));
  }
  pause(*index);
  vrings_[*index].next_avail = static_cast<std::uint16_t>(state.num);
  vrings_[*index].next_avail_known = true;
  return kDone;
}

Handled Session::Impl::get_vring_base(VhostUserMessage& message) {
  const auto index = checked_index(message.read<VhostUserVringState>().index);
  if (!index) {
    return index.error();
  }
  pause(*index);
  Vring& vring = vrings_[*index];
  vring.started = false;
  vring.kick.reset();
  // A vring that was told its place but never ran goes on where it would have begun.
  if (!vring.next_avail_known && memory_ != nullptr && vring.size != 0 && vring.addresses) {
    if (const auto used_index = check_layout(*memory_, vring); used_index) {
      vring.next_avail = *used_index;
    }
  }
  return reply(message, VhostUserVringState{*index, vring.next_avail});
}

Result<unsigned> Session::Impl::take_event(VhostUserMessage& message, Fd Vring::*event) {
  const auto value = message.read<std::uint64_t>();
  auto index = checked_index(value & ~kVhostUserVringNoFd);
  if (!index) {
    return index;
  }
  const std::size_t wanted = (value & kVhostUserVringNoFd) != 0 ? 0 : 1;
  if (message.fds.size() != wanted) {
    return invalid(fmt::format("{} descriptors instead of {}", message.fds.size(), wanted));
  }
  Fd fd;
  if (wanted == 1) {
    fd = std::move(message.fds.front());
    if (auto good = check_event_fd(fd.get()); !good) {
      return good.error();
    }
  }
  pause(*index);
  vrings_[*index].*event = std::move(fd);
  return index;
}

Handled Session::Impl::set_vring_kick(VhostUserMessage& message) {
  const auto index = take_event(message, &Vring::kick);
  if (!index) {
    return index.error();
  }
  vrings_[*index].started = true;
  return kDone;
}

Handled Session::Impl::set_vring_call(VhostUserMessage& message) {
  const auto index = take_event(message, &Vring::call);
  return index ? Handled(kDone) : Handled(index.error());
}

Handled Session::Impl::set_vring_err(VhostUserMessage& message) {
  const auto index = take_event(message, &Vring::err);
  return index ? Handled(kDone) : Handled(index.error());
}

Handled Session::Impl::set_vring_enable(VhostUserMessage& message) {
  const auto state = message.read<VhostUserVringState>();
  const auto index = checked_index(state.index);
  if (!index) {
    return index.error();
  }
  if (state.num > 1) {
    return invalid(fmt::format("{} is neither 0 nor 1", state.num));
  }
  Vring& vring = vrings_[*index];
  if (const bool enable = state.num == 1; enable != vring.enabled) {
    pause(*index);
    vring.was_enabled = vring.enabled;
    vring.enabled = enable;
  }
  return kDone;
}

}  // namespace vxdp
