// SPDX-License-Identifier: Apache-2.0
#include "guest/front_end.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

namespace vxdp {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_left(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

/// True once `fd` has `events`; false when `end` came first.
bool wait_for(int fd, short events, Clock::time_point end) {
  while (true) {
    pollfd waited{fd, events, 0};
    const int left = milliseconds_left(end);
    const int ready = ::poll(&waited, 1, left);
    if (ready > 0) {
      return true;
    }
    if (left == 0) {
      return false;
    }
  }
}

Result<sockaddr_un> socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return invalid(fmt::format("the socket path \"{}\" must have 1 to {} bytes", path, sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Error timed_out(std::string what) {
  return {std::make_error_code(std::errc::timed_out), std::move(what)};
}

const char* request_name(VhostUserRequest request) {
  switch (request) {
    case VhostUserRequest::kGetFeatures:
      return "GET_FEATURES";
    case VhostUserRequest::kSetFeatures:
      return "SET_FEATURES";
    case VhostUserRequest::kSetOwner:
      return "SET_OWNER";
    case VhostUserRequest::kSetMemTable:
      return "SET_MEM_TABLE";
    case VhostUserRequest::kSetVringNum:
      return "SET_VRING_NUM";
    case VhostUserRequest::kSetVringAddr:
      return "SET_VRING_ADDR";
    case VhostUserRequest::kSetVringBase:
      return "SET_VRING_BASE";
    case VhostUserRequest::kGetVringBase:
      return "GET_VRING_BASE";
    case VhostUserRequest::kSetVringKick:
      return "SET_VRING_KICK";
    case VhostUserRequest::kSetVringCall:
      return "SET_VRING_CALL";
    case VhostUserRequest::kSetVringErr:
      return "SET_VRING_ERR";
    case VhostUserRequest::kGetProtocolFeatures:
      return "GET_PROTOCOL_FEATURES";
    case VhostUserRequest::kSetProtocolFeatures:
      return "SET_PROTOCOL_FEATURES";
    case VhostUserRequest::kGetQueueNum:
      return "GET_QUEUE_NUM";
    case VhostUserRequest::kSetVringEnable:
      return "SET_VRING_ENABLE";
    default:
      return "a message";
  }
}

}  // namespace

FrontEnd FrontEnd::adopt(Fd socket, std::string name, Milliseconds limit) {
  FrontEnd front_end;
  front_end.socket_ = std::move(socket);
  front_end.name_ = std::move(name);
  front_end.limit_ = limit;
  return front_end;
}

Result<FrontEnd> FrontEnd::connect(const std::string& path, Milliseconds limit) {
  const Result<sockaddr_un> address = socket_address(path);
  if (!address) {
    return address.error();
  }
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    return errno_error("create", "a socket");
  }
  const Clock::time_point end = Clock::now() + limit;
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    const int saved = errno;
    // EAGAIN: the listener's queue is full. There is nothing to poll for.
    if ((saved != EAGAIN && saved != EINTR) || Clock::now() >= end) {
      return errno_error("connect to", path, saved);
    }
    std::this_thread::sleep_for(Milliseconds(10));
  }
  return adopt(std::move(socket), path, limit);
}

Result<FrontEnd> FrontEnd::listen(const std::string& path, Milliseconds limit) {
  const Result<sockaddr_un> address = socket_address(path);
  if (!address) {
    return address.error();
  }
  const auto* name = reinterpret_cast<const sockaddr*>(&*address);
  struct stat present {};
  if (::stat(path.c_str(), &present) == 0 && S_ISSOCK(present.st_mode)) {
    const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(probe.get(), name, sizeof *address) != 0 && errno == ECONNREFUSED) {
      ::unlink(path.c_str());
    }
  }
  const Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener || ::bind(listener.get(), name, sizeof *address) != 0 || ::listen(listener.get(), 1) != 0) {
    return errno_error("listen on", path);
  }
  const bool came = wait_for(listener.get(), POLLIN, Clock::now() + limit);
  Fd socket(came ? ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1);
  const int saved = errno;
  ::unlink(path.c_str());
  if (!came) {
    return timed_out(fmt::format("no back end connected to {} within {} ms", path, limit.count()));
  }
  if (!socket) {
    return errno_error("accept a connection on", path, saved);
  }
  return adopt(std::move(socket), path, limit);
}

Result<> FrontEnd::send(VhostUserRequest request, std::uint32_t extra_flags, std::span<const std::byte> payload,
                        std::span<const int> fds, Deadline end) {
  const VhostUserHeader header{static_cast<std::uint32_t>(request), kVhostUserVersion | extra_flags,
                               static_cast<std::uint32_t>(payload.size())};
  std::vector<std::byte> bytes(sizeof header + payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(payload.begin(), payload.end(), bytes.begin() + sizeof header);

  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kVhostUserMaxFds)> control{};
  if (fds.size() > kVhostUserMaxFds) {
    return invalid("too many descriptors for one message");
  }
  for (std::size_t sent = 0; sent < bytes.size();) {
    iovec part{bytes.data() + sent, bytes.size() - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (sent == 0 && !fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
      continue;
    }
    const int saved = errno;
    if (saved == EPIPE || saved == ECONNRESET) {
      return Error{std::make_error_code(std::errc::connection_reset),
                   fmt::format("the back end at {} closed the connection before {}", name_, request_name(request))};
    }
    if (saved != EAGAIN && saved != EINTR) {
      return errno_error("send to the back end at", name_, saved);
    }
    if (!wait_for(socket_.get(), POLLOUT, end)) {
      return timed_out(
          fmt::format("the back end at {} did not take {} within {} ms", name_, request_name(request), limit_.count()));
    }
  }
  return Ok{};
}

Result<> FrontEnd::receive_bytes(std::span<std::byte> bytes, VhostUserRequest request, Deadline end) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
      continue;
    }
    const int saved = errno;
    if (n == 0 || saved == ECONNRESET) {
      return Error{std::make_error_code(std::errc::connection_reset),
                   fmt::format("the back end at {} closed the connection instead of answering {}", name_,
                               request_name(request))};
    }
    if (saved != EAGAIN && saved != EINTR) {
      return errno_error("receive from the back end at", name_, saved);
    }
    if (!wait_for(socket_.get(), POLLIN, end)) {
      return timed_out(fmt::format("the back end at {} did not answer {} within {} ms", name_, request_name(request),
                                   limit_.count()));
    }
  }
  return Ok{};
}

Result<> FrontEnd::receive(VhostUserRequest request, std::span<std::byte> payload, Deadline end) {
  VhostUserHeader header{};
  if (Result<> got = receive_bytes(std::as_writable_bytes(std::span(&header, 1)), request, end); !got) {
    return got;
  }
  if (header.request != static_cast<std::uint32_t>(request) || (header.flags & kVhostUserReply) == 0 ||
      (header.flags & kVhostUserVersionMask) != kVhostUserVersion || header.payload_bytes != payload.size()) {
    return Error{std::make_error_code(std::errc::protocol_error),
                 fmt::format("the back end at {} answered {} with something else (request {}, flags {:#x}, {} bytes)",
                             name_, request_name(request), header.request, header.flags, header.payload_bytes)};
  }
  return receive_bytes(payload, request, end);
}

Result<> FrontEnd::set(VhostUserRequest request, std::span<const std::byte> payload, std::span<const int> fds) {
  const Deadline end = deadline();
  const bool acknowledged = (protocol_features_ & feature_bit(kVhostUserProtocolReplyAck)) != 0;
  if (Result<> sent = send(request, acknowledged ? kVhostUserNeedReply : 0, payload, fds, end);
      !sent || !acknowledged) {
    return sent;
  }
  std::uint64_t refused = 0;
  if (Result<> got = receive(request, std::as_writable_bytes(std::span(&refused, 1)), end); !got) {
    return got;
  }
  if (refused != 0) {
    return invalid(fmt::format("the back end at {} refused {} (answer {})", name_, request_name(request), refused));
  }
  return Ok{};
}

Result<std::uint64_t> FrontEnd::get(VhostUserRequest request) {
  const Deadline end = deadline();
  std::uint64_t value = 0;
  if (Result<> sent = send(request, 0, {}, {}, end); !sent) {
    return sent.error();
  }
  if (Result<> got = receive(request, std::as_writable_bytes(std::span(&value, 1)), end); !got) {
    return got.error();
  }
  return value;
}

Result<> FrontEnd::negotiate(std::uint64_t wanted) {
  const Result<std::uint64_t> offered = get(VhostUserRequest::kGetFeatures);
  if (!offered) {
    return offered.error();
  }
  offered_ = *offered;
  features_ = offered_ & (wanted | feature_bit(kVhostUserFProtocolFeatures));
  if ((offered_ & feature_bit(kVhostUserFProtocolFeatures)) != 0) {
    const Result<std::uint64_t> protocol = get(VhostUserRequest::kGetProtocolFeatures);
    if (!protocol) {
      return protocol.error();
    }
    const std::uint64_t chosen =
        *protocol & (feature_bit(kVhostUserProtocolMq) | feature_bit(kVhostUserProtocolReplyAck));
    if (Result<> set_chosen = set(VhostUserRequest::kSetProtocolFeatures, chosen); !set_chosen) {
      return set_chosen;
    }
    protocol_features_ = chosen;
    if ((chosen & feature_bit(kVhostUserProtocolMq)) != 0) {
      const Result<std::uint64_t> pairs = get(VhostUserRequest::kGetQueueNum);
      if (!pairs) {
        return pairs.error();
      }
      queue_pair_limit_ = static_cast<unsigned>(std::min<std::uint64_t>(*pairs, 0x8000));
    }
  }
  if (Result<> owned = set(VhostUserRequest::kSetOwner, std::span<const std::byte>()); !owned) {
    return owned;
  }
  return set(VhostUserRequest::kSetFeatures, features_);
}

Result<> FrontEnd::share_memory(const GuestRam& ram) {
  struct Table {
    VhostUserMemoryTable head;
    std::array<VhostUserMemoryRegion, kVhostUserMaxFds> regions;
  } table{};
  std::vector<int> fds;
  for (const GuestRam::Region& region : ram.regions()) {
    table.regions.at(fds.size()) = {region.gpa, region.bytes, region.fva, region.file_offset};
    fds.push_back(ram.fd());
  }
  table.head.regions = static_cast<std::uint32_t>(fds.size());
  const std::size_t bytes = sizeof table.head + fds.size() * sizeof(VhostUserMemoryRegion);
  return set(VhostUserRequest::kSetMemTable, std::as_bytes(std::span(&table, 1)).first(bytes), fds);
}

Result<> FrontEnd::set_vring_fd(VhostUserRequest request, unsigned index, int fd) {
  const std::uint64_t payload = index | (fd < 0 ? kVhostUserVringNoFd : 0);
  return set(request, payload, fd < 0 ? std::span<const int>() : std::span<const int>(&fd, 1));
}

Result<> FrontEnd::start_vring(const VringSetup& setup) {
  const VhostUserVringAddr addresses{
      setup.index, 0, setup.addresses.desc_fva, setup.addresses.used_fva, setup.addresses.avail_fva, 0};
  // The order QEMU uses; the kick comes last of the set-up because it starts the ring.
  if (Result<> r = set(VhostUserRequest::kSetVringNum, VhostUserVringState{setup.index, setup.size}); !r) {
    return r;
  }
  if (Result<> r = set(VhostUserRequest::kSetVringBase, VhostUserVringState{setup.index, setup.base}); !r) {
    return r;
  }
  if (Result<> r = set(VhostUserRequest::kSetVringAddr, addresses); !r) {
    return r;
  }
  if (setup.err >= 0) {
    if (Result<> r = set_vring_fd(VhostUserRequest::kSetVringErr, setup.index, setup.err); !r) {
      return r;
    }
  }
  if (Result<> r = set_vring_fd(VhostUserRequest::kSetVringCall, setup.index, setup.call); !r) {
    return r;
  }
  if (Result<> r = set_vring_fd(VhostUserRequest::kSetVringKick, setup.index, setup.kick); !r) {
    return r;
  }
  // Without the feature, rings are enabled from the start and the message does not exist.
  if ((features_ & feature_bit(kVhostUserFProtocolFeatures)) == 0) {
    return Ok{};
  }
  return enable_vring(setup.index, true);
}

Result<> FrontEnd::enable_vring(unsigned index, bool enabled) {
  return set(VhostUserRequest::kSetVringEnable, VhostUserVringState{index, enabled ? 1U : 0U});
}

Result<std::uint16_t> FrontEnd::stop_vring(unsigned index) {
  const Deadline end = deadline();
  VhostUserVringState state{index, 0};
  if (Result<> sent = send(VhostUserRequest::kGetVringBase, 0, std::as_bytes(std::span(&state, 1)), {}, end); !sent) {
    return sent.error();
  }
  if (Result<> got = receive(VhostUserRequest::kGetVringBase, std::as_writable_bytes(std::span(&state, 1)), end);
      !got) {
    return got.error();
  }
  return static_cast<std::uint16_t>(state.num);
}

}  // namespace vxdp
