// SPDX-License-Identifier: Apache-2.0
// A network namespace for one test, TAPs in it, frames, and one-line access to a manager's counts.
#pragma once

#include <bpf/bpf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/virtio_uapi.hpp"
#include "vxdp/xdp/program_manager.hpp"

namespace vxdp::testing {

/// Path of an object of tests/bpf/objects.
inline std::string test_object(const std::string& name) {
  return VXDP_TEST_OBJECTS "/" + name + ".bpf.o";
}

/// Moves the test into a fresh network namespace, or skips it; the namespace goes with its last user.
class Sandbox : public ::testing::Test {
 protected:
  void SetUp() override {
    const Fd map(bpf_map_create(BPF_MAP_TYPE_ARRAY, "vxdp_probe", 4, 4, 1, nullptr));
    if (!map || ::unshare(CLONE_NEWNET) != 0) {
      GTEST_SKIP() << "needs CAP_BPF, CAP_NET_ADMIN and CAP_SYS_ADMIN";
    }
  }
};

/// A frame of `bytes` (14 .. 9000) from a sane sender, with `number` after the Ethernet header if it fits.
inline std::vector<std::uint8_t> make_frame(std::size_t bytes, std::uint32_t number = 0) {
  constexpr std::array<std::uint8_t, 14> kHeader = {0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x88, 0xb5};
  std::vector<std::uint8_t> frame(bytes);
  std::memcpy(frame.data(), kHeader.data(), std::min(bytes, kHeader.size()));
  if (bytes >= kHeader.size() + sizeof number) {
    std::memcpy(frame.data() + kHeader.size(), &number, sizeof number);
  }
  return frame;
}

/// A TUN or TAP device as the daemon makes it; the interface lives as long as the object.
class Tap {
 public:
  explicit Tap(const std::string& name, int kind = IFF_TAP)
      : fd_(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC)) {
    ifreq request{};
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_flags = static_cast<short>(kind | IFF_NO_PI | IFF_VNET_HDR);
    EXPECT_EQ(::ioctl(fd_.get(), TUNSETIFF, &request), 0) << std::strerror(errno);
    const Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    request.ifr_flags = IFF_UP;
    EXPECT_EQ(::ioctl(socket.get(), SIOCSIFFLAGS, &request), 0) << std::strerror(errno);
    index_ = static_cast<int>(::if_nametoindex(name.c_str()));
  }
  [[nodiscard]] int index() const { return index_; }

  /// Gives the kernel one frame as a guest would; false if it was not taken.
  bool write(std::vector<std::uint8_t> frame) const {
    frame.insert(frame.begin(), kHeaderBytes, 0);
    return ::write(fd_.get(), frame.data(), frame.size()) == static_cast<ssize_t>(frame.size());
  }
  void write_all(std::size_t frames, std::size_t bytes) const {
    for (std::size_t i = 0; i < frames; ++i) {
      ASSERT_TRUE(write(make_frame(bytes, static_cast<std::uint32_t>(i)))) << std::strerror(errno);
    }
  }
  /// The test frames that wait for the guest; what the kernel itself sends is left out.
  [[nodiscard]] std::vector<std::vector<std::uint8_t>> read_all() const {
    std::vector<std::vector<std::uint8_t>> frames;
    std::array<std::uint8_t, 9'100> buffer;
    for (ssize_t got = 0; (got = ::read(fd_.get(), buffer.data(), buffer.size())) > 0;) {
      if (got >= kHeaderBytes + 14 && buffer[kHeaderBytes + 12] == 0x88 && buffer[kHeaderBytes + 13] == 0xb5) {
        frames.emplace_back(buffer.begin() + kHeaderBytes, buffer.begin() + got);
      }
    }
    return frames;
  }

 private:
  static constexpr std::ptrdiff_t kHeaderBytes = sizeof(virtio_net_hdr);
  Fd fd_;
  int index_ = 0;
};

/// The row of program `name`; an empty one if there is none.
inline ProgramStats stats_of(const ProgramManager& manager, const std::string& name) {
  for (ProgramStats& stats : manager.program_stats()) {
    if (stats.program == name) {
      return stats;
    }
  }
  return {};
}

/// Frames of action `action` that program `name` counted; 0 if it does not count.
inline std::uint64_t frames_of(const ProgramManager& manager, const std::string& name, std::size_t action) {
  const ProgramStats stats = stats_of(manager, name);
  return action < stats.action_frames.size() ? stats.action_frames[action] : 0;
}

}  // namespace vxdp::testing
