// SPDX-License-Identifier: Apache-2.0
#include "vxdp/dataplane/from_guest.hpp"

#include <gtest/gtest.h>

#include "fakes/fake_backend.hpp"
#include "fakes/fake_driver.hpp"
#include "vxdp/packet/vnet_header.hpp"

namespace vxdp {
namespace {

using testing::FakeBackend;
using testing::FakeDriver;

constexpr std::uint64_t kFeatures = testing::kDefaultFeatures | feature_bit(VIRTIO_RING_F_INDIRECT_DESC) |
                                    feature_bit(VIRTIO_NET_F_CSUM) | feature_bit(VIRTIO_NET_F_HOST_TSO4);

std::string frame_of(std::size_t bytes, char fill) {
  return std::string(bytes, fill);
}

std::string text_of(const VnetHeader& header, std::size_t bytes = 12) {
  return {reinterpret_cast<const char*>(&header), bytes};
}

class FromGuestTest : public ::testing::Test {
 protected:
  explicit FromGuestTest(std::uint64_t features = kFeatures, unsigned batch = 64)
      : guest_(256, features), from_guest_(backend_, counters_, path_, batch) {
    from_guest_.start(std::move(*SplitQueue::create(guest_.config())));
  }

  /// Offers header and frame in buffers cut at `cuts` (offsets into header + frame).
  void offer(const std::string& frame, const VnetHeader& header = {}, std::vector<std::size_t> cuts = {},
             std::size_t header_bytes = 12) {
    const std::string message = text_of(header, header_bytes) + frame;
    cuts.push_back(message.size());
    const std::uint16_t head = next_desc_;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      const std::uint64_t gpa = FakeDriver::kBuffers + std::uint64_t{next_desc_} * 4096 % (2 << 20);
      guest_.write(gpa, message.substr(begin, cuts[i] - begin));
      const bool last = i + 1 == cuts.size();
      guest_.set_desc(next_desc_, {gpa, static_cast<std::uint32_t>(cuts[i] - begin),
                                   static_cast<std::uint16_t>(last ? 0 : VRING_DESC_F_NEXT),
                                   static_cast<std::uint16_t>((next_desc_ + 1) % 256)});
      next_desc_ = static_cast<std::uint16_t>((next_desc_ + 1) % 256);
      begin = cuts[i];
    }
    guest_.make_available(head);
  }

  std::uint64_t drops(vxdp_drop_reason reason) const { return counters_.drops[reason].read(); }
  std::uint64_t all_drops() const {
    std::uint64_t sum = 0;
    for (const Counter& counter : counters_.drops) {
      sum += counter.read();
    }
    return sum;
  }

  FakeDriver guest_;
  FakeBackend backend_;
  QueueCounters counters_;
  XdpPath path_;
  FromGuest from_guest_;
  std::uint16_t next_desc_ = 0;
};

TEST_F(FromGuestTest, SixtyFourFramesAreOneMessageOnePublishOneCall) {
  for (int i = 0; i < 70; ++i) {
    offer(frame_of(60, static_cast<char>('A' + i % 26)));
  }
  EXPECT_EQ(from_guest_.step(), 64u);
  EXPECT_EQ(backend_.messages, (std::vector<std::size_t>{64}));
  EXPECT_EQ(backend_.types[0], MessageType::kXdpBuffs);
  EXPECT_EQ(guest_.used_index(), 64);
  EXPECT_EQ(counters_.calls.read(), 1u);
  EXPECT_EQ(from_guest_.step(), 6u);
  EXPECT_EQ(backend_.sent.size(), 70u);
  EXPECT_EQ(backend_.sent[69].frame, frame_of(60, static_cast<char>('A' + 69 % 26)));
  EXPECT_EQ(counters_.frames.read(), 70u);
  EXPECT_EQ(counters_.bytes.read(), 70u * 60);
  EXPECT_EQ(counters_.batches.read(), 2u);
  EXPECT_EQ(counters_.batch_size.buckets[6].read(), 1u);  // 33 .. 64
  EXPECT_EQ(counters_.batch_size.buckets[3].read(), 1u);  // 5 .. 8
  EXPECT_EQ(from_guest_.step(), 0u);
}

TEST_F(FromGuestTest, EveryHeaderLayoutGivesTheSameFrame) {
  VnetHeader header{};
  header.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
  header.hdr.csum_start = 14;
  header.hdr.csum_offset = 2;
  const std::string frame = "an Ethernet frame with some bytes in it, sixty or so of them";
  const std::vector<std::vector<std::size_t>> layouts = {{},      {12}, {5},          {1, 2, 3, 4, 11},
                                                         {5, 12}, {20}, {12, 26, 40}, {5, 20, 21, 22}};
  for (const auto& cuts : layouts) {
    offer(frame, header, cuts);
  }
  EXPECT_EQ(from_guest_.step(), layouts.size());
  ASSERT_EQ(backend_.sent.size(), layouts.size());
  for (const auto& sent : backend_.sent) {
    EXPECT_EQ(sent.frame, frame);
    EXPECT_EQ(sent.header, text_of(header));
  }
  EXPECT_EQ(all_drops(), 0u);
}

TEST_F(FromGuestTest, HeaderNextToItsFrameIsFoundContiguous) {
  // virtio-user without can_push: own descriptor for the header, but the bytes lie in a row.
  const std::string message = text_of({}) + frame_of(60, 'x');
  guest_.write(FakeDriver::kBuffers, message);
  guest_.set_desc(0, {FakeDriver::kBuffers, 12, VRING_DESC_F_NEXT, 1});
  guest_.set_desc(1, {FakeDriver::kBuffers + 12, 60, 0, 0});
  guest_.make_available(0);
  from_guest_.step();
  ASSERT_EQ(backend_.sent.size(), 1u);
  EXPECT_EQ(backend_.sent[0].frame, frame_of(60, 'x'));
}

/// What a guest may put before a frame, and what must become of it.
struct HeaderCase {
  const char* name;
  virtio_net_hdr header;
  std::size_t frame_bytes;
  vxdp_drop_reason reason;
};
constexpr std::uint8_t kCsum = VIRTIO_NET_HDR_F_NEEDS_CSUM;

class HeaderTest : public FromGuestTest, public ::testing::WithParamInterface<HeaderCase> {};

TEST_P(HeaderTest, IsDroppedOrSentAsExpectedAndHandedBack) {
  VnetHeader header{};
  header.hdr = GetParam().header;
  offer(frame_of(GetParam().frame_bytes, 'f'), header);
  offer(frame_of(60, 'g'));
  EXPECT_EQ(from_guest_.step(), 2u);
  const bool dropped = GetParam().reason != VXDP_DROP_NONE;
  EXPECT_EQ(drops(GetParam().reason), dropped ? 1u : 0u);
  EXPECT_EQ(backend_.sent.size(), dropped ? 1u : 2u);
  EXPECT_EQ(backend_.sent.back().frame, frame_of(60, 'g'));
  EXPECT_EQ(guest_.used_index(), 2);
  EXPECT_EQ(guest_.used(0).len, 0u) << "B21: the device wrote nothing";
}

virtio_net_hdr header(unsigned flags, unsigned gso_type, unsigned hdr_len, unsigned gso_size, unsigned csum_start,
                      unsigned csum_offset) {
  virtio_net_hdr hdr{};
  hdr.flags = static_cast<std::uint8_t>(flags);
  hdr.gso_type = static_cast<std::uint8_t>(gso_type);
  hdr.hdr_len = static_cast<std::uint16_t>(hdr_len);
  hdr.gso_size = static_cast<std::uint16_t>(gso_size);
  hdr.csum_start = static_cast<std::uint16_t>(csum_start);
  hdr.csum_offset = static_cast<std::uint16_t>(csum_offset);
  return hdr;
}

INSTANTIATE_TEST_SUITE_P(
    EdgeCases, HeaderTest,
    ::testing::Values(HeaderCase{"B9_HeaderOnly", header(0, 0, 0, 0, 0, 0), 0, VXDP_DROP_BAD_HEADER},
                      HeaderCase{"B11_Thirteen", header(0, 0, 0, 0, 0, 0), 13, VXDP_DROP_RUNT},
                      HeaderCase{"B11_Fourteen", header(0, 0, 0, 0, 0, 0), 14, VXDP_DROP_NONE},
                      HeaderCase{"B16_HdrLenPastFrame", header(0, 0, 61, 0, 0, 0), 60, VXDP_DROP_BAD_HEADER},
                      HeaderCase{"B16_CsumPastFrame", header(kCsum, 0, 0, 0, 50, 9), 60, VXDP_DROP_BAD_HEADER},
                      HeaderCase{"B16_CsumAtTheEnd", header(kCsum, 0, 0, 0, 50, 8), 60, VXDP_DROP_NONE},
                      HeaderCase{"B16_CsumWrap", header(kCsum, 0, 0, 0, 65535, 65535), 60, VXDP_DROP_BAD_HEADER},
                      HeaderCase{"B17_GsoSizeZero", header(kCsum, VIRTIO_NET_HDR_GSO_TCPV4, 54, 0, 34, 16), 2000,
                                 VXDP_DROP_BAD_HEADER},
                      HeaderCase{"B17_UnknownGso", header(kCsum, 77, 54, 1448, 34, 16), 2000, VXDP_DROP_BAD_HEADER},
                      HeaderCase{"B17_GsoNotNegotiated", header(kCsum, VIRTIO_NET_HDR_GSO_TCPV6, 74, 1428, 54, 16),
                                 2000, VXDP_DROP_BAD_HEADER},
                      HeaderCase{"B17_UdpL4NotNegotiated", header(kCsum, VIRTIO_NET_HDR_GSO_UDP_L4, 42, 1472, 34, 6),
                                 2000, VXDP_DROP_BAD_HEADER},
                      HeaderCase{"B17_TsoWithoutCsumIsTheKernelsToJudge",
                                 header(0, VIRTIO_NET_HDR_GSO_TCPV4, 54, 1448, 0, 0), 2000, VXDP_DROP_NONE},
                      HeaderCase{"GoodTso", header(kCsum, VIRTIO_NET_HDR_GSO_TCPV4, 54, 1448, 34, 16), 3000,
                                 VXDP_DROP_NONE}),
    [](const auto& test_case) { return test_case.param.name; });

TEST_F(FromGuestTest, B9_ChainShorterThanTheHeaderIsDropped) {
  guest_.set_desc(0, {FakeDriver::kBuffers, 11, 0, 0});
  guest_.make_available(0);
  EXPECT_EQ(from_guest_.step(), 1u);
  EXPECT_EQ(drops(VXDP_DROP_BAD_HEADER), 1u);
  EXPECT_EQ(guest_.used_index(), 1);
}

TEST_F(FromGuestTest, OversizedFrameIsDropped) {
  for (std::uint16_t i = 0; i < 40; ++i) {  // 40 x 2048 bytes
    guest_.set_desc(i, {FakeDriver::kBuffers, 2048, static_cast<std::uint16_t>(i < 39 ? VRING_DESC_F_NEXT : 0),
                        static_cast<std::uint16_t>(i + 1)});
  }
  guest_.make_available(0);
  EXPECT_EQ(from_guest_.step(), 1u);
  EXPECT_EQ(drops(VXDP_DROP_TOO_BIG), 1u);
}

TEST_F(FromGuestTest, FramesThatCannotShareABatchFlushItAndKeepOrder) {
  VnetHeader gso{};
  gso.hdr = header(kCsum, VIRTIO_NET_HDR_GSO_TCPV4, 54, 1448, 34, 16);
  offer(frame_of(60, 'a'));
  offer(frame_of(60, 'b'));
  offer(frame_of(3000, 'c'), gso);
  offer(frame_of(60, 'd'));
  offer(frame_of(3800, 'e'));
  offer(frame_of(60, 'f'));
  EXPECT_EQ(from_guest_.step(), 6u);
  EXPECT_EQ(backend_.messages, (std::vector<std::size_t>{2, 1, 1, 1, 1}));
  EXPECT_EQ(backend_.types[1], MessageType::kFrame);
  EXPECT_EQ(backend_.types[2], MessageType::kXdpBuffs);
  EXPECT_EQ(backend_.types[3], MessageType::kFrame);
  std::string order;
  for (const auto& sent : backend_.sent) {
    order.push_back(sent.frame[0]);
  }
  EXPECT_EQ(order, "abcdef");
}

TEST_F(FromGuestTest, LimitedBackendGetsFramesSingly) {
  backend_.limited = true;
  offer(frame_of(60, 'a'));
  offer(frame_of(60, 'b'));
  from_guest_.step();
  EXPECT_EQ(backend_.messages, (std::vector<std::size_t>{1, 1}));
  EXPECT_EQ(backend_.types[0], MessageType::kFrame);
}

TEST_F(FromGuestTest, B60_FramesThatFindNoRoomWaitInOrder) {
  backend_.room = 3;
  for (char c = 'a'; c < 'g'; ++c) {
    offer(frame_of(60, c));
  }
  EXPECT_EQ(from_guest_.step(), 3u);
  EXPECT_TRUE(from_guest_.blocked());
  EXPECT_EQ(guest_.used_index(), 3) << "what went out is handed back";
  EXPECT_EQ(from_guest_.step(), 0u) << "no spinning while blocked";
  backend_.room = 100;
  from_guest_.unblock();
  EXPECT_EQ(from_guest_.step(), 3u);
  EXPECT_EQ(backend_.sent.size(), 6u);
  EXPECT_EQ(backend_.sent[5].frame[0], 'f');
  EXPECT_EQ(all_drops(), 0u);
}

TEST_F(FromGuestTest, StopWhileBlockedGivesUnsentChainsBack) {
  backend_.room = 2;
  for (char c = 'a'; c < 'f'; ++c) {
    offer(frame_of(60, c));
  }
  from_guest_.step();
  EXPECT_EQ(from_guest_.stop(), 2) << "the next start goes on with the first unsent frame";
  EXPECT_EQ(guest_.used_index(), 2);
}

TEST_F(FromGuestTest, B61_B63_RefusedFramesAreCountedByReasonAndAllHeadsReturn) {
  backend_.refuse = {{0, EIO}, {2, EINVAL}, {3, EBADFD}};
  for (char c = 'a'; c < 'g'; ++c) {
    offer(frame_of(60, c));
  }
  EXPECT_EQ(from_guest_.step(), 6u);
  EXPECT_EQ(drops(VXDP_DROP_BACKEND_DOWN), 1u);
  EXPECT_EQ(drops(VXDP_DROP_BACKEND_REFUSED), 1u);
  EXPECT_EQ(drops(VXDP_DROP_BACKEND_GONE), 1u);
  EXPECT_TRUE(from_guest_.backend_gone());
  EXPECT_EQ(counters_.frames.read(), 3u);
  EXPECT_EQ(guest_.used_index(), 6);
  for (std::uint16_t i = 0; i < 6; ++i) {
    EXPECT_EQ(guest_.used(i).id, i) << "in order, as VIRTIO_F_IN_ORDER promises";
  }
}

TEST_F(FromGuestTest, BadChainsReturnInTheirTurnAmongGoodOnes) {
  offer(frame_of(60, 'a'));
  guest_.set_desc(next_desc_, {0x7fff'0000'0000, 60, 0, 0});
  guest_.make_available(next_desc_++);
  offer(frame_of(60, 'b'));
  EXPECT_EQ(from_guest_.step(), 3u);
  EXPECT_EQ(backend_.messages, (std::vector<std::size_t>{2})) << "a bad chain does not split the batch";
  EXPECT_EQ(drops(VXDP_DROP_BAD_ADDRESS), 1u);
  for (std::uint16_t i = 0; i < 3; ++i) {
    EXPECT_EQ(guest_.used(i).id, i);
  }
}

TEST_F(FromGuestTest, BatchOfOnlyBadChainsSendsNothingAndReturnsThem) {
  for (std::uint16_t i = 0; i < 5; ++i) {
    guest_.set_desc(i, {0x7fff'0000'0000, 60, 0, 0});
    guest_.make_available(i);
  }
  EXPECT_EQ(from_guest_.step(), 5u);
  EXPECT_TRUE(backend_.messages.empty());
  EXPECT_EQ(guest_.used_index(), 5);
}

TEST_F(FromGuestTest, B5_ChainLongerThanAnyFrameMayBeIsDroppedAlone) {
  // 1024 one-byte segments: more than UIO_MAXIOV with the header. Only an indirect table on a larger ring can.
  FakeDriver guest(2048, kFeatures);
  FromGuest from_guest(backend_, counters_, path_, 64);
  from_guest.start(std::move(*SplitQueue::create(guest.config())));
  constexpr std::uint64_t kTable = FakeDriver::kBuffers + 0x100000;
  for (std::uint16_t i = 0; i < 1100; ++i) {
    guest.set_table_desc(kTable, i,
                         {FakeDriver::kBuffers + i, 1, static_cast<std::uint16_t>(i < 1099 ? VRING_DESC_F_NEXT : 0),
                          static_cast<std::uint16_t>(i + 1)});
  }
  guest.set_desc(0, {kTable, 1100 * 16, VRING_DESC_F_INDIRECT, 0});
  guest.set_desc(1, {FakeDriver::kBuffers + 4096, 72, 0, 0});
  guest.make_available(0);
  guest.make_available(1);
  EXPECT_EQ(from_guest.step(), 2u);
  EXPECT_EQ(drops(VXDP_DROP_BAD_CHAIN), 1u);
  EXPECT_EQ(backend_.sent.size(), 1u);
  EXPECT_EQ(guest.used_index(), 2);
}

TEST_F(FromGuestTest, ManySegmentsEndTheBatchInsteadOfDroppingChains) {
  // 6 chains of 515 segments do not fit one batch's pool of 2048.
  FakeDriver guest(1024, kFeatures);
  FromGuest from_guest(backend_, counters_, path_, 64);
  from_guest.start(std::move(*SplitQueue::create(guest.config())));
  for (std::uint16_t chain = 0; chain < 6; ++chain) {
    const std::uint64_t table = FakeDriver::kBuffers + 0x100000 + chain * 0x4000U;
    for (std::uint16_t i = 0; i < 515; ++i) {
      guest.set_table_desc(table, i,
                           {FakeDriver::kBuffers + i, 1, static_cast<std::uint16_t>(i < 514 ? VRING_DESC_F_NEXT : 0),
                            static_cast<std::uint16_t>(i + 1)});
    }
    guest.set_desc(chain, {table, 515 * 16, VRING_DESC_F_INDIRECT, 0});
    guest.make_available(chain);
  }
  while (from_guest.step() != 0) {
  }
  EXPECT_EQ(backend_.sent.size(), 6u);
  EXPECT_EQ(all_drops(), 0u);
  EXPECT_EQ(backend_.sent[5].frame.size(), 503u);
  EXPECT_EQ(guest.used_index(), 6);
}

/// Sum over the frame from csum_start, as a receiver would check it; 0xffff when right.
unsigned one_complement_sum(const std::string& bytes) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    const unsigned high = static_cast<unsigned char>(bytes[i]);
    const unsigned low = i + 1 < bytes.size() ? static_cast<unsigned char>(bytes[i + 1]) : 0U;
    sum += high << 8 | low;
  }
  while (sum >> 16 != 0) {
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return sum;
}

TEST_F(FromGuestTest, ChecksumIsFinishedInACopyWhenTheProgramMayRedirect) {
  path_.may_redirect = true;
  for (const std::size_t bytes : {60UL, 61UL, 1514UL, 9000UL}) {
    std::string frame;
    for (std::size_t i = 0; i < bytes; ++i) {
      frame.push_back(static_cast<char>(i * 7));
    }
    VnetHeader request{};
    request.hdr = header(kCsum, 0, 0, 0, 34, 16);
    offer(frame, request, {12, 40, 50});
    ASSERT_EQ(from_guest_.step(), 1u);
    const auto& sent = backend_.sent.back();
    EXPECT_EQ(sent.header, text_of({}));
    // A receiver sums segment and pseudo-header, whose sum is what stood in the field.
    EXPECT_EQ(one_complement_sum(sent.frame.substr(34) + std::string(bytes % 2, 0) + frame.substr(50, 2)), 0xffffU);
    EXPECT_EQ(sent.frame.substr(0, 50), frame.substr(0, 50));
    EXPECT_EQ(sent.frame.substr(52), frame.substr(52));
    EXPECT_NE(sent.frame.substr(50, 2), frame.substr(50, 2));
  }
}

TEST_F(FromGuestTest, SegmentationIsNotRedirected) {
  path_.may_redirect = true;
  VnetHeader gso{};
  gso.hdr = header(kCsum, VIRTIO_NET_HDR_GSO_TCPV4, 54, 1448, 34, 16);
  offer(frame_of(3000, 'c'), gso);
  from_guest_.step();
  EXPECT_EQ(drops(VXDP_DROP_GSO_REDIRECT), 1u);
  EXPECT_TRUE(backend_.sent.empty());
}

TEST_F(FromGuestTest, SwitchedOffQueueGivesFramesBackUnsent) {
  from_guest_.stop();
  VringConfig config = guest_.config();
  config.discard = true;
  from_guest_.start(std::move(*SplitQueue::create(std::move(config))));
  offer(frame_of(60, 'a'));
  offer(frame_of(60, 'b'));
  EXPECT_EQ(from_guest_.step(), 2u);
  EXPECT_TRUE(backend_.sent.empty());
  EXPECT_EQ(drops(VXDP_DROP_QUEUE_DISABLED), 2u);
  EXPECT_EQ(guest_.used_index(), 2);
}

TEST_F(FromGuestTest, NativeShareCountsOnlyWhatTheNativePathTakes) {
  path_.attached = true;
  path_.native = true;
  offer(frame_of(60, 'a'));
  offer(frame_of(3456, 'b'));
  offer(frame_of(3457, 'c'));
  from_guest_.step();
  EXPECT_EQ(counters_.native.read(), 2u);
  EXPECT_EQ(counters_.generic.read(), 1u);
}

class LegacyTest : public FromGuestTest {
 protected:
  LegacyTest() : FromGuestTest(0) {}
};

TEST_F(LegacyTest, GuestWithoutVersion1HasATenByteHeader) {
  backend_.header_bytes = 10;
  offer(frame_of(60, 'l'), {}, {}, 10);
  from_guest_.step();
  ASSERT_EQ(backend_.sent.size(), 1u);
  EXPECT_EQ(backend_.sent[0].frame, frame_of(60, 'l'));
  EXPECT_EQ(backend_.sent[0].header.size(), 10u);
}

class BatchOfOneTest : public FromGuestTest {
 protected:
  BatchOfOneTest() : FromGuestTest(kFeatures, 1) {}
};

TEST_F(BatchOfOneTest, LimitIsKept) {
  offer(frame_of(60, 'a'));
  offer(frame_of(60, 'b'));
  EXPECT_EQ(from_guest_.step(), 1u);
  EXPECT_EQ(backend_.messages, (std::vector<std::size_t>{1}));
}

}  // namespace
}  // namespace vxdp
