// SPDX-License-Identifier: Apache-2.0
// Every TAP backend against the real kernel, in a network namespace of its own: the same tests for each.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "vxdp/backend/tap_device.hpp"
#include "vxdp/backend/tap_uring.hpp"
#include "vxdp/packet/batch.hpp"

namespace vxdp {
namespace {

constexpr std::uint64_t kMemoryBytes = 16 << 20;
constexpr std::uint32_t kHeaderBytes = 12;

enum class Kind { kWritev, kUring, kUringFixed };

class TapBackendTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (::unshare(CLONE_NEWNET) != 0) {
      GTEST_SKIP() << "needs CAP_SYS_ADMIN";
    }
    auto tap = TapDevice::open("vt0", 1);
    ASSERT_TRUE(tap) << tap.error().what;
    tap_.emplace(std::move(*tap));
    tap_->set_carrier(true);
    ASSERT_TRUE(tap_->set_header_bytes(kHeaderBytes));
    auto backend = make_tap_queue(tap_->queue(0), GetParam() != Kind::kWritev, GetParam() == Kind::kWritev);
    if (!backend) {
      GTEST_SKIP() << backend.error().what;
    }
    backend_ = std::move(*backend);
    Fd file(::memfd_create("guest", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(file.get(), kMemoryBytes), 0);
    std::vector<RegionRequest> regions;
    regions.push_back({.gpa = 0, .bytes = kMemoryBytes, .fva = 0, .mmap_offset = 0, .fd = std::move(file)});
    memory_ = *GuestMemory::map(std::move(regions));
    if (GetParam() == Kind::kUringFixed) {
      backend_->use_send_memory(memory_);
      backend_->use_receive_memory(memory_);
      ASSERT_STREQ(backend_->method(), "uring-fixed") << backend_->method_reason();
    }
    sniffer_ = Fd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(kEtherType)));
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(kEtherType);
    address.sll_ifindex = tap_->ifindex();
    ASSERT_EQ(::bind(sniffer_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }

  static std::string frame_text(unsigned number, std::size_t bytes) {
    std::string text("\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x88\xb5", 14);
    text += std::to_string(number) + ";";
    text.resize(bytes, static_cast<char>('a' + number % 26));
    return text;
  }

  /// A frame in guest memory: contiguous with its header, or header elsewhere and the frame in two parts.
  XdpBuff& place(unsigned number, std::size_t bytes, bool contiguous, const VnetHeader& header = {}) {
    std::byte* at = memory_->translate(next_gpa_, 1).data();
    next_gpa_ += (bytes + 4096) & ~std::uint64_t{4095};
    const std::string text = frame_text(number, bytes);
    std::memcpy(at, &header, kHeaderBytes);
    std::memcpy(at + kHeaderBytes, text.data(), bytes);
    XdpBuff& frame = frames_[count_];
    frame = {};
    frame.header = header;
    frame.frame_bytes = static_cast<std::uint32_t>(bytes);
    frame.data = at + kHeaderBytes;
    auto& iov = iov_[count_++];
    iov[0] = {&frame.header, kHeaderBytes};
    if (contiguous) {
      frame.header_in_front = true;
      frame.data_end = frame.data + bytes;
      iov[1] = {frame.data, bytes};
      frame.iov_count = 2;
    } else {
      frame.data_end = frame.data + 20;
      iov[1] = {frame.data, 20};
      iov[2] = {frame.data + 20, bytes - 20};
      frame.iov_count = 3;
    }
    frame.iov = iov.data();
    return frame;
  }
  Moved send_all() {
    return backend_->sendmsg({MessageType::kXdpBuffs, static_cast<std::uint16_t>(count_), frames_.data()});
  }
  std::string sniff() {
    std::string buffer(70'000, 0);
    const ssize_t got = ::recv(sniffer_.get(), buffer.data(), buffer.size(), 0);
    buffer.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return buffer;
  }
  void link(bool up) {
    const Fd socket(::socket(AF_INET, SOCK_DGRAM, 0));
    ifreq request{};
    std::strcpy(request.ifr_name, "vt0");
    request.ifr_flags = static_cast<short>(up ? IFF_UP : 0);
    ASSERT_EQ(::ioctl(socket.get(), SIOCSIFFLAGS, &request), 0);
  }

  /// Eight rooms of 2048 bytes in guest memory.
  std::array<ReceiveRoom, 8>& make_rooms() {
    for (std::size_t i = 0; i < rooms_.size(); ++i) {
      room_iov_[i] = {memory_->translate(i * 4096, 1).data(), 2048};
      rooms_[i].iov = {&room_iov_[i], 1};
    }
    return rooms_;
  }

  static constexpr std::uint16_t kEtherType = 0x88b5;
  std::optional<TapDevice> tap_;
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<const GuestMemory> memory_;
  Fd sniffer_;
  std::array<XdpBuff, 64> frames_;
  std::array<std::array<iovec, 3>, 64> iov_;
  std::array<ReceiveRoom, 8> rooms_;
  std::array<iovec, 8> room_iov_;
  std::size_t count_ = 0;
  std::uint64_t next_gpa_ = 0;
};

TEST_P(TapBackendTest, BatchArrivesWholeAndInOrder) {
  for (unsigned i = 0; i < 64; ++i) {
    place(i, 60 + i * 20, i % 3 != 0);
  }
  const Moved moved = send_all();
  EXPECT_EQ(moved.frames, 64u);
  EXPECT_EQ(moved.syscalls, GetParam() == Kind::kWritev ? 64u : 1u);
  for (unsigned i = 0; i < 64; ++i) {
    EXPECT_EQ(frames_[i].error, 0);
    EXPECT_EQ(sniff(), frame_text(i, 60 + i * 20));
  }
  EXPECT_EQ(sniff(), "");
}

TEST_P(TapBackendTest, B16_OneRefusedFrameAmongMany) {
  for (unsigned i = 0; i < 10; ++i) {
    VnetHeader header{};
    header.hdr.hdr_len = i == 4 ? 9999 : 0;  // tun.c: EINVAL
    place(i, 100, true, header);
  }
  EXPECT_EQ(send_all().frames, 10u);
  for (unsigned i = 0; i < 10; ++i) {
    EXPECT_EQ(frames_[i].error, i == 4 ? EINVAL : 0);
    if (i != 4) {
      EXPECT_EQ(sniff(), frame_text(i, 100));
    }
  }
}

TEST_P(TapBackendTest, B61_DownAndDeletedAreErrorsOfTheFrames) {
  place(0, 60, true);
  place(1, 60, false);
  link(false);
  EXPECT_EQ(send_all().frames, 2u);
  EXPECT_EQ(frames_[0].error, EIO);
  EXPECT_EQ(frames_[1].error, EIO);
  link(true);
  EXPECT_EQ(send_all().frames, 2u);
  EXPECT_EQ(frames_[1].error, 0);
  ASSERT_EQ(std::system("ip link del vt0"), 0);
  EXPECT_EQ(send_all().frames, 2u);
  EXPECT_EQ(frames_[0].error, EBADFD);
  EXPECT_FALSE(tap_->exists());
  std::array<std::byte, 2048> buffer;
  const iovec room{buffer.data(), buffer.size()};
  ReceiveRoom receive{.iov = {&room, 1}};
  EXPECT_EQ(backend_->recvmmsg({&receive, 1}).frames, 1u);
  EXPECT_EQ(receive.result, -EBADFD);
}

TEST_P(TapBackendTest, B60_FullSendBufferIsAPrefixNotAnError) {
  int bytes = 1;
  ASSERT_EQ(::ioctl(tap_->queue(0).get(), TUNSETSNDBUF, &bytes), 0);
  auto limited = make_tap_queue(tap_->queue(0), GetParam() != Kind::kWritev, GetParam() == Kind::kWritev);
  ASSERT_TRUE(limited);
  EXPECT_TRUE((*limited)->send_limited());
  EXPECT_FALSE(backend_->send_limited()) << "asked when it was made";
}

TEST_P(TapBackendTest, EmptyTapReturnsAtOnce) {
  auto& rooms = make_rooms();
  while (backend_->recvmmsg({rooms.data(), 8}).frames != 0) {  // what the kernel itself sent
  }
  EXPECT_EQ(backend_->recvmmsg({rooms.data(), 1}).frames, 0u);
  EXPECT_EQ(backend_->recvmmsg({rooms.data(), 8}).frames, 0u);
}

TEST_P(TapBackendTest, FramesForTheGuestComeInOrderWithTheirLength) {
  auto& rooms = make_rooms();
  while (backend_->recvmmsg({rooms.data(), 8}).frames != 0) {
  }
  for (unsigned i = 0; i < 6; ++i) {
    const std::string text = frame_text(i, 60 + i);
    ASSERT_EQ(::send(sniffer_.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  EXPECT_EQ(backend_->recvmmsg({rooms.data(), 1}).frames, 1u);
  EXPECT_EQ(backend_->recvmmsg({rooms.data() + 1, 7}).frames, 5u);
  for (unsigned i = 0; i < 6; ++i) {
    ASSERT_EQ(rooms[i].result, static_cast<int>(kHeaderBytes + 60 + i));
    EXPECT_EQ(std::memcmp(static_cast<std::byte*>(rooms[i].iov[0].iov_base) + kHeaderBytes,
                          frame_text(i, 60 + i).data(), 60 + i),
              0);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, TapBackendTest, ::testing::Values(Kind::kWritev, Kind::kUring, Kind::kUringFixed),
                         [](const auto& method) {
                           return method.param == Kind::kWritev  ? "writev"
                                  : method.param == Kind::kUring ? "uring"
                                                                 : "uring_fixed";
                         });

class TapDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::unshare(CLONE_NEWNET) != 0) {
      GTEST_SKIP() << "needs CAP_SYS_ADMIN";
    }
  }
};

TEST_F(TapDeviceTest, ExistingDevicesAreUsedOrRefusedWithASentence) {
  ASSERT_EQ(std::system("ip tuntap add plain mode tap && ip tuntap add many mode tap multi_queue && "
                        "ip tuntap add layer3 mode tun && ip link add other type veth peer name other2"),
            0);
  EXPECT_TRUE(TapDevice::open("plain", 1));
  EXPECT_TRUE(TapDevice::open("many", 1));
  EXPECT_TRUE(TapDevice::open("many", 4));
  const auto said = [](const Result<TapDevice>& result, const char* words) {
    return !result && result.error().what.find(words) != std::string::npos;
  };
  EXPECT_TRUE(said(TapDevice::open("plain", 2), "multi_queue"));
  EXPECT_TRUE(said(TapDevice::open("layer3", 1), "other flags"));
  EXPECT_TRUE(said(TapDevice::open("other", 1), "not a TAP"));
  const auto held = TapDevice::open("plain", 1);
  ASSERT_TRUE(held);
  EXPECT_TRUE(said(TapDevice::open("plain", 1), "another process"));
}

TEST_F(TapDeviceTest, DeviceOfOursGoesWithItsLastDescriptor) {
  {
    const auto tap = TapDevice::open("gone", 2);
    ASSERT_TRUE(tap);
    EXPECT_TRUE(tap->up());
  }
  EXPECT_EQ(::if_nametoindex("gone"), 0u);
}

TEST_F(TapDeviceTest, OffloadsAreTakenInEveryCombination) {
  auto tap = TapDevice::open("off0", 1);
  ASSERT_TRUE(tap);
  constexpr std::array<unsigned, 6> kBits = {VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
                                             VIRTIO_NET_F_GUEST_ECN,  VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6};
  for (unsigned mask = 0; mask < 64; ++mask) {
    std::uint64_t features = 0;
    for (unsigned i = 0; i < kBits.size(); ++i) {
      const bool uso = kBits[i] >= VIRTIO_NET_F_GUEST_USO4;
      features |= (mask >> i & 1) != 0 && (!uso || tap->has_uso()) ? feature_bit(kBits[i]) : 0;
    }
    const auto set = tap->set_offloads(features);
    EXPECT_TRUE(set) << mask << " " << set.error().what;
  }
}

TEST_F(TapDeviceTest, AdoptedDescriptorsAreChecked) {
  EXPECT_FALSE(TapDevice::adopt({9999}));
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(TapDevice::adopt({null.get()}));
  const auto tap = TapDevice::open("src0", 1);
  ASSERT_TRUE(tap);
  const auto adopted = TapDevice::adopt({tap->queue(0).get()});
  ASSERT_TRUE(adopted);
  EXPECT_EQ(adopted->name(), "src0");
}

}  // namespace
}  // namespace vxdp
