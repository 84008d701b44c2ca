// SPDX-License-Identifier: Apache-2.0
// A Session on a loop in a thread of its own, a device that writes down what it is asked, and guest memory.
// Every test also checks that no descriptor is left open.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "front_end.hpp"
#include "vxdp/base/virtio_uapi.hpp"
#include "vxdp/vhost_user/session.hpp"

namespace vxdp::testing {

inline std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

/// Used on the loop's thread only.
class RecordingDevice : public DeviceListener {
 public:
  std::vector<std::string> events;
  std::map<unsigned, VringConfig> running;
  std::map<unsigned, std::uint16_t> taken;  // chains each vring has taken when it is stopped
  std::shared_ptr<const GuestMemory> memory;
  std::uint64_t acknowledged = 0;
  unsigned limit = 8;
  std::function<void()> on_stop;
  bool refuse_start = false;
  bool refuse_mtu = false;

  [[nodiscard]] std::uint64_t features() const override {
    return feature_bit(VIRTIO_F_VERSION_1) | feature_bit(VIRTIO_NET_F_MQ) | feature_bit(VIRTIO_NET_F_MRG_RXBUF) |
           feature_bit(kVhostUserFProtocolFeatures);
  }
  [[nodiscard]] unsigned vring_limit() const override { return limit; }
  [[nodiscard]] std::uint16_t mtu() const override { return 1500; }
  Result<> set_features(std::uint64_t features) override {
    EXPECT_TRUE(running.empty()) << "features changed under a running vring";
    acknowledged = features;
    events.emplace_back("features");
    return Ok{};
  }
  Result<> set_memory(std::shared_ptr<const GuestMemory> table) override {
    EXPECT_TRUE(running.empty()) << "memory changed under a running vring";
    memory = std::move(table);
    events.emplace_back("memory");
    return Ok{};
  }
  Result<> start_vring(unsigned index, VringConfig config) override {
    EXPECT_FALSE(running.contains(index)) << "vring " << index << " started twice";
    if (refuse_start) {
      return invalid("no worker has room");
    }
    EXPECT_EQ(config.memory, memory);
    EXPECT_EQ(config.features, acknowledged);
    events.push_back(fmt::format("start {} at {}", index, config.next_avail));
    running[index] = std::move(config);
    return Ok{};
  }
  std::uint16_t stop_vring(unsigned index) override {
    EXPECT_TRUE(running.contains(index)) << "vring " << index << " stopped but it does not run";
    const auto next = static_cast<std::uint16_t>(running[index].next_avail + taken[index]);
    running.erase(index);
    events.push_back(fmt::format("stop {}", index));
    if (on_stop) {
      on_stop();
    }
    return next;
  }
  Result<> set_mtu(std::uint16_t mtu) override {
    events.push_back(fmt::format("mtu {}", mtu));
    return refuse_mtu ? Result<>(invalid("TAP refuses this MTU")) : Result<>(Ok{});
  }
  void send_rarp(const std::uint8_t* mac) override {
    events.push_back(
        fmt::format("rarp {:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]));
  }
};

class SessionTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kFva = 0x7f0000000000;
  static constexpr std::uint64_t kGuestBytes = 0x40000;
  static constexpr std::uint64_t kVringStride = 0x4000;
  static constexpr std::uint64_t kAvailOffset = 0x1000, kUsedOffset = 0x2000;
  static constexpr std::uint16_t kEntries = 256;
  static constexpr std::uint64_t kLegacy = feature_bit(VIRTIO_F_VERSION_1) | feature_bit(VIRTIO_NET_F_MQ);
  static constexpr std::uint64_t kFeatures = kLegacy | feature_bit(kVhostUserFProtocolFeatures);

  void SetUp() override {
    descriptors_before_ = open_descriptors();
    auto loop = EventLoop::create();
    ASSERT_TRUE(loop);
    loop_ = std::move(*loop);
    thread_ = std::thread([this] { loop_->run(); });
    connect();
    guest_ = make_memfd(kGuestBytes);
    kick_ = make_eventfd();
    call_ = make_eventfd();
    ASSERT_TRUE(guest_ && kick_ && call_);
  }

  void TearDown() override {
    on_loop([this] { session_.reset(); });
    EXPECT_TRUE(device_.running.empty()) << "the session left a vring running";
    loop_->stop();
    thread_.join();
    loop_.reset();
    device_.memory.reset();
    front_.reset();
    guest_.reset();
    kick_.reset();
    call_.reset();
    EXPECT_EQ(open_descriptors(), descriptors_before_) << "descriptors leaked";
  }

  void connect() {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    ::fcntl(ends[0], F_SETFL, 0);
    front_ = std::make_unique<FrontEnd>(Fd(ends[0]));
    closed_ = std::promise<std::string>();
    closed_reason_ = closed_.get_future();
    on_loop([&] {
      auto session = Session::create("vm0", Fd(ends[1]), *loop_, device_, counters_,
                                     [this](const std::string& reason) { closed_.set_value(reason); });
      ASSERT_TRUE(session);
      session_ = std::move(*session);
    });
  }

  template <typename Work>
  void on_loop(const Work& work) {
    ASSERT_TRUE(loop_->call(work));
  }

  /// What the device was asked since the last look, after all messages sent so far.
  std::vector<std::string> events() {
    EXPECT_TRUE(front_->ask(VhostUserRequest::kGetFeatures)) << "the session is gone";
    std::vector<std::string> copy;
    on_loop([&] { copy.swap(device_.events); });
    return copy;
  }
  /// The configuration `vring` runs with, descriptors aside; size 0 if it does not run.
  VringConfig running(unsigned vring) {
    VringConfig copy;
    on_loop([&] {
      if (const auto found = device_.running.find(vring); found != device_.running.end()) {
        const auto& config = found->second;
        copy = {config.memory,
                config.features,
                config.size,
                config.desc_fva,
                config.avail_fva,
                config.used_fva,
                config.next_avail,
                config.kick.duplicate(),
                config.call.duplicate(),
                {},
                config.discard};
      }
    });
    return copy;
  }
  std::string closed_reason() {
    if (closed_reason_.wait_for(std::chrono::seconds(5)) != std::future_status::ready) {
      ADD_FAILURE() << "the session did not end";
      return {};
    }
    return closed_reason_.get();
  }
  SessionState state() const { return static_cast<SessionState>(counters_.state.load()); }

  // What a front-end says, one message each.
  void set_features(std::uint64_t features) { send(VhostUserRequest::kSetFeatures, bytes_of(features)); }
  void set_protocol_features(std::uint64_t features) {
    send(VhostUserRequest::kSetProtocolFeatures, bytes_of(features));
  }
  void share_memory() {
    send(VhostUserRequest::kSetMemTable,
         bytes_of(VhostUserMemoryTable{1, 0}, VhostUserMemoryRegion{0, kGuestBytes, kFva, 0}), {guest_.get()});
  }
  static VhostUserVringAddr addresses(unsigned vring) {
    const std::uint64_t at = kFva + vring * kVringStride;
    return {vring, 0, at, at + kUsedOffset, at + kAvailOffset, 0};
  }
  void set_num(unsigned vring) { send(VhostUserRequest::kSetVringNum, bytes_of(VhostUserVringState{vring, kEntries})); }
  void set_addr(unsigned vring) { send(VhostUserRequest::kSetVringAddr, bytes_of(addresses(vring))); }
  void set_base(unsigned vring, unsigned next) {
    send(VhostUserRequest::kSetVringBase, bytes_of(VhostUserVringState{vring, next}));
  }
  void kick(unsigned vring) { send(VhostUserRequest::kSetVringKick, bytes_of(std::uint64_t{vring}), {kick_.get()}); }
  void call(unsigned vring) { send(VhostUserRequest::kSetVringCall, bytes_of(std::uint64_t{vring}), {call_.get()}); }
  void enable(unsigned vring, unsigned value = 1) {
    send(VhostUserRequest::kSetVringEnable, bytes_of(VhostUserVringState{vring, value}));
  }
  void prepare_vring(unsigned vring) {
    set_num(vring);
    set_base(vring, 0);
    set_addr(vring);
    call(vring);
  }
  /// Features, memory and `vrings` enabled and running from index 0; forgets the events of doing so.
  void run_vrings(std::initializer_list<unsigned> vrings) {
    set_features(kFeatures);
    set_protocol_features(feature_bit(kVhostUserProtocolReplyAck) | feature_bit(kVhostUserProtocolMq));
    share_memory();
    for (const unsigned vring : vrings) {
      prepare_vring(vring);
      kick(vring);
      enable(vring);
    }
    events();
    on_loop([&] { ASSERT_EQ(device_.running.size(), vrings.size()); });
  }
  /// GET_VRING_BASE's answer.
  std::optional<VhostUserVringState> get_base(unsigned vring) {
    send(VhostUserRequest::kGetVringBase, bytes_of(VhostUserVringState{vring, 0}));
    const auto reply = front_->receive();
    return reply ? std::optional(reply->as<VhostUserVringState>()) : std::nullopt;
  }
  void send(VhostUserRequest request, const Bytes& payload = {}, const std::vector<int>& fds = {}) {
    ASSERT_TRUE(front_->send(request, payload, fds));
  }
  void write_guest_u16(std::uint64_t offset, std::uint16_t value) {
    ASSERT_EQ(::pwrite(guest_.get(), &value, sizeof value, static_cast<off_t>(offset)), 2);
  }

  std::ptrdiff_t descriptors_before_ = 0;
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
  RecordingDevice device_;
  SessionCounters counters_;
  std::unique_ptr<FrontEnd> front_;
  std::unique_ptr<Session> session_;
  std::promise<std::string> closed_;
  std::future<std::string> closed_reason_;
  Fd guest_;
  Fd kick_;
  Fd call_;
};

using Events = std::vector<std::string>;

}  // namespace vxdp::testing
