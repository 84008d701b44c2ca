// SPDX-License-Identifier: Apache-2.0
#include "vxdp/virtqueue/split_queue.hpp"

#include <gtest/gtest.h>

#include <array>

#include "fakes/fake_driver.hpp"

namespace vxdp {
namespace {

using testing::FakeDriver;
using testing::kDefaultFeatures;

constexpr std::uint64_t kBuffer = FakeDriver::kBuffers;
constexpr std::uint64_t kIndirect = kDefaultFeatures | feature_bit(VIRTIO_RING_F_INDIRECT_DESC);
constexpr std::uint64_t kEventIdx = kDefaultFeatures | feature_bit(VIRTIO_RING_F_EVENT_IDX);

vring_desc desc(std::uint64_t addr, std::uint32_t len, unsigned flags = 0, unsigned next = 0) {
  return {addr, len, static_cast<std::uint16_t>(flags), static_cast<std::uint16_t>(next)};
}

class SplitQueueTest : public ::testing::Test {
 protected:
  Chain take_only(FakeDriver& guest, ChainUse use = ChainUse::kDeviceReads) {
    auto queue = SplitQueue::create(guest.config());
    EXPECT_TRUE(queue);
    EXPECT_EQ(queue->available(), 1);
    return queue->take(use, room_);
  }
  std::array<iovec, 1024> room_{};
};

TEST_F(SplitQueueTest, ChainBecomesItsBuffersInOrder) {
  FakeDriver guest(8);
  guest.set_desc(3, desc(kBuffer, 12, VRING_DESC_F_NEXT, 5));
  guest.set_desc(5, desc(kBuffer + 4096, 60));
  guest.make_available(3);
  const Chain chain = take_only(guest);
  EXPECT_EQ(chain.verdict, VXDP_DROP_NONE);
  EXPECT_EQ(chain.head, 3);
  ASSERT_EQ(chain.segments, 2);
  EXPECT_EQ(chain.bytes, 72u);
  EXPECT_EQ(room_[0].iov_base, guest.at(kBuffer));
  EXPECT_EQ(room_[1].iov_base, guest.at(kBuffer + 4096));
}

/// One malformed chain: what is written into ring and tables, and the verdict it must get.
struct BadChain {
  const char* name;
  std::vector<vring_desc> ring;
  std::vector<vring_desc> table;  // at kTable
  vxdp_drop_reason verdict;
};
constexpr std::uint64_t kTable = kBuffer + 0x10000;
const unsigned kN = VRING_DESC_F_NEXT;
const unsigned kI = VRING_DESC_F_INDIRECT;
const unsigned kW = VRING_DESC_F_WRITE;
const std::uint64_t kNowhere = 0x7fff'0000'0000;

class BadChainTest : public ::testing::TestWithParam<BadChain> {};

TEST_P(BadChainTest, IsJudgedAndStillHandedBack) {
  const BadChain& bad = GetParam();
  FakeDriver guest(8, kIndirect);
  for (std::size_t i = 0; i < bad.ring.size(); ++i) {
    guest.set_desc(static_cast<std::uint16_t>(i), bad.ring[i]);
  }
  for (std::size_t i = 0; i < bad.table.size(); ++i) {
    guest.set_table_desc(kTable, static_cast<std::uint16_t>(i), bad.table[i]);
  }
  guest.set_desc(7, desc(kBuffer, 100));
  guest.make_available(0);
  guest.make_available(7);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  std::array<iovec, 64> room;
  const Chain chain = queue->take(ChainUse::kDeviceReads, room);
  EXPECT_EQ(chain.verdict, bad.verdict);
  EXPECT_EQ(chain.segments, 0);
  EXPECT_FALSE(queue->broken());
  queue->complete(chain.head, 0);
  EXPECT_EQ(queue->take(ChainUse::kDeviceReads, room).verdict, VXDP_DROP_NONE) << "the chain behind it is good";
  queue->publish();
  EXPECT_EQ(guest.used_index(), 1);
  EXPECT_EQ(guest.used(0).id, 0u);
  EXPECT_EQ(guest.used(0).len, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    EdgeCases, BadChainTest,
    ::testing::Values(
        BadChain{"B1_LoopToItself", {desc(kBuffer, 64, kN, 0)}, {}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B1_LoopOfTwo", {desc(kBuffer, 64, kN, 1), desc(kBuffer, 64, kN, 0)}, {}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B1_LoopInTable",
                 {desc(kTable, 32, kI)},
                 {desc(kBuffer, 64, kN, 1), desc(kBuffer, 64, kN, 0)},
                 VXDP_DROP_BAD_CHAIN},
        BadChain{"B2_NextPastRing", {desc(kBuffer, 64, kN, 8)}, {}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B2_NextPastTable", {desc(kTable, 32, kI)}, {desc(kBuffer, 64, kN, 2)}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B3_EmptyTable", {desc(kTable, 0, kI)}, {}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B3_OddTable", {desc(kTable, 24, kI)}, {desc(kBuffer, 64)}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B3_TableLongerThanRing", {desc(kTable, 16 * 9, kI)}, {desc(kBuffer, 64)}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B3_NestedTable", {desc(kTable, 16, kI)}, {desc(kTable, 16, kI)}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B3_TableAndNext",
                 {desc(kTable, 16, kI | kN, 1), desc(kBuffer, 64)},
                 {desc(kBuffer, 64)},
                 VXDP_DROP_BAD_CHAIN},
        BadChain{"B6_OnlyEmpty", {desc(kBuffer, 0)}, {}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B7_EmptyWithBadAddress", {desc(kNowhere, 0, kN, 1), desc(kBuffer, 64)}, {}, VXDP_DROP_BAD_ADDRESS},
        BadChain{"B8_BadAddress", {desc(kNowhere, 64)}, {}, VXDP_DROP_BAD_ADDRESS},
        BadChain{"B8_BadTableAddress", {desc(kNowhere, 16, kI)}, {}, VXDP_DROP_BAD_ADDRESS},
        BadChain{"B8_PastTheEnd", {desc(2 * FakeDriver::kRegionBytes - 8, 64)}, {}, VXDP_DROP_BAD_ADDRESS},
        BadChain{"B8_WrapsAround", {desc(UINT64_MAX - 7, 64)}, {}, VXDP_DROP_BAD_ADDRESS},
        BadChain{"B8_4GiBLong", {desc(kBuffer, UINT32_MAX)}, {}, VXDP_DROP_BAD_ADDRESS},
        BadChain{"B12_WritableInReadable", {desc(kBuffer, 64, kW)}, {}, VXDP_DROP_BAD_CHAIN},
        BadChain{"B12_WritableBehind", {desc(kBuffer, 64, kN, 1), desc(kBuffer, 64, kW)}, {}, VXDP_DROP_BAD_CHAIN}),
    [](const auto& bad) { return bad.param.name; });

TEST_F(SplitQueueTest, IndirectTableNeedsItsFeature) {
  FakeDriver guest(8);
  guest.set_desc(0, desc(kTable, 16, kI));
  guest.set_table_desc(kTable, 0, desc(kBuffer, 64));
  guest.make_available(0);
  EXPECT_EQ(take_only(guest).verdict, VXDP_DROP_BAD_CHAIN);
}

// virtio 1.2, 2.7.5.3.2: a device must take normal descriptors followed by one indirect.
TEST_F(SplitQueueTest, TableMayFollowNormalDescriptors) {
  FakeDriver guest(8, kIndirect);
  guest.set_desc(0, desc(kBuffer, 12, kN, 1));
  guest.set_desc(1, desc(kTable, 32, kI));
  guest.set_table_desc(kTable, 0, desc(kBuffer + 64, 20, kN, 1));
  guest.set_table_desc(kTable, 1, desc(kBuffer + 128, 40));
  guest.make_available(0);
  const Chain chain = take_only(guest);
  EXPECT_EQ(chain.verdict, VXDP_DROP_NONE);
  EXPECT_EQ(chain.segments, 3);
  EXPECT_EQ(chain.bytes, 72u);
}

TEST_F(SplitQueueTest, B4_BufferAcrossRegionsIsSplit) {
  FakeDriver guest(8);
  guest.set_desc(0, desc(FakeDriver::kRegionBytes - 10, 100));
  guest.make_available(0);
  const Chain chain = take_only(guest);
  ASSERT_EQ(chain.segments, 2);
  EXPECT_EQ(room_[0].iov_len, 10u);
  EXPECT_EQ(room_[1].iov_len, 90u);
  EXPECT_EQ(room_[1].iov_base, guest.at(FakeDriver::kRegionBytes));
}

TEST_F(SplitQueueTest, B4_TableAcrossRegionsIsRead) {
  FakeDriver guest(8, kIndirect);
  const std::uint64_t table = FakeDriver::kRegionBytes - 24;  // its second entry lies across the border
  guest.set_desc(0, desc(table, 32, kI));
  guest.set_table_desc(table, 0, desc(kBuffer, 12, kN, 1));
  guest.set_table_desc(table, 1, desc(kBuffer + 64, 60));
  guest.make_available(0);
  const Chain chain = take_only(guest);
  EXPECT_EQ(chain.verdict, VXDP_DROP_NONE);
  EXPECT_EQ(chain.bytes, 72u);
}

TEST_F(SplitQueueTest, B5_Windows515DescriptorChainIsTaken) {
  FakeDriver guest(1024, kIndirect);
  for (std::uint16_t i = 0; i < 515; ++i) {
    guest.set_table_desc(kTable, i, desc(kBuffer + i, 1, i < 514 ? kN : 0, i + 1U));
  }
  guest.set_desc(0, desc(kTable, 515 * 16, kI));
  guest.make_available(0);
  const Chain chain = take_only(guest);
  EXPECT_EQ(chain.verdict, VXDP_DROP_NONE);
  EXPECT_EQ(chain.segments, 515);
}

TEST_F(SplitQueueTest, B6_EmptyDescriptorBetweenGoodOnesIsSkipped) {
  FakeDriver guest(8);
  guest.set_desc(0, desc(kBuffer, 12, kN, 1));
  guest.set_desc(1, desc(kBuffer, 0, kN, 2));
  guest.set_desc(2, desc(kBuffer + 64, 60));
  guest.make_available(0);
  const Chain chain = take_only(guest);
  EXPECT_EQ(chain.verdict, VXDP_DROP_NONE);
  EXPECT_EQ(chain.segments, 2);
}

TEST_F(SplitQueueTest, NoRoomTakesNothing) {
  FakeDriver guest(8);
  guest.set_desc(0, desc(kBuffer, 12, kN, 1));
  guest.set_desc(1, desc(kBuffer, 60));
  guest.make_available(0);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  std::array<iovec, 1> little;
  EXPECT_TRUE(queue->take(ChainUse::kDeviceReads, little).no_room);
  EXPECT_EQ(queue->available(), 1);
  EXPECT_EQ(queue->take(ChainUse::kDeviceReads, room_).segments, 2);
}

TEST_F(SplitQueueTest, B13_IndexJumpBreaksTheRingAndSaysSo) {
  FakeDriver guest(8);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  guest.set_avail_index(8);
  EXPECT_EQ(queue->available(), 8) << "a full ring is legal";
  guest.set_avail_index(9);
  EXPECT_EQ(queue->available(), 0);
  EXPECT_TRUE(queue->broken());
  EXPECT_TRUE(guest.error_signalled());
  guest.set_avail_index(1);
  EXPECT_EQ(queue->available(), 0) << "broken until reset";
}

TEST_F(SplitQueueTest, B14_IndexBackwardBreaksTheRing) {
  FakeDriver guest(8, kDefaultFeatures, 100);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  guest.set_avail_index(99);
  EXPECT_EQ(queue->available(), 0);
  EXPECT_TRUE(queue->broken());
}

TEST_F(SplitQueueTest, HeadBeyondTheRingBreaksIt) {
  FakeDriver guest(8);
  guest.make_available(8);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  EXPECT_EQ(queue->available(), 1);
  EXPECT_EQ(queue->take(ChainUse::kDeviceReads, room_).verdict, VXDP_DROP_BAD_CHAIN);
  EXPECT_TRUE(queue->broken());
}

TEST_F(SplitQueueTest, B22_IndicesWrapAt65536) {
  FakeDriver guest(4, kDefaultFeatures, 65533);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  for (unsigned round = 0; round < 10; ++round) {
    const auto head = static_cast<std::uint16_t>(round % 4);
    guest.set_desc(head, desc(kBuffer, 60));
    guest.make_available(head);
    ASSERT_EQ(queue->available(), 1);
    EXPECT_EQ(queue->take(ChainUse::kDeviceReads, room_).head, head);
    queue->complete(head, 0);
    EXPECT_EQ(queue->publish(), 1);
    EXPECT_EQ(guest.used_index(), static_cast<std::uint16_t>(65534 + round));
    EXPECT_EQ(guest.used(static_cast<std::uint16_t>(65533 + round)).id, head);
  }
}

TEST_F(SplitQueueTest, UntakenChainsComeAgain) {
  FakeDriver guest(4);
  guest.set_desc(0, desc(kBuffer, 60));
  guest.set_desc(1, desc(kBuffer, 61));
  guest.make_available(0);
  guest.make_available(1);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  (void)queue->take(ChainUse::kDeviceReads, room_);
  (void)queue->take(ChainUse::kDeviceReads, room_);
  queue->untake(1);
  EXPECT_EQ(queue->next_avail(), 1);
  EXPECT_EQ(queue->take(ChainUse::kDeviceReads, room_).bytes, 61u);
}

void complete_one(SplitQueue& queue, FakeDriver& guest) {
  std::array<iovec, 4> room;
  guest.set_desc(0, desc(kBuffer, 60));
  guest.make_available(0);
  ASSERT_EQ(queue.available(), 1);
  queue.complete(queue.take(ChainUse::kDeviceReads, room).head, 0);
  queue.publish();
}

TEST_F(SplitQueueTest, CallsFollowTheFlagWithoutEventIdx) {
  FakeDriver guest(4);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  complete_one(*queue, guest);
  EXPECT_TRUE(queue->wants_call());
  guest.set_avail_flags(VRING_AVAIL_F_NO_INTERRUPT);
  complete_one(*queue, guest);
  EXPECT_FALSE(queue->wants_call());
}

TEST_F(SplitQueueTest, CallsFollowTheEventIndex) {
  FakeDriver guest(4, kEventIdx, 65534);
  auto queue = SplitQueue::create(guest.config());
  ASSERT_TRUE(queue);
  complete_one(*queue, guest);
  EXPECT_TRUE(queue->wants_call()) << "the first publish after a start always calls";
  guest.set_used_event(65535);  // "call me when entry 65535 is used", which makes the index 0
  complete_one(*queue, guest);
  EXPECT_TRUE(queue->wants_call());
  complete_one(*queue, guest);
  EXPECT_FALSE(queue->wants_call()) << "the event lies behind";
  guest.set_used_event(3);
  complete_one(*queue, guest);
  EXPECT_FALSE(queue->wants_call()) << "the event lies ahead";
  complete_one(*queue, guest);
  complete_one(*queue, guest);
  EXPECT_TRUE(queue->wants_call()) << "the event was passed within the batch";
}

TEST_F(SplitQueueTest, KicksAreAskedForAsNegotiated) {
  FakeDriver plain(4);
  auto queue = SplitQueue::create(plain.config());
  ASSERT_TRUE(queue);
  queue->disable_kicks();
  EXPECT_EQ(plain.used_flags(), VRING_USED_F_NO_NOTIFY);
  queue->enable_kicks();
  EXPECT_EQ(plain.used_flags(), 0);
  FakeDriver event(4, kEventIdx, 77);
  auto other = SplitQueue::create(event.config());
  ASSERT_TRUE(other);
  other->enable_kicks();
  EXPECT_EQ(event.avail_event(), 77);
  EXPECT_EQ(event.used_flags(), 0);
}

TEST_F(SplitQueueTest, RingAddressesAreChecked) {
  FakeDriver guest(8);
  const auto refused = [&guest](auto&& change) {
    VringConfig config = guest.config();
    change(config);
    return !SplitQueue::create(std::move(config));
  };
  EXPECT_TRUE(refused([](VringConfig& c) { c.desc_fva += 8; }));
  EXPECT_TRUE(refused([](VringConfig& c) { c.avail_fva += 1; }));
  EXPECT_TRUE(refused([](VringConfig& c) { c.used_fva += 2; }));
  EXPECT_TRUE(refused([](VringConfig& c) { c.size = 0; }));
  EXPECT_TRUE(refused([](VringConfig& c) { c.size = 6; }));
  EXPECT_TRUE(refused([](VringConfig& c) { c.desc_fva = 0x1000; }));
  // B41: begins inside a region but ends outside.
  EXPECT_TRUE(refused([](VringConfig& c) { c.desc_fva = FakeDriver::kFvaBase + FakeDriver::kRegionBytes - 64; }));
  EXPECT_TRUE(refused([](VringConfig& c) { c.used_fva = FakeDriver::kFvaBase + FakeDriver::kRegionBytes - 4; }));
}

}  // namespace
}  // namespace vxdp
