// SPDX-License-Identifier: Apache-2.0
// What a front-end that follows the specification gets.
#include <algorithm>
#include <functional>

#include "session_fixture.hpp"

namespace vxdp::testing {
namespace {

TEST_F(SessionTest, AnswersWhatIsOffered) {
  EXPECT_EQ(front_->ask(VhostUserRequest::kGetFeatures), device_.features());
  EXPECT_EQ(front_->ask(VhostUserRequest::kGetProtocolFeatures), 0b11101U);  // MQ, RARP, REPLY_ACK, NET_MTU
  EXPECT_EQ(front_->ask(VhostUserRequest::kGetQueueNum), 128U);
  EXPECT_EQ(counters_.messages.read(), 3U);
  EXPECT_EQ(counters_.bad_messages.read(), 0U);
}

TEST_F(SessionTest, AcknowledgesOnlyOnceReplyAckIsNegotiated) {
  // Had SET_OWNER been acknowledged, its answer would come before that of GET_QUEUE_NUM.
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetOwner, {}, {}, kVhostUserVersion | kVhostUserNeedReply));
  EXPECT_EQ(front_->ask(VhostUserRequest::kGetQueueNum), 128U);
  set_protocol_features(feature_bit(kVhostUserProtocolReplyAck));
  EXPECT_EQ(front_->ask(VhostUserRequest::kSetOwner), 0U);
  send(VhostUserRequest::kSetOwner);
  EXPECT_EQ(front_->ask(VhostUserRequest::kGetQueueNum), 128U);
}

TEST_F(SessionTest, RequestWithItsOwnReplyIsNotAcknowledgedToo) {
  set_protocol_features(feature_bit(kVhostUserProtocolReplyAck));
  EXPECT_EQ(front_->ask(VhostUserRequest::kGetQueueNum), 128U);  // asks for an acknowledgement as well
  EXPECT_EQ(front_->ask(VhostUserRequest::kSetOwner), 0U);
}

TEST_F(SessionTest, VringRunsWithWhatWasSaid) {
  set_features(kFeatures);
  share_memory();
  set_num(3);
  set_base(3, 65530);
  set_addr(3);
  call(3);
  kick(3);
  EXPECT_EQ(events(), (Events{"features", "memory"}));
  EXPECT_EQ(state(), SessionState::kConnected);
  enable(3);
  EXPECT_EQ(events(), (Events{"start 3 at 65530"}));
  EXPECT_EQ(state(), SessionState::kRunning);
  const auto config = running(3);
  EXPECT_EQ(config.features, kFeatures);
  EXPECT_EQ(config.size, kEntries);
  EXPECT_EQ(config.desc_fva, addresses(3).desc_fva);
  EXPECT_EQ(config.avail_fva, addresses(3).avail_fva);
  EXPECT_EQ(config.used_fva, addresses(3).used_fva);
  // The descriptors are the front-end's own eventfds, in the mode that workers need.
  ASSERT_EQ(::eventfd_write(config.call.get(), 5), 0);
  eventfd_t value = 0;
  ASSERT_EQ(::eventfd_read(call_.get(), &value), 0);
  EXPECT_EQ(value, 5U);
  EXPECT_EQ(::eventfd_read(config.kick.get(), &value), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(config.discard);
  enable(3, 0);  // the specification, "Ring states": what the guest sends now is given back unsent
  EXPECT_EQ(events(), (Events{"stop 3", "start 3 at 65530"}));
  EXPECT_TRUE(running(3).discard);
  EXPECT_EQ(state(), SessionState::kConnected);
}

TEST_F(SessionTest, VringStartsWithTheLastMissingMessageInAnyOrder) {
  const std::vector<std::function<void()>> steps{[this] { set_features(kFeatures); },
                                                 [this] { share_memory(); },
                                                 [this] { set_num(0); },
                                                 [this] { set_addr(0); },
                                                 [this] { kick(0); },
                                                 [this] { enable(0); }};
  std::vector<std::size_t> order{0, 1, 2, 3, 4, 5};
  do {
    for (const std::size_t step : order) {
      steps[step]();
    }
    const auto seen = events();
    ASSERT_EQ(std::count(seen.begin(), seen.end(), "start 0 at 0"), 1) << ::testing::PrintToString(order);
    ASSERT_EQ(seen.size(), 3U) << ::testing::PrintToString(seen);
    on_loop([this] { session_.reset(); });
    on_loop([this] { device_.events.clear(); });
    connect();
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(SessionTest, EveryMissingPieceKeepsTheVringStopped) {
  for (int missing = 0; missing < 6; ++missing) {
    SCOPED_TRACE(missing);
    int step = 0;
    const auto unless_missing = [&](auto&& say) {
      if (step++ != missing) {
        say();
      }
    };
    unless_missing([this] { set_features(kFeatures); });
    unless_missing([this] { share_memory(); });
    unless_missing([this] { set_num(0); });
    unless_missing([this] { set_addr(0); });
    unless_missing([this] { kick(0); });
    unless_missing([this] { enable(0); });
    events();
    EXPECT_EQ(running(0).size, 0);
    on_loop([this] { session_.reset(); });
    connect();
  }
}

TEST_F(SessionTest, VringsStartEnabledWithoutProtocolFeatures) {
  set_features(kLegacy);
  share_memory();
  prepare_vring(0);
  kick(0);
  EXPECT_EQ(events(), (Events{"features", "memory", "start 0 at 0"}));
}

TEST_F(SessionTest, FeaturesWithProtocolFeaturesDoNotDisableARunningVring) {
  set_features(kLegacy);
  share_memory();
  prepare_vring(0);
  kick(0);
  set_features(kFeatures);
  EXPECT_EQ(events(), (Events{"features", "memory", "start 0 at 0", "stop 0", "features", "start 0 at 0"}));
}

TEST_F(SessionTest, DisabledVringGoesOnWhereItStopped) {
  run_vrings({0, 1});
  on_loop([this] {
    device_.taken[0] = 10;
    device_.taken[1] = 10;
  });
  enable(0, 0);
  EXPECT_EQ(events(), (Events{"stop 0"})) << "nothing goes to a guest that does not listen";
  enable(0, 1);
  EXPECT_EQ(events(), (Events{"start 0 at 10"}));
  enable(1, 0);
  enable(1, 1);
  EXPECT_EQ(events(), (Events{"stop 1", "start 1 at 10", "stop 1", "start 1 at 20"}));
  EXPECT_FALSE(running(1).discard);
  enable(1, 1);  // says nothing new
  EXPECT_EQ(events(), Events{});
}

TEST_F(SessionTest, UsedIndexIsWhereAVringGoesOnAfterThisBackEndWasReplaced) {
  write_guest_u16(kUsedOffset + 2, 4321);
  set_features(kFeatures);
  set_num(0);
  set_addr(0);
  kick(0);
  enable(0);
  share_memory();
  EXPECT_EQ(events(), (Events{"features", "memory", "start 0 at 4321"}));
  // It has run: its own place counts from now on, whatever the guest's memory says.
  write_guest_u16(kUsedOffset + 2, 1111);
  on_loop([this] { device_.taken[0] = 4; });
  set_addr(0);
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 4325"}));
}

TEST_F(SessionTest, BaseIsStrongerThanTheUsedIndex) {
  write_guest_u16(kUsedOffset + 2, 4321);
  set_features(kLegacy);
  share_memory();
  set_num(0);
  set_base(0, 7);
  set_addr(0);
  kick(0);
  EXPECT_EQ(events(), (Events{"features", "memory", "start 0 at 7"}));
}

TEST_F(SessionTest, ChangedVringIsStoppedAndStartedAgainWithTheChange) {
  run_vrings({0, 1});
  on_loop([this] { device_.taken[0] = 3; });
  set_addr(0);
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 3"}));
  set_num(0);
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 6"}));
  call(0);
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 9"}));
  kick(0);
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 12"}));
  send(VhostUserRequest::kSetVringErr, bytes_of(std::uint64_t{0}), {call_.get()});
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 15"}));
  set_base(0, 100);
  EXPECT_EQ(events(), (Events{"stop 0", "start 0 at 100"}));
}

TEST_F(SessionTest, B38_NewMemoryTableRestartsRunningVringsWithoutNewAddresses) {
  run_vrings({0, 1});
  const auto old = running(1).memory;
  on_loop([this] { device_.taken = {{0, 2}, {1, 5}}; });
  share_memory();
  EXPECT_EQ(events(), (Events{"stop 0", "stop 1", "memory", "start 0 at 2", "start 1 at 5"}));
  EXPECT_NE(running(1).memory, old);
  EXPECT_EQ(old.use_count(), 1) << "the session or the device still holds the old table";
}

TEST_F(SessionTest, B43_GetVringBaseStopsUntilTheNextKick) {
  run_vrings({0, 1});
  on_loop([this] { device_.taken[1] = 77; });
  const auto base = get_base(1);
  ASSERT_TRUE(base);
  EXPECT_EQ(base->index, 1U);
  EXPECT_EQ(base->num, 77U);
  EXPECT_EQ(events(), (Events{"stop 1"}));
  enable(1);
  set_addr(1);
  EXPECT_EQ(events(), Events{});
  kick(1);
  EXPECT_EQ(events(), (Events{"start 1 at 77"}));
}

TEST_F(SessionTest, B42_GetVringBaseOfAQueueNeverSetUpIsAnswered) {
  const auto base = get_base(7);
  ASSERT_TRUE(base);
  EXPECT_EQ(base->index, 7U);
  EXPECT_EQ(base->num, 0U);
  EXPECT_EQ(events(), Events{});
}

TEST_F(SessionTest, B42_GetVringBaseOfAVringThatNeverRanTellsWhereItWouldHaveBegun) {
  write_guest_u16(kUsedOffset + 2, 99);
  share_memory();
  set_num(0);
  set_addr(0);
  const auto base = get_base(0);
  ASSERT_TRUE(base);
  EXPECT_EQ(base->num, 99U);
}

TEST_F(SessionTest, B37_NoFdBitMeansAPolledVringAndClosesNothing) {
  set_features(kLegacy);
  share_memory();
  set_num(0);
  set_base(0, 0);
  set_addr(0);
  for (const auto request :
       {VhostUserRequest::kSetVringErr, VhostUserRequest::kSetVringCall, VhostUserRequest::kSetVringKick}) {
    send(request, bytes_of(std::uint64_t{0} | kVhostUserVringNoFd));
  }
  EXPECT_EQ(events(), (Events{"features", "memory", "start 0 at 0"}));
  EXPECT_FALSE(running(0).kick);
  EXPECT_FALSE(running(0).call);
  EXPECT_EQ(running(0).size, kEntries);
}

TEST_F(SessionTest, B44_ChangedFeaturesReachRunningVrings) {
  run_vrings({0, 1});
  const auto changed = kFeatures | feature_bit(VIRTIO_NET_F_MRG_RXBUF);
  set_features(changed);
  EXPECT_EQ(events(), (Events{"stop 0", "stop 1", "features", "start 0 at 0", "start 1 at 0"}));
  EXPECT_EQ(running(1).features, changed);
  set_features(changed);  // QEMU repeats them for each pair
  EXPECT_EQ(events(), Events{});
}

TEST_F(SessionTest, B44_WithoutMqOnlyTheFirstPairRuns) {
  run_vrings({0, 1, 2, 3});
  set_features(kFeatures & ~feature_bit(VIRTIO_NET_F_MQ));
  EXPECT_EQ(events(), (Events{"stop 0", "stop 1", "stop 2", "stop 3", "features", "start 0 at 0", "start 1 at 0"}));
}

TEST_F(SessionTest, B39_UnalignedMmapOffsetIsMappedRight) {
  // The region begins 48 bytes into the file: aligned for a ring, not for mmap().
  write_guest_u16(48 + kUsedOffset + 2, 606);
  set_features(kLegacy);
  send(VhostUserRequest::kSetMemTable,
       bytes_of(VhostUserMemoryTable{1, 0}, VhostUserMemoryRegion{0, kGuestBytes - 48, kFva, 48}), {guest_.get()});
  set_num(0);
  set_addr(0);
  kick(0);
  EXPECT_EQ(events(), (Events{"features", "memory", "start 0 at 606"}));
}

TEST_F(SessionTest, B41_PartsOfAVringMayLieInDifferentRegions) {
  set_features(kLegacy);
  send(VhostUserRequest::kSetMemTable,
       bytes_of(VhostUserMemoryTable{2, 0}, VhostUserMemoryRegion{0, kAvailOffset, kFva, 0},
                VhostUserMemoryRegion{0x100000, kGuestBytes - kAvailOffset, kFva + kAvailOffset, kAvailOffset}),
       {guest_.get(), guest_.get()});
  set_num(0);
  set_base(0, 0);
  set_addr(0);
  kick(0);
  EXPECT_EQ(events(), (Events{"features", "memory", "start 0 at 0"}));
}

TEST_F(SessionTest, ResetOwnerStopsAllUntilTheNextKick) {
  run_vrings({0, 1});
  send(VhostUserRequest::kResetOwner);
  EXPECT_EQ(events(), (Events{"stop 0", "stop 1"}));
  kick(0);
  EXPECT_EQ(events(), (Events{"start 0 at 0"}));
}

TEST_F(SessionTest, RarpAndMtuReachTheDevice) {
  set_protocol_features(feature_bit(kVhostUserProtocolReplyAck));
  send(VhostUserRequest::kSendRarp, bytes_of(std::array<std::uint8_t, 8>{0x52, 0x54, 0, 1, 2, 3, 9, 9}));
  EXPECT_EQ(front_->ask(VhostUserRequest::kNetSetMtu, bytes_of(std::uint64_t{9000})), 0U);
  EXPECT_EQ(events(), (Events{"rarp 52:54:00:01:02:03", "mtu 9000"}));
  on_loop([this] { device_.refuse_mtu = true; });
  for (const std::uint64_t mtu : {std::uint64_t{1500}, std::uint64_t{67}, std::uint64_t{65536} + 1500}) {
    EXPECT_EQ(front_->ask(VhostUserRequest::kNetSetMtu, bytes_of(mtu)), 1U) << mtu;
  }
  EXPECT_EQ(events(), (Events{"mtu 1500"}));
}

TEST_F(SessionTest, WholeSetUpInOneWriteIsHandledInOrder) {
  Bytes all;
  const auto add = [&all](VhostUserRequest request, const Bytes& payload) {
    const auto one = message_bytes(static_cast<std::uint32_t>(request), payload);
    all.insert(all.end(), one.begin(), one.end());
  };
  share_memory();
  add(VhostUserRequest::kSetFeatures, bytes_of(kLegacy));
  for (unsigned vring = 0; vring < 8; ++vring) {  // more messages than one turn of the loop takes
    add(VhostUserRequest::kSetVringNum, bytes_of(VhostUserVringState{vring, kEntries}));
    add(VhostUserRequest::kSetVringBase, bytes_of(VhostUserVringState{vring, vring}));
    add(VhostUserRequest::kSetVringAddr, bytes_of(addresses(vring)));
    add(VhostUserRequest::kSetVringCall, bytes_of(vring | kVhostUserVringNoFd));
    add(VhostUserRequest::kSetVringKick, bytes_of(vring | kVhostUserVringNoFd));
  }
  ASSERT_TRUE(front_->send_raw(all));
  EXPECT_EQ(events(), (Events{"memory", "features", "start 0 at 0", "start 1 at 1", "start 2 at 2", "start 3 at 3",
                              "start 4 at 4", "start 5 at 5", "start 6 at 6", "start 7 at 7"}));
  EXPECT_EQ(counters_.messages.read(), 43U);
}

TEST_F(SessionTest, B31_SetUpInSingleBytesIsHandled) {
  for (const std::byte byte : message_bytes(2, bytes_of(kLegacy))) {
    ASSERT_TRUE(front_->send_raw({&byte, 1}));
  }
  EXPECT_EQ(events(), (Events{"features"}));
}

TEST_F(SessionTest, B51_FrontEndThatVanishesStopsAllVringsOnce) {
  run_vrings({0, 1, 2});
  front_->close();
  closed_reason();
  on_loop([this] { EXPECT_EQ(device_.events, (Events{"stop 0", "stop 1", "stop 2"})); });
  EXPECT_EQ(state(), SessionState::kConnected);
  EXPECT_EQ(counters_.bad_messages.read(), 0U);
}

TEST_F(SessionTest, DestroyingTheSessionStopsAllVringsOnceAndDoesNotCallClosed) {
  run_vrings({0, 1, 2});
  on_loop([this] { session_.reset(); });
  on_loop([this] { EXPECT_EQ(device_.events, (Events{"stop 0", "stop 1", "stop 2"})); });
  EXPECT_TRUE(front_->closed_by_peer());
  EXPECT_EQ(closed_reason_.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

TEST_F(SessionTest, ClosedMayDestroyTheSession) {
  run_vrings({0});
  std::promise<void> destroyed;
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  SessionCounters counters;
  RecordingDevice device;
  std::unique_ptr<Session> second;
  on_loop([&] {
    auto session = Session::create("vm1", Fd(ends[1]), *loop_, device, counters, [&](const std::string& /*reason*/) {
      second.reset();
      destroyed.set_value();
    });
    ASSERT_TRUE(session);
    second = std::move(*session);
  });
  ::close(ends[0]);
  ASSERT_EQ(destroyed.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  EXPECT_EQ(events(), Events{}) << "the other session noticed";
}

TEST_F(SessionTest, B50_ClosedIsNotCalledForASessionDestroyedMeanwhile) {
  run_vrings({0});
  // Work posted while the connection ends comes before the call of closed.
  on_loop([this] { device_.on_stop = [this] { loop_->post([this] { session_.reset(); }); }; });
  front_->close();
  while (true) {
    bool gone = false;
    on_loop([&] { gone = session_ == nullptr; });
    if (gone) {
      break;
    }
  }
  on_loop([] {});
  EXPECT_EQ(closed_reason_.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

}  // namespace
}  // namespace vxdp::testing
