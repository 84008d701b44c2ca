// SPDX-License-Identifier: Apache-2.0
// What the bare loops share: an existing TAP (made by run.py), a CPU to stay on, a time to run.
#pragma once

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace vxdp::bench {

constexpr std::size_t kHeaderBytes = 12;  // virtio_net_hdr of VERSION_1
constexpr std::size_t kSlots = 1024;      // as the ring of a virtio-user queue
constexpr std::size_t kSlotBytes = 2048;  // as its buffers
constexpr unsigned kBatch = 64;

[[noreturn]] inline void fatal(const char* what) {
  std::perror(what);
  std::exit(1);
}

struct Options {
  std::string device;
  double seconds = 0;
};

/// From `program DEVICE SECONDS CPU`; pins the calling thread to the CPU.
inline Options parse(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s DEVICE SECONDS CPU\n", argv[0]);
    std::exit(2);
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<std::size_t>(std::atoi(argv[3])), &cpus);
  if (sched_setaffinity(0, sizeof cpus, &cpus) != 0) {
    fatal("sched_setaffinity");
  }
  return {argv[1], std::atof(argv[2])};
}

/// A non-blocking descriptor of the TAP, frames with a 12-byte header. Blocking would lose the native XDP path.
inline int open_tap(const std::string& device) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  int header_bytes = kHeaderBytes;
  // io_uring lets go of a closed TAP a little later than its process ends.
  for (int tries = 0; ioctl(fd, TUNSETIFF, &request) != 0 && errno == EBUSY && tries < 100; ++tries) {
    usleep(20'000);
  }
  if (fd < 0 || ioctl(fd, TUNGETIFF, &request) != 0 || ioctl(fd, TUNSETVNETHDRSZ, &header_bytes) != 0) {
    fatal(device.c_str());
  }
  return fd;
}

/// An Ethernet frame that nobody answers: locally administered addresses, EtherType for experiments.
inline void fill_frame(unsigned char* frame, std::size_t bytes) {
  constexpr unsigned char kHead[] = {0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x88, 0xb5};
  std::memset(frame, 0, bytes);
  std::memcpy(frame, kHead, sizeof kHead);
}

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace vxdp::bench
