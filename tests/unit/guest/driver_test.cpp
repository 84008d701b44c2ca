// SPDX-License-Identifier: Apache-2.0
// DriverQueue against a device that knows nothing but the specification.
#include "guest/driver.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "unit/guest/test_device.hpp"

namespace vxdp {
namespace {

using testing::DeviceMemory;
using testing::TestDevice;
using testing::value_of;

std::vector<std::byte> frame_of(std::size_t bytes, unsigned first) {
  std::vector<std::byte> frame(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    frame[i] = static_cast<std::byte>(first + i * 7);
  }
  return frame;
}

std::vector<std::byte> with_header(const VnetHeader& header, std::span<const std::byte> frame) {
  std::vector<std::byte> all(sizeof header);
  std::memcpy(all.data(), &header, sizeof header);
  all.insert(all.end(), frame.begin(), frame.end());
  return all;
}

/// A driver queue and the device at its other end.
struct Pair {
  explicit Pair(const DriverQueueOptions& options, unsigned regions = 1)
      : ram(value_of(GuestRam::create(DriverQueue::memory_bytes(options) + regions * 0x20000, regions))),
        memory(ram.fd(), table(ram)),
        queue(value_of(DriverQueue::create(ram, options))),
        device(memory, options.size, queue.addresses().desc_fva, queue.addresses().avail_fva,
               queue.addresses().used_fva, options.first_index, options.event_idx) {}

  static std::vector<DeviceMemory::Region> table(const GuestRam& ram) {
    std::vector<DeviceMemory::Region> regions;
    for (const GuestRam::Region& region : ram.regions()) {
      regions.push_back({region.gpa, region.bytes, region.fva, region.file_offset});
    }
    return regions;
  }
  /// The device uses every available chain, in order, and writes nothing.
  unsigned use_all() {
    unsigned used = 0;
    for (; device.available() > 0; ++used) {
      device.push(device.pop().head, 0);
    }
    device.publish();
    return used;
  }

  GuestRam ram;
  DeviceMemory memory;
  DriverQueue queue;
  TestDevice device;
};

struct Shape {
  HeaderLayout layout;
  bool indirect;
  unsigned regions;
  std::vector<std::size_t> pieces;  // of a 100-byte frame
};

class DriverShapes : public ::testing::TestWithParam<Shape> {
 protected:
  static DriverQueueOptions options(RingDirection direction) {
    DriverQueueOptions result;
    result.direction = direction;
    result.layout = GetParam().layout;
    result.indirect = GetParam().indirect;
    result.size = 64;
    result.buffer_bytes = 300;
    return result;
  }
};

TEST_P(DriverShapes, FrameAndHeaderArriveInTheDescriptorsOfTheLayout) {
  Pair pair(options(RingDirection::kFromGuest), GetParam().regions);
  VnetHeader header{};
  header.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
  header.hdr.csum_start = 0x1234;
  header.hdr.hdr_len = 0x5678;
  const std::vector<std::byte> frame = frame_of(100, 3);
  ASSERT_TRUE(pair.queue.add_frame(frame, header));
  EXPECT_EQ(pair.device.available(), 0) << "visible before publish()";
  pair.queue.publish();
  ASSERT_EQ(pair.device.available(), 1);

  const TestDevice::Chain chain = pair.device.pop();
  std::vector<std::size_t> pieces;
  for (const TestDevice::Piece& piece : chain.pieces) {
    pieces.push_back(piece.bytes.size());
    EXPECT_FALSE(piece.writable);
  }
  EXPECT_EQ(pieces, GetParam().pieces);
  EXPECT_EQ(chain.read(), with_header(header, frame));
}

TEST_P(DriverShapes, SlotsComeBackAndCarryFramesOfOtherLengths) {
  Pair pair(options(RingDirection::kFromGuest), GetParam().regions);
  const unsigned slots = pair.queue.slot_count();
  EXPECT_EQ(slots, GetParam().indirect ? 64U : 64U / GetParam().pieces.size());
  for (unsigned round = 0; round < 5; ++round) {
    std::vector<std::vector<std::byte>> sent;
    for (unsigned i = 0; i < slots; ++i) {
      sent.push_back(frame_of(1 + (i * 37 + round * 11) % 300, i));
      ASSERT_TRUE(pair.queue.add_frame(sent.back()));
    }
    EXPECT_FALSE(pair.queue.add_frame(frame_of(60, 0))) << "the ring is full";
    pair.queue.publish();
    std::vector<std::uint16_t> heads;
    for (const std::vector<std::byte>& frame : sent) {
      const TestDevice::Chain chain = pair.device.pop();
      EXPECT_EQ(chain.read(), with_header({}, frame));
      heads.insert(heads.begin(), chain.head);  // comes back in reverse order
    }
    for (const std::uint16_t head : heads) {
      pair.device.push(head, 0);
    }
    EXPECT_EQ(pair.queue.reclaim(slots), 0U) << "not published yet";
    pair.device.publish();
    EXPECT_EQ(pair.queue.reclaim(3), 3U);
    EXPECT_EQ(pair.queue.reclaim(slots), slots - 3);
    EXPECT_EQ(pair.queue.broken(), nullptr);
  }
}

TEST_P(DriverShapes, PreparedFramesAreChangedInPlace) {
  Pair pair(options(RingDirection::kFromGuest), GetParam().regions);
  std::vector<std::byte> frame = frame_of(100, 9);
  const DriverQueue::Slot slot = pair.queue.take();
  pair.queue.prepare(slot, frame, {});
  const std::vector<std::byte> change = frame_of(40, 200);
  pair.queue.write(slot, 20, change);  // over the cut between the first two thirds
  std::copy(change.begin(), change.end(), frame.begin() + 20);
  pair.queue.add(slot);
  pair.queue.publish();
  EXPECT_EQ(pair.device.pop().read(), with_header({}, frame));
  if (GetParam().layout == HeaderLayout::kSplit) {
    EXPECT_EQ(pair.queue.contiguous_frame(slot), nullptr);
  } else {
    EXPECT_EQ(std::memcmp(pair.queue.contiguous_frame(slot), frame.data(), frame.size()), 0);
  }
}

TEST_P(DriverShapes, ReceivesWhatTheDeviceWrote) {
  Pair pair(options(RingDirection::kToGuest), GetParam().regions);
  ASSERT_EQ(pair.queue.post_buffers(), pair.queue.slot_count());
  VnetHeader header{};
  header.num_buffers = 1;
  header.hdr.gso_size = 0x4321;
  const std::vector<std::byte> frame = frame_of(299, 77);
  const TestDevice::Chain chain = pair.device.pop();
  ASSERT_EQ(chain.bytes(), 12U + 300U);
  for (const TestDevice::Piece& piece : chain.pieces) {
    EXPECT_TRUE(piece.writable);
  }
  pair.device.push(chain.head, static_cast<std::uint32_t>(chain.write(with_header(header, frame))));
  pair.device.publish();

  unsigned calls = 0;
  EXPECT_EQ(pair.queue.receive(64,
                               [&](const ReceivedFrame& received) {
                                 ++calls;
                                 EXPECT_EQ(received.bytes, 299U);
                                 EXPECT_EQ(received.header.hdr.gso_size, 0x4321);
                                 std::vector<std::byte> joined;
                                 for (const auto& part : received.parts) {
                                   joined.insert(joined.end(), part.begin(), part.end());
                                 }
                                 EXPECT_EQ(joined, frame);
                               }),
            1U);
  EXPECT_EQ(calls, 1U);
  EXPECT_EQ(pair.queue.free_slots(), 1U);
  EXPECT_EQ(pair.queue.post_buffers(), 1U);
}

INSTANTIATE_TEST_SUITE_P(All, DriverShapes,
                         ::testing::Values(Shape{HeaderLayout::kInline, false, 1, {112}},
                                           Shape{HeaderLayout::kSeparate, false, 1, {12, 100}},
                                           Shape{HeaderLayout::kSplit, false, 3, {5, 7, 33, 33, 34}},
                                           Shape{HeaderLayout::kInline, true, 1, {112}},
                                           Shape{HeaderLayout::kSeparate, true, 8, {12, 100}},
                                           Shape{HeaderLayout::kSplit, true, 2, {5, 7, 33, 33, 34}}));

TEST(DriverQueue, IndicesWrapAt65535) {
  DriverQueueOptions options;
  options.size = 8;
  options.first_index = 65530;
  options.event_idx = true;
  Pair pair(options);
  std::uint64_t used = 0;
  for (unsigned i = 0; i < 70000; i += 5) {
    for (unsigned k = 0; k < 5; ++k) {
      ASSERT_TRUE(pair.queue.add_frame(frame_of(60, i + k)));
    }
    pair.queue.publish();
    ASSERT_EQ(pair.device.available(), 5);
    for (unsigned k = 0; k < 5; ++k) {
      const TestDevice::Chain chain = pair.device.pop();
      ASSERT_EQ(chain.read()[12], static_cast<std::byte>(i + k));
      pair.device.push(chain.head, 0);
    }
    pair.device.publish();
    used += pair.queue.reclaim(8);
  }
  EXPECT_EQ(used, 70000U);
  EXPECT_EQ(pair.device.next(), static_cast<std::uint16_t>(65530 + 70000));
}

TEST(DriverQueue, KicksOnlyWhenTheDeviceAskedByIndex) {
  DriverQueueOptions options;
  options.event_idx = true;
  options.first_index = 65534;
  Pair pair(options);
  const auto add = [&](unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      ASSERT_TRUE(pair.queue.add_frame(frame_of(60, i)));
    }
    pair.queue.publish();
  };
  pair.device.set_avail_event(65534);  // the next one
  EXPECT_FALSE(pair.queue.kick_needed()) << "nothing was added";
  add(1);
  EXPECT_TRUE(pair.queue.kick_needed());
  EXPECT_FALSE(pair.queue.kick_needed()) << "asked twice for the same frame";
  add(3);
  EXPECT_FALSE(pair.queue.kick_needed()) << "the event is behind";
  pair.device.set_avail_event(5);  // index 2 comes next: the kick belongs to the 4th from here
  add(3);
  EXPECT_FALSE(pair.queue.kick_needed());
  add(1);
  EXPECT_TRUE(pair.queue.kick_needed());
}

TEST(DriverQueue, KicksUnlessTheDeviceFlaggedNot) {
  Pair pair(DriverQueueOptions{});
  ASSERT_TRUE(pair.queue.add_frame(frame_of(60, 0)));
  pair.queue.publish();
  EXPECT_TRUE(pair.queue.kick_needed());
  pair.device.set_used_flags(VRING_USED_F_NO_NOTIFY);
  ASSERT_TRUE(pair.queue.add_frame(frame_of(60, 0)));
  pair.queue.publish();
  EXPECT_FALSE(pair.queue.kick_needed());
}

class DriverCalls : public ::testing::TestWithParam<bool> {};

TEST_P(DriverCalls, DisabledCallsStayAwayForManyLaps) {
  DriverQueueOptions options;
  options.event_idx = GetParam();
  Pair pair(options);
  pair.queue.disable_calls();
  for (unsigned i = 0; i < 150000; i += 50) {
    for (unsigned k = 0; k < 50; ++k) {
      ASSERT_TRUE(pair.queue.add_frame(frame_of(60, k)));
    }
    pair.queue.publish();
    for (unsigned k = 0; k < 50; ++k) {
      pair.device.push(pair.device.pop().head, 0);
    }
    ASSERT_FALSE(pair.device.publish()) << "after " << i << " frames";
    ASSERT_EQ(pair.queue.reclaim(50), 50U);
    pair.queue.disable_calls();
  }
  pair.queue.enable_calls();
  ASSERT_TRUE(pair.queue.add_frame(frame_of(60, 0)));
  pair.queue.publish();
  pair.device.push(pair.device.pop().head, 0);
  EXPECT_TRUE(pair.device.publish());
  EXPECT_TRUE(pair.queue.used_pending());
}
INSTANTIATE_TEST_SUITE_P(ByFlagAndByIndex, DriverCalls, ::testing::Bool());

TEST(DriverQueue, AskedForTheThirdCallsAtTheThird) {
  DriverQueueOptions options;
  options.event_idx = true;
  Pair pair(options);
  for (unsigned k = 0; k < 4; ++k) {
    ASSERT_TRUE(pair.queue.add_frame(frame_of(60, k)));
  }
  pair.queue.publish();
  pair.queue.enable_calls(3);
  std::vector<bool> called;
  for (unsigned k = 0; k < 4; ++k) {
    pair.device.push(pair.device.pop().head, 0);
    called.push_back(pair.device.publish());
  }
  EXPECT_EQ(called, (std::vector<bool>{false, false, true, false}));
}

DriverQueueOptions mergeable_options() {
  DriverQueueOptions options;
  options.direction = RingDirection::kToGuest;
  options.mergeable = true;
  options.size = 16;
  options.buffer_bytes = 100;
  return options;
}

TEST(DriverQueue, JoinsAFrameOverSeveralBuffersOnceAllAreThere) {
  Pair pair(mergeable_options());
  pair.queue.post_buffers();
  VnetHeader header{};
  header.num_buffers = 3;
  const std::vector<std::byte> frame = frame_of(250, 5);
  std::vector<std::byte> rest = with_header(header, frame);
  for (unsigned i = 0; i < 3; ++i) {
    unsigned frames = 0;
    EXPECT_EQ(pair.queue.receive(8, [&](const ReceivedFrame&) { ++frames; }), 0U) << "only " << i << " buffers used";
    EXPECT_EQ(frames, 0U);
    const TestDevice::Chain chain = pair.device.pop();
    const std::size_t written = chain.write(rest);
    rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(written));
    pair.device.push(chain.head, static_cast<std::uint32_t>(written));
    pair.device.publish();
  }
  ASSERT_TRUE(rest.empty());
  std::vector<std::byte> joined;
  EXPECT_EQ(pair.queue.receive(8,
                               [&](const ReceivedFrame& received) {
                                 EXPECT_EQ(received.bytes, 250U);
                                 EXPECT_EQ(received.parts.size(), 3U);
                                 for (const auto& part : received.parts) {
                                   joined.insert(joined.end(), part.begin(), part.end());
                                 }
                               }),
            1U);
  EXPECT_EQ(joined, frame);
  EXPECT_EQ(pair.queue.post_buffers(), 3U);
}

TEST(DriverQueue, ABufferThatComesBackEmptyIsAnEmptyFrame) {
  Pair pair(mergeable_options());
  pair.queue.post_buffers();
  pair.use_all();
  unsigned empty = 0;
  EXPECT_EQ(pair.queue.receive(64, [&](const ReceivedFrame& f) { empty += f.bytes == 0 && f.parts.empty(); }), 16U);
  EXPECT_EQ(empty, 16U);
  EXPECT_EQ(pair.queue.broken(), nullptr);
}

// What a device must not do: the driver says so and touches nothing more.
TEST(DriverQueue, NonsenseFromTheDeviceBreaksTheQueue) {
  const auto receive_after = [](auto&& nonsense) {
    Pair pair(mergeable_options());
    pair.queue.post_buffers();
    nonsense(pair);
    pair.device.publish();
    EXPECT_EQ(pair.queue.receive(64, [](const ReceivedFrame&) { ADD_FAILURE() << "received a frame"; }), 0U);
    return pair.queue.broken() != nullptr;
  };
  EXPECT_TRUE(receive_after([](Pair& pair) { pair.device.push(16, 20); })) << "head beyond the ring";
  EXPECT_TRUE(receive_after([](Pair& pair) { pair.device.push(pair.device.pop().head, 113); })) << "longer than posted";
  EXPECT_TRUE(receive_after([](Pair& pair) { pair.device.push(pair.device.pop().head, 11); })) << "half a header";
  EXPECT_TRUE(receive_after([](Pair& pair) {
    const TestDevice::Chain chain = pair.device.pop();
    chain.write(with_header({}, frame_of(50, 0)));  // num_buffers 0
    pair.device.push(chain.head, 62);
  }));
  EXPECT_TRUE(receive_after([](Pair& pair) { pair.device.jump_used_index(17); })) << "more than were posted";
}

TEST(DriverQueue, ADescriptorReturnedTwiceBreaksTheQueue) {
  Pair pair(DriverQueueOptions{});
  for (unsigned i = 0; i < 2; ++i) {
    ASSERT_TRUE(pair.queue.add_frame(frame_of(60, 0)));
  }
  pair.queue.publish();
  const std::uint16_t head = pair.device.pop().head;
  pair.device.push(head, 0);
  pair.device.push(head, 0);
  pair.device.publish();
  EXPECT_EQ(pair.queue.reclaim(8), 1U);
  EXPECT_NE(pair.queue.broken(), nullptr);
}

TEST(DriverQueue, RefusesRingSizesThatCannotBe) {
  for (const unsigned size : {0U, 4U, 7U, 100U, 40000U}) {
    DriverQueueOptions options;
    options.size = static_cast<std::uint16_t>(size);
    GuestRam ram = value_of(GuestRam::create(1 << 20));
    EXPECT_FALSE(DriverQueue::create(ram, options)) << size;
  }
  GuestRam small = value_of(GuestRam::create(4096));
  EXPECT_FALSE(DriverQueue::create(small, DriverQueueOptions{})) << "memory too small";
}

TEST(GuestRam, BlocksLieInsideRegionsWithHolesBetween) {
  GuestRam ram = value_of(GuestRam::create(64 * 1024, 4));
  ASSERT_EQ(ram.regions().size(), 4U);
  std::vector<unsigned> blocks(4);
  unsigned total = 0;
  for (GuestRam::Block block = ram.allocate(3000, 64); block.data != nullptr; block = ram.allocate(3000, 64)) {
    ++total;
    EXPECT_EQ(block.gpa % 64, 0U);
    for (unsigned i = 0; i < 4; ++i) {
      const GuestRam::Region& region = ram.regions()[i];
      if (block.gpa >= region.gpa && block.gpa + 3000 <= region.gpa + region.bytes) {
        ++blocks[i];
        EXPECT_EQ(ram.fva(block.data) - region.fva, block.gpa - region.gpa);
      }
    }
  }
  EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), 0U), total) << "a block outside of every region";
  EXPECT_EQ(blocks, (std::vector<unsigned>{5, 5, 5, 5}));
}

}  // namespace
}  // namespace vxdp
