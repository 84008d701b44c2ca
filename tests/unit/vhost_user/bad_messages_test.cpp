// SPDX-License-Identifier: Apache-2.0
// What a front-end that breaks the specification gets. Names begin with the row of the list of edge cases.
#include <algorithm>
#include <ostream>

#include "session_fixture.hpp"

namespace vxdp::testing {
namespace {

using Request = VhostUserRequest;
constexpr std::uint64_t kGuest = 1 << 18;

Bytes vring_state(std::uint32_t index, std::uint32_t num) {
  return bytes_of(VhostUserVringState{index, num});
}
Bytes ring_at(std::uint64_t desc, std::uint64_t avail, std::uint64_t used, std::uint32_t index = 0) {
  return bytes_of(VhostUserVringAddr{index, 0, desc, used, avail, 0});
}
template <typename... Regions>
Bytes memory(std::uint32_t regions, const Regions&... list) {
  return bytes_of(VhostUserMemoryTable{regions, 0}, list...);
}

struct BadMessage {
  const char* name;
  Request request;
  Bytes payload;
  std::size_t fds = 0;  // copies of a memfd, or of an eventfd for KICK, CALL and ERR
};
void PrintTo(const BadMessage& bad, std::ostream* out) {
  *out << bad.name;
}

class BadMessageTest : public SessionTest, public ::testing::WithParamInterface<BadMessage> {
 protected:
  int payload_fd() const {
    const auto request = GetParam().request;
    const bool event =
        request == Request::kSetVringKick || request == Request::kSetVringCall || request == Request::kSetVringErr;
    return event ? kick_.get() : guest_.get();
  }
};

TEST_P(BadMessageTest, IsAnsweredAndEndsThisSessionOnly) {
  run_vrings({0, 1});
  const auto& bad = GetParam();
  const std::vector<int> fds(bad.fds, payload_fd());
  const bool has_own_reply = bad.request == Request::kGetVringBase || bad.request == Request::kGetFeatures;
  if (has_own_reply) {
    ASSERT_TRUE(front_->send(bad.request, bad.payload, fds, kVhostUserVersion | kVhostUserNeedReply));
  } else {
    EXPECT_EQ(front_->ask(bad.request, bad.payload, fds), 1U);
  }
  EXPECT_TRUE(front_->closed_by_peer());
  EXPECT_FALSE(closed_reason().empty());
  EXPECT_EQ(counters_.bad_messages.read(), 1U);
  on_loop([this] {
    EXPECT_TRUE(device_.running.empty());
    EXPECT_EQ(std::count(device_.events.begin(), device_.events.end(), "stop 0"),
              1 + std::count(device_.events.begin(), device_.events.end(), "start 0 at 0"));
  });
  // The same port serves the next front-end.
  on_loop([this] { session_.reset(); });
  connect();
  run_vrings({0, 1});
}

// KICK and the like for vring 0 with `bits` more.
Bytes event(std::uint64_t bits) {
  return bytes_of(bits);
}

INSTANTIATE_TEST_SUITE_P(
    Descriptors, BadMessageTest,
    ::testing::Values(
        BadMessage{"B30_SetOwnerWithDescriptor", Request::kSetOwner, {}, 1},
        BadMessage{"B30_GetFeaturesWithDescriptor", Request::kGetFeatures, {}, 1},
        BadMessage{"B30_SetVringNumWithEightDescriptors", Request::kSetVringNum, vring_state(0, 256), 8},
        BadMessage{"B30_KickWithoutDescriptor", Request::kSetVringKick, event(0), 0},
        BadMessage{"B30_KickWithTwoDescriptors", Request::kSetVringKick, event(0), 2},
        BadMessage{"B30_CallWithoutDescriptor", Request::kSetVringCall, event(1), 0},
        BadMessage{"B30_ErrWithTwoDescriptors", Request::kSetVringErr, event(1), 2},
        BadMessage{"B30_MemTableWithTooFewDescriptors", Request::kSetMemTable,
                   memory(2, VhostUserMemoryRegion{0, 4096, 0, 0}, VhostUserMemoryRegion{4096, 4096, 4096, 0}), 1},
        BadMessage{"B30_MemTableWithTooManyDescriptors", Request::kSetMemTable,
                   memory(1, VhostUserMemoryRegion{0, 4096, 0, 0}), 2},
        BadMessage{"B30_MemTableWithoutDescriptor", Request::kSetMemTable,
                   memory(1, VhostUserMemoryRegion{0, 4096, 0, 0}), 0},
        BadMessage{"B37_KickWithNoFdBitAndDescriptor", Request::kSetVringKick, event(kVhostUserVringNoFd), 1},
        BadMessage{"B37_CallWithNoFdBitAndDescriptor", Request::kSetVringCall, event(kVhostUserVringNoFd), 1}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(Sizes, BadMessageTest,
                         ::testing::Values(BadMessage{"B31_FeaturesTooShort", Request::kSetFeatures, Bytes(7)},
                                           BadMessage{"B31_FeaturesTooLong", Request::kSetFeatures, Bytes(9)},
                                           BadMessage{"B31_FeaturesEmpty", Request::kSetFeatures, {}},
                                           BadMessage{"B31_OwnerWithPayload", Request::kSetOwner, Bytes(8)},
                                           BadMessage{"B31_VringStateTooShort", Request::kSetVringNum, Bytes(4)},
                                           BadMessage{"B31_VringAddrTooShort", Request::kSetVringAddr, Bytes(39)},
                                           BadMessage{"B31_GetVringBaseEmpty", Request::kGetVringBase, {}},
                                           BadMessage{"B31_RarpTooShort", Request::kSendRarp, Bytes(6)},
                                           BadMessage{"B31_MemTableHeaderTooShort", Request::kSetMemTable, Bytes(7), 1},
                                           BadMessage{"B31_MemTableCutOff", Request::kSetMemTable,
                                                      memory(2, VhostUserMemoryRegion{0, 4096, 0, 0}), 2},
                                           BadMessage{"B31_LargestPayload", Request::kSetVringKick, Bytes(4096), 1}),
                         [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Vrings, BadMessageTest,
    ::testing::Values(
        BadMessage{"B32_VringIndexBeyondLimitIsRefused_Num", Request::kSetVringNum, vring_state(8, 256)},
        BadMessage{"B32_VringIndexBeyondLimitIsRefused_Addr", Request::kSetVringAddr, ring_at(0, 0, 0, 8)},
        BadMessage{"B32_VringIndexBeyondLimitIsRefused_Base", Request::kSetVringBase, vring_state(8, 0)},
        BadMessage{"B32_VringIndexBeyondLimitIsRefused_GetBase", Request::kGetVringBase, vring_state(8, 0)},
        BadMessage{"B32_VringIndexBeyondLimitIsRefused_Enable", Request::kSetVringEnable, vring_state(8, 1)},
        BadMessage{"B32_VringIndexBeyondLimitIsRefused_Kick", Request::kSetVringKick, event(8), 1},
        BadMessage{"B32_VringIndexBeyondLimitIsRefused_Call", Request::kSetVringCall, event(255), 1},
        BadMessage{"B32_VringIndexBeyondLimitIsRefused_Err", Request::kSetVringErr, event(8 | kVhostUserVringNoFd)},
        BadMessage{"B32_VringIndex65536IsNotTruncated_Num", Request::kSetVringNum, vring_state(65536, 256)},
        BadMessage{"B32_VringIndex65537IsNotTruncated_Addr", Request::kSetVringAddr, ring_at(0, 0, 0, 65537)},
        BadMessage{"B32_VringIndex65536IsNotTruncated_Base", Request::kSetVringBase, vring_state(65536, 0)},
        BadMessage{"B32_VringIndex65536IsNotTruncated_GetBase", Request::kGetVringBase, vring_state(65536, 0)},
        BadMessage{"B32_VringIndexMaxIsNotTruncated_Enable", Request::kSetVringEnable, vring_state(UINT32_MAX, 1)},
        BadMessage{"B32_VringIndex65536IsNotTruncated_Kick", Request::kSetVringKick, event(65536), 1},
        BadMessage{"B32_VringIndexAbove32BitIsNotTruncated_Call", Request::kSetVringCall, event(1ULL << 32), 1},
        BadMessage{"B32_BaseAbove16BitIsNotTruncated", Request::kSetVringBase, vring_state(0, 65536)},
        BadMessage{"B33_RingSizeZero", Request::kSetVringNum, vring_state(0, 0)},
        BadMessage{"B33_RingSizeNoPowerOfTwo", Request::kSetVringNum, vring_state(0, 255)},
        BadMessage{"B33_RingSizeAboveMaximum", Request::kSetVringNum, vring_state(0, 65536)},
        BadMessage{"B33_RingSizePowerOfTwoThatTruncatesToOk", Request::kSetVringNum, vring_state(0, 65536 + 256)},
        BadMessage{"B45_EnableWithTwo", Request::kSetVringEnable, vring_state(0, 2)},
        BadMessage{"B45_EnableWithAllBits", Request::kSetVringEnable, vring_state(0, UINT32_MAX)},
        BadMessage{"B44_FeatureNotOffered", Request::kSetFeatures, bytes_of(1ULL << VIRTIO_F_RING_PACKED)},
        BadMessage{"B44_LogAllNotOffered", Request::kSetFeatures, bytes_of(1ULL << 26)},
        BadMessage{"B47_BackendRequestsNotOffered", Request::kSetProtocolFeatures, bytes_of(1ULL << 5)},
        BadMessage{"B47_InbandNotOffered", Request::kSetProtocolFeatures, bytes_of(1ULL << 14 | 1ULL << 3)}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Memory, BadMessageTest,
    ::testing::Values(
        BadMessage{"B39_NoRegion", Request::kSetMemTable, memory(0)},
        BadMessage{"B39_NineRegions", Request::kSetMemTable, memory(9, std::array<VhostUserMemoryRegion, 9>{}), 8},
        BadMessage{"B39_NineRegionsClaimed", Request::kSetMemTable, memory(9, std::array<VhostUserMemoryRegion, 8>{}),
                   8},
        BadMessage{"B39_RegionCountWraps", Request::kSetMemTable,
                   memory(0x08000001, VhostUserMemoryRegion{0, 4096, 0, 0}), 1},
        BadMessage{"B39_EmptyRegion", Request::kSetMemTable, memory(1, VhostUserMemoryRegion{0, 0, 0, 0}), 1},
        BadMessage{"B39_OverlappingGuestAddresses", Request::kSetMemTable,
                   memory(2, VhostUserMemoryRegion{0, 8192, 0, 0}, VhostUserMemoryRegion{4096, 8192, kGuest, 0}), 2},
        BadMessage{"B39_RegionBeyondItsFile", Request::kSetMemTable,
                   memory(1, VhostUserMemoryRegion{0, kGuest, 0, 4096}), 1},
        BadMessage{"B39_RegionWrapsAround", Request::kSetMemTable,
                   memory(1, VhostUserMemoryRegion{UINT64_MAX - 4095, 8192, 0, 0}), 1},
        BadMessage{"B39_OffsetWrapsAround", Request::kSetMemTable,
                   memory(1, VhostUserMemoryRegion{0, 8192, 0, UINT64_MAX - 4095}), 1}),
    [](const auto& test) { return std::string(test.param.name); });

// Vring 0 runs when these arrive: new addresses that cannot be used. The region is 256 KiB at 0x7f0000000000.
constexpr std::uint64_t kAt = 0x7f0000000000;
INSTANTIATE_TEST_SUITE_P(
    Layout, BadMessageTest,
    ::testing::Values(
        BadMessage{"B41_DescriptorsCrossTheEnd", Request::kSetVringAddr,
                   ring_at(kAt + kGuest - 4096 + 16, kAt, kAt + 4096)},
        BadMessage{"B41_AvailCrossesTheEnd", Request::kSetVringAddr, ring_at(kAt, kAt + kGuest - 516, kAt + 4096)},
        BadMessage{"B41_UsedCrossesTheEnd", Request::kSetVringAddr, ring_at(kAt, kAt + 4096, kAt + kGuest - 2052)},
        BadMessage{"B41_DescriptorsOutside", Request::kSetVringAddr, ring_at(0, kAt, kAt + 4096)},
        BadMessage{"B41_AvailOutside", Request::kSetVringAddr, ring_at(kAt, kAt + kGuest, kAt + 4096)},
        BadMessage{"B41_UsedOutside", Request::kSetVringAddr, ring_at(kAt, kAt + 4096, UINT64_MAX - 3)},
        BadMessage{"B41_DescriptorsUnaligned", Request::kSetVringAddr, ring_at(kAt + 8, kAt + 8192, kAt + 16384)},
        BadMessage{"B41_AvailUnaligned", Request::kSetVringAddr, ring_at(kAt, kAt + 8193, kAt + 16384)},
        BadMessage{"B41_UsedUnaligned", Request::kSetVringAddr, ring_at(kAt, kAt + 8192, kAt + 16386)},
        BadMessage{"B41_LargerRingCrossesTheEnd", Request::kSetVringNum, vring_state(0, 32768)},
        BadMessage{"B38_NewTableWithoutTheRing", Request::kSetMemTable,
                   memory(1, VhostUserMemoryRegion{0, 4096, kAt, 0}), 1},
        BadMessage{"B38_NewTableUnalignsTheRing", Request::kSetMemTable,
                   memory(1, VhostUserMemoryRegion{0, kGuest - 8, kAt, 8}), 1}),
    [](const auto& test) { return std::string(test.param.name); });

// Used ring of 256 entries: 4 + 256 * 8 + 2 bytes; available ring: 4 + 256 * 2 + 2.
TEST_F(SessionTest, B41_PartsThatEndWithTheRegionAreAccepted) {
  run_vrings({0});
  send(Request::kSetVringAddr,
       ring_at(kAt + kGuest - 4096 - 4096, kAt + kGuest - 4096 - 518 - 4096, kAt + kGuest - 2056));
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 0"}));
  send(Request::kSetVringAddr, ring_at(kAt + kGuest - 4096, kAt, kAt + 4096));
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 0"}));
  send(Request::kSetVringAddr, ring_at(kAt, kAt + kGuest - 518, kAt + 8192));
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 0"}));
}

TEST_F(SessionTest, B41_PartThatCrossesIntoAnAdjacentRegionIsRefused) {
  run_vrings({0});
  send(
      Request::kSetMemTable,
      memory(2, VhostUserMemoryRegion{0, 2048, kAt, 0}, VhostUserMemoryRegion{kGuest, kGuest - 2048, kAt + 2048, 2048}),
      {guest_.get(), guest_.get()});
  EXPECT_NE(closed_reason().find("descriptor table"), std::string::npos);
}

// Requests this back end does not know or offer: refused, and the connection and its vrings go on.
TEST_F(SessionTest, B46_UnknownRequestsAreRefusedAndTheConnectionGoesOn) {
  run_vrings({0, 1});
  const std::map<const char*, std::uint32_t> unknown{{"0", 0},
                                                     {"B47_SetBackendReqFd", 21},
                                                     {"B36_GetInflightFd", 31},
                                                     {"B36_SetInflightFd", 32},
                                                     {"B40_AddMemReg", 37},
                                                     {"B40_RemMemReg", 38},
                                                     {"far away", UINT32_MAX}};
  for (const auto& [name, number] : unknown) {
    SCOPED_TRACE(name);
    const auto descriptors = open_descriptors();
    EXPECT_EQ(front_->ask(static_cast<Request>(number), Bytes(40), {guest_.get(), kick_.get()}), 1U);
    on_loop([] {});  // the answer comes just before the message is let go
    EXPECT_EQ(open_descriptors(), descriptors);
    send(static_cast<Request>(number), Bytes(4096), std::vector<int>(8, guest_.get()));
    EXPECT_EQ(front_->ask(Request::kGetQueueNum), 128U);
    EXPECT_EQ(open_descriptors(), descriptors);
  }
  EXPECT_EQ(events(), Events{});
  EXPECT_EQ(counters_.bad_messages.read(), 2 * unknown.size());
}

TEST_F(SessionTest, B34_LogIsRefusedAndTheConnectionGoesOn) {
  run_vrings({0});
  EXPECT_EQ(front_->ask(Request::kSetLogBase, bytes_of(UINT64_MAX, UINT64_MAX), {guest_.get()}), 1U);
  EXPECT_EQ(front_->ask(Request::kSetLogFd, {}, {kick_.get()}), 1U);
  EXPECT_EQ(events(), Events{});
}

TEST_F(SessionTest, B30_ReplacedDescriptorsAreClosedWhileTheSessionLives) {
  run_vrings({0});
  const auto descriptors = open_descriptors();
  for (int i = 0; i < 50; ++i) {
    call(0);  // each replaces the one before
    share_memory();
    send(Request::kSetVringErr, bytes_of(kVhostUserVringNoFd));
  }
  events();
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(SessionTest, B33_RepeatedRingSizeIsAcceptedWithoutLeak) {
  run_vrings({0});
  const auto descriptors = open_descriptors();
  for (std::uint32_t entries = 1; entries <= 256; entries *= 2) {
    send(Request::kSetVringNum, vring_state(0, entries));
    events();
    EXPECT_EQ(running(0).size, entries);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(SessionTest, B37_DescriptorThatCouldBlockAWorkerIsRefused) {
  run_vrings({0});
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe(pipe_ends.data()), 0);
  EXPECT_EQ(front_->ask(Request::kSetVringCall, bytes_of(std::uint64_t{0}), {pipe_ends[1]}), 1U);
  EXPECT_NE(closed_reason().find("not an eventfd"), std::string::npos);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST_F(SessionTest, B31_BadHeaderEndsTheSession) {
  run_vrings({0});
  ASSERT_TRUE(front_->send(Request::kGetFeatures, {}, {guest_.get()}, 0));
  EXPECT_TRUE(front_->closed_by_peer());
  EXPECT_NE(closed_reason().find("version"), std::string::npos);
  EXPECT_EQ(counters_.bad_messages.read(), 1U);
}

TEST_F(SessionTest, BadMessageWithoutNeedReplyEndsTheSessionSilently) {
  run_vrings({0});
  send(Request::kSetVringEnable, vring_state(0, 7));
  EXPECT_TRUE(front_->closed_by_peer());
  closed_reason();
}

TEST_F(SessionTest, DeviceThatCannotStartAVringEndsTheSession) {
  set_protocol_features(feature_bit(kVhostUserProtocolReplyAck));
  set_features(kLegacy);
  share_memory();
  prepare_vring(0);
  on_loop([this] { device_.refuse_start = true; });
  EXPECT_EQ(front_->ask(Request::kSetVringKick, bytes_of(std::uint64_t{0}), {kick_.get()}), 1U);
  EXPECT_NE(closed_reason().find("no worker has room"), std::string::npos);
}

TEST_F(SessionTest, B49_FrontEndThatDoesNotReadItsRepliesIsCutOff) {
  run_vrings({0});
  // Our side stays free for others: all this is one thread that also answers on_loop() below.
  for (int i = 0; i < 1'000'000; ++i) {
    if (!front_->send(Request::kGetFeatures)) {
      if (closed_reason_.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready) {
        break;
      }
    }
    if (i % 1000 == 0) {
      on_loop([] {});
    }
  }
  EXPECT_NE(closed_reason().find("reply"), std::string::npos);
}

}  // namespace
}  // namespace vxdp::testing
