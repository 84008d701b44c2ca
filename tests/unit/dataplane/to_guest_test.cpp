// SPDX-License-Identifier: Apache-2.0
#include "vxdp/dataplane/to_guest.hpp"

#include <gtest/gtest.h>

#include "fakes/fake_backend.hpp"
#include "fakes/fake_driver.hpp"

namespace vxdp {
namespace {

using testing::FakeBackend;
using testing::FakeDriver;

constexpr std::uint64_t kPlain = testing::kDefaultFeatures;
constexpr std::uint64_t kMergeable = kPlain | feature_bit(VIRTIO_NET_F_MRG_RXBUF);
constexpr std::uint32_t kFrameBytes = 1518;

std::string numbered(std::size_t bytes, unsigned seed) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    text.push_back(static_cast<char>(i * 31 + seed));
  }
  return text;
}

class ToGuestTest : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  void start(std::uint64_t features, std::uint32_t frame_bytes = kFrameBytes, std::uint16_t ring = 64) {
    guest_ = std::make_unique<FakeDriver>(ring, features);
    to_guest_ = std::make_unique<ToGuest>(backend_, counters_, 64);
    to_guest_->start(std::move(*SplitQueue::create(guest_->config())), frame_bytes);
    ring_ = ring;
  }
  /// Offers a buffer made of parts of these sizes.
  void post(const std::vector<std::uint32_t>& parts) {
    const std::uint16_t head = next_desc_;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      guest_->set_desc(next_desc_, {next_gpa_, parts[i],
                                    static_cast<std::uint16_t>(VRING_DESC_F_WRITE | (last ? 0 : VRING_DESC_F_NEXT)),
                                    static_cast<std::uint16_t>((next_desc_ + 1) % ring_)});
      place_[next_desc_] = {next_gpa_, parts[i]};
      next_gpa_ += parts[i] + 64;
      next_desc_ = static_cast<std::uint16_t>((next_desc_ + 1) % ring_);
    }
    parts_[head] = parts.size();
    guest_->make_available(head);
  }
  /// The bytes of used entry `index` as the guest sees them.
  std::string used_bytes(std::uint16_t index) {
    const vring_used_elem elem = guest_->used(index);
    std::string bytes;
    for (std::size_t i = 0; i < parts_[static_cast<std::uint16_t>(elem.id)]; ++i) {
      const auto& [gpa, size] = place_[static_cast<std::uint16_t>((elem.id + i) % ring_)];
      bytes += guest_->read(gpa, std::min<std::size_t>(size, elem.len - bytes.size()));
    }
    return bytes;
  }
  static std::string message(const std::string& frame, std::uint8_t flags = 0) {
    VnetHeader header{};
    header.hdr.flags = flags;
    header.num_buffers = 0xeeee;  // the kernel does not write it: ours to set
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + frame;
  }
  static unsigned num_buffers(const std::string& bytes) {
    return static_cast<unsigned char>(bytes[10]) | static_cast<unsigned>(static_cast<unsigned char>(bytes[11])) << 8;
  }
  std::uint64_t drops(vxdp_drop_reason reason) const { return counters_.drops[reason].read(); }

  FakeBackend backend_;
  QueueCounters counters_;
  std::unique_ptr<FakeDriver> guest_;
  std::unique_ptr<ToGuest> to_guest_;
  std::uint16_t ring_ = 0;
  std::uint16_t next_desc_ = 0;
  std::uint64_t next_gpa_ = FakeDriver::kBuffers;
  std::map<std::uint16_t, std::pair<std::uint64_t, std::uint32_t>> place_;
  std::map<std::uint16_t, std::size_t> parts_;
};

TEST_F(ToGuestTest, B20_NumBuffersIsOneWithoutMergeableBuffers) {
  start(kPlain);
  post({2000});
  backend_.incoming.push_back(message(numbered(100, 1)));
  EXPECT_EQ(to_guest_->step(), 1u);
  ASSERT_EQ(guest_->used_index(), 1);
  EXPECT_EQ(guest_->used(0).len, 112u);
  EXPECT_EQ(num_buffers(used_bytes(0)), 1u);
  EXPECT_EQ(used_bytes(0).substr(12), numbered(100, 1));
  EXPECT_EQ(counters_.frames.read(), 1u);
  EXPECT_EQ(counters_.bytes.read(), 100u);
}

TEST_F(ToGuestTest, FrameGoesOverAsManyMergeableBuffersAsItNeeds) {
  start(kMergeable);
  for (int i = 0; i < 8; ++i) {
    post({500});
  }
  const std::string frame = numbered(1400, 3);
  backend_.incoming.push_back(message(frame));
  EXPECT_EQ(to_guest_->step(), 1u);
  ASSERT_EQ(guest_->used_index(), 3);
  EXPECT_EQ(num_buffers(used_bytes(0)), 3u);
  EXPECT_EQ(guest_->used(0).len, 500u);
  EXPECT_EQ(guest_->used(1).len, 500u);
  EXPECT_EQ(guest_->used(2).len, 412u);
  EXPECT_EQ((used_bytes(0) + used_bytes(1) + used_bytes(2)).substr(12), frame);
}

TEST_F(ToGuestTest, BuffersTakenAheadServeTheNextFrames) {
  start(kMergeable);
  for (int i = 0; i < 9; ++i) {
    post({700});
  }
  for (unsigned i = 0; i < 5; ++i) {
    backend_.incoming.push_back(message(numbered(60 + i, i)));
  }
  EXPECT_EQ(to_guest_->step(), 5u);
  ASSERT_EQ(guest_->used_index(), 5);
  for (std::uint16_t i = 0; i < 5; ++i) {
    EXPECT_EQ(guest_->used(i).id, i);
    EXPECT_EQ(used_bytes(i).substr(12), numbered(60U + i, i));
  }
}

TEST_F(ToGuestTest, B10_HeaderMayBeSplitOverDescriptors) {
  start(kMergeable | feature_bit(VIRTIO_NET_F_GUEST_CSUM));
  post({5, 6, 3000});
  backend_.incoming.push_back(message(numbered(200, 9), VIRTIO_NET_HDR_F_NEEDS_CSUM));
  EXPECT_EQ(to_guest_->step(), 1u);
  EXPECT_EQ(num_buffers(used_bytes(0)), 1u);
  EXPECT_EQ(used_bytes(0)[0], VIRTIO_NET_HDR_F_NEEDS_CSUM);
  EXPECT_EQ(used_bytes(0).substr(12), numbered(200, 9));
}

TEST_F(ToGuestTest, B24_FlagsAreClearedForAGuestWithoutChecksumOffload) {
  start(kPlain);
  post({3000});
  backend_.incoming.push_back(message(numbered(200, 9), VIRTIO_NET_HDR_F_DATA_VALID));
  to_guest_->step();
  EXPECT_EQ(used_bytes(0)[0], 0);
}

TEST_F(ToGuestTest, B18_FrameThatDoesNotFitIsDroppedAndTheBufferKept) {
  start(kPlain);
  post({200});
  backend_.incoming.push_back(message(numbered(189, 1)));
  backend_.incoming.push_back(message(numbered(188, 2)));
  to_guest_->step();
  to_guest_->step();
  EXPECT_EQ(drops(VXDP_DROP_TOO_BIG), 1u);
  ASSERT_EQ(guest_->used_index(), 1);
  EXPECT_EQ(used_bytes(0).substr(12), numbered(188, 2));
}

TEST_F(ToGuestTest, B19_FrameWaitsForMoreMergeableBuffersAndLosesNothing) {
  start(kMergeable);
  post({500});
  const std::string frame = numbered(1400, 7);
  backend_.incoming.push_back(message(frame));
  EXPECT_EQ(to_guest_->step(), 0u);
  EXPECT_EQ(guest_->used_index(), 0);
  EXPECT_EQ(counters_.ring_full.read(), 1u);
  EXPECT_FALSE(to_guest_->has_work());
  post({500});
  EXPECT_TRUE(to_guest_->has_work());
  EXPECT_EQ(to_guest_->step(), 0u);
  post({500});
  EXPECT_EQ(to_guest_->step(), 1u);
  ASSERT_EQ(guest_->used_index(), 3);
  EXPECT_EQ(num_buffers(used_bytes(0)), 3u);
  EXPECT_EQ((used_bytes(0) + used_bytes(1) + used_bytes(2)).substr(12), frame);
}

TEST_F(ToGuestTest, FrameLargerThanTheWholeRingIsDropped) {
  start(kMergeable, kFrameBytes, 4);
  for (int i = 0; i < 4; ++i) {
    post({100});
  }
  backend_.incoming.push_back(message(numbered(1000, 1)));
  backend_.incoming.push_back(message(numbered(60, 2)));
  to_guest_->step();
  to_guest_->step();
  EXPECT_EQ(drops(VXDP_DROP_TOO_BIG), 1u);
  ASSERT_EQ(guest_->used_index(), 1);
  EXPECT_EQ(used_bytes(0).substr(12), numbered(60, 2));
}

TEST_F(ToGuestTest, FrameLargerThanExpectedStillArrivesWhole) {
  start(kMergeable);  // expects 1518; somebody raised the MTU to 9000 since
  for (int i = 0; i < 8; ++i) {
    post({2000});
  }
  const std::string frame = numbered(9000, 5);
  backend_.incoming.push_back(message(frame));
  EXPECT_EQ(to_guest_->step(), 1u);
  ASSERT_EQ(guest_->used_index(), 5);
  std::string got;
  for (std::uint16_t i = 0; i < 5; ++i) {
    got += used_bytes(i);
  }
  EXPECT_EQ(num_buffers(got), 5u);
  EXPECT_EQ(got.substr(12), frame);
}

TEST_F(ToGuestTest, NothingIsReadWithoutABuffer) {
  start(kPlain);
  backend_.incoming.push_back(message(numbered(60, 1)));
  EXPECT_EQ(to_guest_->step(), 0u);
  EXPECT_EQ(to_guest_->step(), 0u);
  EXPECT_EQ(backend_.incoming.size(), 1u) << "the frame stays where it is";
  EXPECT_EQ(counters_.ring_full.read(), 1u) << "counted once a wait";
  EXPECT_FALSE(to_guest_->has_work());
  post({2000});
  EXPECT_EQ(to_guest_->step(), 1u);
}

TEST_P(ToGuestTest, BurstIsReadSeveralFramesACallAndInOrder) {
  start(GetParam());
  for (int i = 0; i < 64; ++i) {
    post({2048});
  }
  for (unsigned i = 0; i < 60; ++i) {
    backend_.incoming.push_back(message(numbered(60 + i, i)));
  }
  EXPECT_EQ(to_guest_->step(), 60u);
  EXPECT_LT(counters_.syscalls.read(), 12u);
  ASSERT_EQ(guest_->used_index(), 60);
  for (std::uint16_t i = 0; i < 60; ++i) {
    EXPECT_EQ(guest_->used(i).id, i);
    EXPECT_EQ(num_buffers(used_bytes(i)), 1u);
    EXPECT_EQ(used_bytes(i).substr(12), numbered(60U + i, i));
  }
}

// A frame that arrives in the middle of a call leaves the room before it empty.
TEST_P(ToGuestTest, HoleInABurstIsClosedSoThatBuffersReturnInOrder) {
  start(GetParam());
  for (int i = 0; i < 16; ++i) {
    post({1000, 600});
  }
  for (unsigned i = 0; i < 7; ++i) {  // 1, then 2, then 4 rooms
    backend_.incoming.push_back(message(numbered(1200 + i, i)));
  }
  backend_.holes = {{2, true}};
  to_guest_->step();
  to_guest_->set_readable();
  to_guest_->step();
  ASSERT_EQ(guest_->used_index(), 7);
  for (std::uint16_t i = 0; i < 7; ++i) {
    EXPECT_EQ(guest_->used(i).id, guest_->used(0).id + 2U * i);
    EXPECT_EQ(used_bytes(i).substr(12), numbered(1200U + i, i)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Buffers, ToGuestTest, ::testing::Values(kPlain, kMergeable));

TEST_F(ToGuestTest, BadBuffersReturnEmptyInOrderAndCostNoFrame) {
  start(kMergeable);
  post({2000});
  guest_->set_desc(next_desc_, {0x7fff'0000'0000, 2000, VRING_DESC_F_WRITE, 0});  // B8
  guest_->make_available(next_desc_++);
  guest_->set_desc(next_desc_, {FakeDriver::kBuffers, 2000, 0, 0});  // B12: readable
  guest_->make_available(next_desc_++);
  guest_->set_desc(next_desc_, {FakeDriver::kBuffers, 4, VRING_DESC_F_WRITE, 0});  // no room for a header
  guest_->make_available(next_desc_++);
  post({2000});
  backend_.incoming.push_back(message(numbered(60, 1)));
  backend_.incoming.push_back(message(numbered(61, 2)));
  EXPECT_EQ(to_guest_->step(), 2u);
  ASSERT_EQ(guest_->used_index(), 5);
  for (std::uint16_t i = 0; i < 5; ++i) {
    EXPECT_EQ(guest_->used(i).id, i);
  }
  EXPECT_EQ(guest_->used(1).len, 0u);
  EXPECT_EQ(guest_->used(4).len, 73u);
  EXPECT_EQ(drops(VXDP_DROP_BAD_ADDRESS), 1u);
  EXPECT_EQ(drops(VXDP_DROP_BAD_CHAIN), 2u);
}

TEST_F(ToGuestTest, StopGivesBuffersTakenAheadBack) {
  start(kMergeable);
  for (int i = 0; i < 10; ++i) {
    post({500});
  }
  backend_.incoming.push_back(message(numbered(60, 1)));
  to_guest_->step();
  EXPECT_EQ(to_guest_->stop(), 1);
  EXPECT_EQ(guest_->used_index(), 1);
}

TEST_F(ToGuestTest, WindowOfManySmallBuffersIsCompactedWithoutLoss) {
  start(kMergeable, 1518, 1024);
  std::uint16_t posted = 0;
  std::uint16_t seen = 0;
  for (unsigned round = 0; round < 3000; ++round) {
    while (static_cast<std::uint16_t>(posted - seen) < 900) {
      if (next_gpa_ > FakeDriver::kBuffers + (3 << 20)) {
        next_gpa_ = FakeDriver::kBuffers;
      }
      post({40});
      ++posted;
    }
    const std::string frame = numbered(1000 + round % 500, round);
    backend_.incoming.push_back(message(frame));
    to_guest_->set_readable();
    ASSERT_EQ(to_guest_->step(), 1u) << round;
    std::string got;
    const auto first = static_cast<std::uint16_t>(seen);
    const std::uint16_t end = guest_->used_index();
    for (; seen != end; ++seen) {
      got += used_bytes(seen);
    }
    ASSERT_EQ(num_buffers(got), static_cast<unsigned>(static_cast<std::uint16_t>(end - first)));
    ASSERT_EQ(got.substr(12), frame) << round;
  }
}

TEST_F(ToGuestTest, InterfaceGoneIsNotedAndNotRetriedInALoop) {
  start(kPlain);
  post({2000});
  class Gone : public FakeBackend {
    Moved recvmmsg(std::span<ReceiveRoom> rooms) noexcept override {
      rooms[0].result = -EBADFD;
      return {.frames = 1, .syscalls = 1};
    }
  } gone;
  to_guest_->use_backend(gone);
  EXPECT_EQ(to_guest_->step(), 0u);
  EXPECT_TRUE(to_guest_->backend_gone());
  EXPECT_FALSE(to_guest_->has_work());
}

}  // namespace
}  // namespace vxdp
