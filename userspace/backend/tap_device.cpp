// SPDX-License-Identifier: Apache-2.0
#include "vxdp/backend/tap_device.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {
namespace {

constexpr unsigned kTapFlags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
constexpr int kRetries = 6;
constexpr unsigned kRetryUs = 50'000;

ifreq request_for(const std::string& name) {
  ifreq request{};
  std::memcpy(request.ifr_name, name.c_str(), std::min(name.size(), sizeof request.ifr_name - 1));
  return request;
}

/// ioctl on an interface by name, through a throw-away socket; false leaves errno.
bool interface_ioctl(unsigned long command, ifreq& request) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return socket && ::ioctl(socket.get(), command, &request) == 0;
}

/// The name of the driver behind an interface ("tun" for TAPs), or empty.
std::string driver_of(const std::string& name) {
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&info);
  return interface_ioctl(SIOCETHTOOL, request) ? std::string(info.driver) : std::string();
}

Error refused(const std::string& name, bool existed, unsigned queues, int saved) {
  if (saved == EPERM || saved == EACCES) {
    return errno_error("open", fmt::format("TAP {} (CAP_NET_ADMIN is needed)", name), saved);
  }
  if (existed && saved == EINVAL) {
    const std::string driver = driver_of(name);
    if (driver != "tun") {
      return invalid(fmt::format("interface {} exists and is not a TAP", name));
    }
    return invalid(fmt::format("TAP {} exists with other flags: {} queue pair(s) need a {} TAP, not a TUN device", name,
                               queues, queues > 1 ? "multi_queue" : "plain or multi_queue"));
  }
  if (saved == EBUSY) {
    return errno_error("open", fmt::format("TAP {}: another process holds it", name), saved);
  }
  return errno_error("open", "TAP " + name, saved);
}

/// TUN offload flags for acknowledged virtio features; segmentation only with checksums, USO only as a pair.
unsigned offload_flags(std::uint64_t features) {
  const auto has = [features](unsigned bit) { return (features & feature_bit(bit)) != 0; };
  if (!has(VIRTIO_NET_F_GUEST_CSUM)) {
    return 0;
  }
  unsigned flags = TUN_F_CSUM;
  flags |= has(VIRTIO_NET_F_GUEST_TSO4) ? TUN_F_TSO4 : 0;
  flags |= has(VIRTIO_NET_F_GUEST_TSO6) ? TUN_F_TSO6 : 0;
  if ((flags & (TUN_F_TSO4 | TUN_F_TSO6)) != 0 && has(VIRTIO_NET_F_GUEST_ECN)) {
    flags |= TUN_F_TSO_ECN;
  }
  if (has(VIRTIO_NET_F_GUEST_USO4) && has(VIRTIO_NET_F_GUEST_USO6)) {
    flags |= TUN_F_USO4 | TUN_F_USO6;
  }
  return flags;
}

}  // namespace

Result<TapDevice> TapDevice::open(const std::string& name, unsigned queues) {
  TapDevice device;
  bool existed = ::if_nametoindex(name.c_str()) != 0;
  const unsigned wanted_flags = kTapFlags | (queues > 1 ? IFF_MULTI_QUEUE : 0U);
  unsigned flags = wanted_flags;
  int retries = kRetries;
  while (device.queues_.size() < queues) {
    Fd fd(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!fd) {
      return errno_error("open", "/dev/net/tun");
    }
    ifreq request = request_for(name);
    request.ifr_flags = static_cast<short>(flags);
    if (::ioctl(fd.get(), TUNSETIFF, &request) != 0) {
      const int saved = errno;
      if (existed && saved == EINVAL && (flags & IFF_MULTI_QUEUE) == 0) {
        flags |= IFF_MULTI_QUEUE;  // one queue of a device made for many is as good
        continue;
      }
      if ((saved == EBUSY || saved == EINVAL) && retries-- > 0) {
        // A daemon that was killed: the kernel takes its io_uring apart, and with it the TAP, a little later.
        ::usleep(kRetryUs);
        existed = ::if_nametoindex(name.c_str()) != 0;
        flags = wanted_flags;
        device.queues_.clear();
        continue;
      }
      return refused(name, existed, queues, saved);
    }
    device.name_ = request.ifr_name;
    device.queues_.push_back(std::move(fd));
  }
  if (auto finished = device.finish_open(); !finished) {
    return finished.error();
  }
  if (!existed) {
    ifreq request = request_for(device.name_);
    if (!interface_ioctl(SIOCGIFFLAGS, request)) {
      return errno_error("read the flags of", device.name_);
    }
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    if (!interface_ioctl(SIOCSIFFLAGS, request)) {
      return errno_error("set up", device.name_);
    }
  }
  return device;
}

Result<TapDevice> TapDevice::adopt(const std::vector<int>& fds) {
  TapDevice device;
  for (const int fd : fds) {
    Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy) {
      return invalid(fmt::format("tap-fd={} is not an open descriptor", fd));
    }
    ifreq request{};
    if (::ioctl(copy.get(), TUNGETIFF, &request) != 0) {
      return invalid(fmt::format("tap-fd={} is not a TAP descriptor", fd));
    }
    const auto flags = static_cast<unsigned short>(request.ifr_flags);
    if ((flags & IFF_TAP) == 0 || (flags & IFF_VNET_HDR) == 0 || (flags & IFF_NO_PI) == 0) {
      return invalid(fmt::format("tap-fd={} must be a TAP opened with IFF_NO_PI and IFF_VNET_HDR", fd));
    }
    if (!device.name_.empty() && device.name_ != request.ifr_name) {
      return invalid(fmt::format("tap-fd={} belongs to {}, the one before to {}", fd, request.ifr_name, device.name_));
    }
    device.name_ = request.ifr_name;
    ::fcntl(copy.get(), F_SETFL, ::fcntl(copy.get(), F_GETFL) | O_NONBLOCK);  // else XDP leaves the native path
    device.queues_.push_back(std::move(copy));
  }
  if (auto finished = device.finish_open(); !finished) {
    return finished.error();
  }
  return device;
}

Result<> TapDevice::finish_open() {
  ifindex_ = static_cast<int>(::if_nametoindex(name_.c_str()));
  if (ifindex_ == 0) {
    return errno_error("find", "interface " + name_);
  }
  ifreq request{};
  if (::ioctl(queues_[0].get(), TUNGETIFF, &request) != 0) {
    return errno_error("read the flags of", name_);
  }
  multi_queue_ = (static_cast<unsigned short>(request.ifr_flags) & IFF_MULTI_QUEUE) != 0;
  attached_.assign(queues_.size(), true);
  // A kernel without UDP segmentation answers EINVAL to its bits.
  has_uso_ = ::ioctl(queues_[0].get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_USO4 | TUN_F_USO6) == 0;
  return set_offloads(0);
}

bool TapDevice::up() const {
  ifreq request = request_for(name_);
  return interface_ioctl(SIOCGIFFLAGS, request) && (request.ifr_flags & IFF_UP) != 0;
}

bool TapDevice::exists() const {
  return static_cast<int>(::if_nametoindex(name_.c_str())) == ifindex_;
}

Result<> TapDevice::set_offloads(std::uint64_t features) {
  if (::ioctl(queues_[0].get(), TUNSETOFFLOAD, static_cast<unsigned long>(offload_flags(features))) != 0) {
    return errno_error("set the offloads of", name_);
  }
  return Ok{};
}

Result<> TapDevice::set_header_bytes(unsigned bytes) {
  int value = static_cast<int>(bytes);
  if (::ioctl(queues_[0].get(), TUNSETVNETHDRSZ, &value) != 0) {
    return errno_error("set the header size of", name_);
  }
  return Ok{};
}

Result<> TapDevice::set_mtu(std::uint16_t mtu) {
  ifreq request = request_for(name_);
  request.ifr_mtu = mtu;
  if (!interface_ioctl(SIOCSIFMTU, request)) {
    return errno_error("set the MTU of", name_);
  }
  return Ok{};
}

std::uint32_t TapDevice::mtu() const {
  ifreq request = request_for(name_);
  constexpr std::uint32_t kEthernetMtu = 1500;
  return interface_ioctl(SIOCGIFMTU, request) ? static_cast<std::uint32_t>(request.ifr_mtu) : kEthernetMtu;
}

void TapDevice::set_carrier(bool on) noexcept {
  int value = on ? 1 : 0;
  ::ioctl(queues_[0].get(), TUNSETCARRIER, &value);
}

void TapDevice::set_queue_attached(unsigned queue, bool attached) noexcept {
  if (!multi_queue_ || attached_[queue] == attached) {
    return;
  }
  ifreq request{};
  request.ifr_flags = static_cast<short>(attached ? IFF_ATTACH_QUEUE : IFF_DETACH_QUEUE);
  if (::ioctl(queues_[queue].get(), TUNSETQUEUE, &request) == 0) {
    attached_[queue] = attached;
  }
}

}  // namespace vxdp
