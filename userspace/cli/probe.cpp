// SPDX-License-Identifier: Apache-2.0
#include "probe.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <liburing.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/mapping.hpp"
#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {
namespace {

/// First line of a file in /proc or /sys, empty if it cannot be read.
std::string line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::uint64_t effective_capabilities() {
  std::ifstream file("/proc/self/status");
  for (std::string key; file >> key;) {
    if (key == "CapEff:") {
      std::uint64_t bits = 0;
      file >> std::hex >> bits;
      return bits;
    }
  }
  return 0;
}

/// A TAP that goes when it is destroyed.
struct ProbeTap {
  Fd fd;
  int ifindex = 0;
};

ProbeTap make_tap(Feature& feature) {
  ProbeTap tap{Fd(::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK)), 0};
  if (!tap.fd) {
    feature.detail = fmt::format("cannot open /dev/net/tun: {}", std::strerror(errno));
    return tap;
  }
  ifreq request{};
  std::strcpy(request.ifr_name, "vxdp-probe%d");
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (::ioctl(tap.fd.get(), TUNSETIFF, &request) != 0) {
    feature.detail = fmt::format("cannot create a TAP: {}; needs CAP_NET_ADMIN", std::strerror(errno));
    return tap;
  }
  feature.available = true;
  feature.detail = "a TAP was created and removed";
  tap.ifindex = static_cast<int>(::if_nametoindex(request.ifr_name));
  return tap;
}

Feature probe_uso(const ProbeTap& tap) {
  Feature feature{"tap-uso", "UDP segmentation on TAP", false, "",
                  "guests are not offered UDP segmentation; large UDP flows cost more CPU"};
  if (tap.ifindex == 0) {
    feature.detail = "no TAP to try it on";
    return feature;
  }
  const unsigned long offloads = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6;
  feature.available = ::ioctl(tap.fd.get(), TUNSETOFFLOAD, offloads) == 0;
  feature.detail = feature.available ? "TUNSETOFFLOAD takes it"
                                     : fmt::format("TUNSETOFFLOAD: {}; needs Linux 6.2", std::strerror(errno));
  return feature;
}

/// Why io_uring_setup() failed with `error`.
std::string uring_refusal(int error) {
  const std::string setting = line_of("/proc/sys/kernel/io_uring_disabled");
  const std::string_view reason = std::strerror(error);
  if (error == ENOSYS) {
    return fmt::format("{}: not in this kernel, or hidden by a seccomp profile", reason);
  }
  if (error == EPERM && (setting == "1" || setting == "2")) {
    return fmt::format("{}: sysctl kernel.io_uring_disabled is {}", reason, setting);
  }
  if (error == EPERM) {
    return fmt::format("{}: a seccomp profile forbids it (containerd and Docker do by default)", reason);
  }
  return std::string(reason);
}

std::string memlock_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "no limit" : fmt::format("{} KiB", limit.rlim_cur >> 10);
}

void probe_uring(std::vector<Feature>& features) {
  Feature uring{"io-uring", "io_uring", false, "", "one system call a frame (writev) instead of one for up to 64"};
  Feature fixed{"io-uring-fixed", "io_uring fixed buffers over guest memory", false, "",
                "a page lookup for each frame"};
  io_uring ring{};
  const int made = ::io_uring_queue_init(64, &ring, 0);
  uring.available = made == 0;
  uring.detail = made == 0 ? "a ring of 64 entries was made" : uring_refusal(-made);
  fixed.detail = "no io_uring to try it with";
  if (made == 0) {
    constexpr std::size_t kBytes = 2 << 20;
    const Fd memory(::memfd_create("vxdp-probe", MFD_CLOEXEC));
    const bool sized = memory && ::ftruncate(memory.get(), kBytes) == 0;
    const auto mapping = sized ? Mapping::shared_file(memory.get(), kBytes, 0) : Result<Mapping>(invalid("no memfd"));
    if (mapping) {
      const iovec buffer{mapping->data(), kBytes};
      const int registered = ::io_uring_register_buffers(&ring, &buffer, 1);
      fixed.available = registered == 0;
      fixed.detail = registered == 0
                         ? fmt::format("2 MiB of a memfd were registered (RLIMIT_MEMLOCK: {})", memlock_limit())
                         : fmt::format("{}; RLIMIT_MEMLOCK is {}, CAP_IPC_LOCK lifts it", std::strerror(-registered),
                                       memlock_limit());
    } else {
      fixed.detail = mapping.error().what;
    }
    ::io_uring_queue_exit(&ring);
  }
  features.push_back(std::move(uring));
  features.push_back(std::move(fixed));
}

Feature probe_vhost_net() {
  Feature feature{"vhost-net", "/dev/vhost-net", false, "",
                  "no relay to the kernel's own path that gives TAP 64 frames in one call"};
  const Fd fd(::open("/dev/vhost-net", O_RDWR | O_CLOEXEC));
  feature.available = static_cast<bool>(fd);
  feature.detail = fd ? "opens" : std::strerror(errno);
  return feature;
}

Feature probe_huge_pages() {
  Feature feature{"huge-pages", "free 2 MiB huge pages", false, "",
                  "guest memory in small pages: more TLB misses; DPDK's virtio-user needs them to start"};
  const std::string free = line_of("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  const std::string total = line_of("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
  feature.available = !free.empty() && free != "0";
  feature.detail = free.empty() ? "not in this kernel" : fmt::format("{} of {} free", free, total);
  return feature;
}

Feature probe_btf() {
  Feature feature{"btf", "type information of the kernel (BTF)", false, "",
                  "programs that read kernel structures, and freplace, do not load"};
  feature.available = ::access("/sys/kernel/btf/vmlinux", R_OK) == 0;
  feature.detail = feature.available ? "/sys/kernel/btf/vmlinux" : std::strerror(errno);
  return feature;
}

void probe_capabilities(std::vector<Feature>& features) {
  struct Row {
    const char* name;
    int number;
    const char* without;
  };
  constexpr Row kRows[] = {
      {"CAP_NET_ADMIN", CAP_NET_ADMIN, "no TAP can be created or changed, no XDP program attached"},
      {"CAP_BPF", CAP_BPF, "no BPF program can be loaded (CAP_SYS_ADMIN would do too)"},
      {"CAP_PERFMON", CAP_PERFMON, "programs that compute with packet pointers, ours too, do not pass the verifier"},
      {"CAP_IPC_LOCK", CAP_IPC_LOCK, "guest memory above RLIMIT_MEMLOCK cannot be registered with io_uring"},
  };
  const std::uint64_t effective = effective_capabilities();
  for (const Row& row : kRows) {
    const bool has = (effective >> row.number & 1) != 0;
    features.push_back(
        {row.name, row.name, has, has ? "effective" : "not among this process's capabilities", row.without});
  }
}

}  // namespace

std::vector<Feature> probe() {
  std::vector<Feature> features;
  Feature tun{"tap", "create a TAP", false, "", "ports can use only TAPs that others made and handed over (tap-fd)"};
  const ProbeTap tap = make_tap(tun);
  features.push_back(std::move(tun));
  features.push_back(probe_uso(tap));
  features.push_back(probe_bpf_load());
  features.push_back(probe_native_xdp(tap.ifindex));
  features.push_back(probe_freplace());
  features.push_back(probe_btf());
  probe_uring(features);
  features.push_back(probe_vhost_net());
  features.push_back(probe_huge_pages());
  probe_capabilities(features);
  return features;
}

}  // namespace vxdp
