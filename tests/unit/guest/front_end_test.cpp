// SPDX-License-Identifier: Apache-2.0
// FrontEnd against scripted back ends, the silent and the rude included.
#include "guest/front_end.hpp"

#include <gtest/gtest.h>
#include <sys/un.h>

#include <filesystem>

#include "unit/guest/test_back_end.hpp"

namespace vxdp {
namespace {

using namespace std::chrono_literals;
using testing::TestBackEnd;
using testing::value_of;
using Request = VhostUserRequest;

struct Connection {
  explicit Connection(TestBackEnd::Behaviour behaviour, std::chrono::milliseconds limit = 2s) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::runtime_error("socketpair");
    }
    back_end = std::make_unique<TestBackEnd>(Fd(ends[0]), std::move(behaviour));
    front_end = std::make_unique<FrontEnd>(FrontEnd::adopt(Fd(ends[1]), "test", limit));
  }
  Result<> set_up() {
    if (Result<> r = front_end->negotiate(~std::uint64_t{0}); !r) {
      return r;
    }
    ram.emplace(value_of(GuestRam::create(1 << 20, 2)));
    if (Result<> r = front_end->share_memory(*ram); !r) {
      return r;
    }
    DriverQueueOptions options;
    options.first_index = 17;
    queue.emplace(value_of(DriverQueue::create(*ram, options)));
    kick = Fd(::eventfd(0, EFD_CLOEXEC));
    VringSetup setup;
    setup.index = 1;
    setup.size = 256;
    setup.base = 17;
    setup.addresses = queue->addresses();
    setup.kick = kick.get();
    return front_end->start_vring(setup);
  }
  std::vector<Request> requests() {
    back_end->join();
    std::vector<Request> all;
    for (const TestBackEnd::Seen& seen : back_end->seen()) {
      all.push_back(static_cast<Request>(seen.request));
    }
    return all;
  }
  const TestBackEnd::Seen& last(Request request) {
    const TestBackEnd::Seen* found = nullptr;
    for (const TestBackEnd::Seen& seen : back_end->seen()) {
      found = seen.request == static_cast<std::uint32_t>(request) ? &seen : found;
    }
    if (found == nullptr) {
      throw std::runtime_error("no such message");
    }
    return *found;
  }

  std::unique_ptr<TestBackEnd> back_end;
  std::unique_ptr<FrontEnd> front_end;
  std::optional<GuestRam> ram;
  std::optional<DriverQueue> queue;
  Fd kick;
};

template <typename T>
T payload(const TestBackEnd::Seen& seen) {
  T value{};
  EXPECT_EQ(seen.payload.size(), sizeof value);
  std::memcpy(&value, seen.payload.data(), std::min(sizeof value, seen.payload.size()));
  return value;
}

TEST(FrontEnd, SetsUpAndStopsAVring) {
  Connection c({});
  const Result<> done = c.set_up();
  ASSERT_TRUE(done) << done.error().what;
  EXPECT_EQ(value_of(c.front_end->stop_vring(1)), 17);
  EXPECT_EQ(c.front_end->queue_pair_limit(), 4U);
  EXPECT_EQ(c.requests(),
            (std::vector<Request>{Request::kGetFeatures, Request::kGetProtocolFeatures, Request::kSetProtocolFeatures,
                                  Request::kGetQueueNum, Request::kSetOwner, Request::kSetFeatures,
                                  Request::kSetMemTable, Request::kSetVringNum, Request::kSetVringBase,
                                  Request::kSetVringAddr, Request::kSetVringCall, Request::kSetVringKick,
                                  Request::kSetVringEnable, Request::kGetVringBase}));
  EXPECT_EQ(c.back_end->set_features(), TestBackEnd::Behaviour().features);
  EXPECT_NE(c.last(Request::kSetVringNum).flags & kVhostUserNeedReply, 0U);
  EXPECT_EQ(c.last(Request::kGetVringBase).flags & kVhostUserNeedReply, 0U) << "it is answered anyway";
  EXPECT_EQ(c.last(Request::kSetMemTable).fds, 2U);
  EXPECT_EQ(c.last(Request::kSetMemTable).payload.size(), 8U + 2 * 32U);
  EXPECT_EQ(c.last(Request::kSetVringKick).fds, 1U);
  EXPECT_EQ(payload<std::uint64_t>(c.last(Request::kSetVringKick)), 1U);
  EXPECT_EQ(c.last(Request::kSetVringCall).fds, 0U);
  EXPECT_EQ(payload<std::uint64_t>(c.last(Request::kSetVringCall)), 1U | kVhostUserVringNoFd);
  const auto addresses = payload<VhostUserVringAddr>(c.last(Request::kSetVringAddr));
  EXPECT_EQ(addresses.index, 1U);
  EXPECT_EQ(addresses.desc_fva, c.queue->addresses().desc_fva);
  EXPECT_EQ(addresses.used_fva, c.queue->addresses().used_fva);
  EXPECT_EQ(addresses.avail_fva, c.queue->addresses().avail_fva);
}

TEST(FrontEnd, AsksForNoAcknowledgementThatWasNotOffered) {
  TestBackEnd::Behaviour behaviour;
  behaviour.protocol_features = 0;
  Connection c(behaviour);
  ASSERT_TRUE(c.set_up());
  EXPECT_EQ(c.front_end->queue_pair_limit(), 1U);
  ASSERT_TRUE(c.front_end->stop_vring(1));
  c.back_end->join();
  for (const TestBackEnd::Seen& seen : c.back_end->seen()) {
    EXPECT_EQ(seen.flags & kVhostUserNeedReply, 0U);
    EXPECT_NE(seen.request, static_cast<std::uint32_t>(Request::kGetQueueNum));
  }
}

TEST(FrontEnd, SendsNoEnableWithoutProtocolFeatures) {
  TestBackEnd::Behaviour behaviour;
  behaviour.features &= ~feature_bit(kVhostUserFProtocolFeatures);
  Connection c(behaviour);
  ASSERT_TRUE(c.set_up());
  ASSERT_TRUE(c.front_end->get(Request::kGetFeatures));
  for (const Request request : c.requests()) {
    EXPECT_NE(request, Request::kSetVringEnable);
    EXPECT_NE(request, Request::kGetProtocolFeatures);
  }
}

TEST(FrontEnd, SilentBackEndIsAnErrorInTime) {
  for (const Request request : {Request::kGetFeatures, Request::kSetMemTable, Request::kSetVringEnable}) {
    TestBackEnd::Behaviour behaviour;
    behaviour.ignore = request;
    Connection c(behaviour, 50ms);
    const auto start = std::chrono::steady_clock::now();
    const Result<> done = c.set_up();
    EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, std::errc::timed_out) << done.error().what;
  }
}

TEST(FrontEnd, RefusalClosingAndNonsenseAreErrorsOfTheirOwn) {
  TestBackEnd::Behaviour refuses;
  refuses.refuse = Request::kSetVringAddr;
  Result<> done = Connection(refuses).set_up();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, std::errc::invalid_argument) << done.error().what;

  TestBackEnd::Behaviour closes;
  closes.close_at = Request::kSetMemTable;
  done = Connection(closes).set_up();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, std::errc::connection_reset) << done.error().what;

  TestBackEnd::Behaviour wrong;
  wrong.wrong_reply = true;
  done = Connection(wrong).set_up();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, std::errc::protocol_error) << done.error().what;
}

class FrontEndSocket : public ::testing::Test {
 protected:
  FrontEndSocket() {
    char name[] = "/tmp/vxdp-front-end-XXXXXX";
    if (::mkdtemp(name) == nullptr) {
      throw std::runtime_error("mkdtemp");
    }
    folder_ = name;
    path_ = folder_ / "s";
  }
  ~FrontEndSocket() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(FrontEndSocket, PathsThatCannotBeAreErrors) {
  EXPECT_FALSE(FrontEnd::connect(path_, 50ms)) << "nobody there";
  EXPECT_FALSE(FrontEnd::connect(std::string(108, 'x'), 50ms)) << "too long";
  EXPECT_FALSE(FrontEnd::listen("", 50ms));
  EXPECT_FALSE(FrontEnd::listen(folder_ / "none" / "s", 50ms));
}

TEST_F(FrontEndSocket, ListensUntilABackEndConnectsAndLeavesNothingBehind) {
  const Result<FrontEnd> nobody = FrontEnd::listen(path_, 50ms);
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, std::errc::timed_out);
  EXPECT_FALSE(std::filesystem::exists(path_));

  const auto bind_to_path = [this] {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    return address;
  };
  {  // what a killed listener leaves
    const sockaddr_un address = bind_to_path();
    const Fd stale(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(stale.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  std::unique_ptr<TestBackEnd> back_end;
  std::thread connects([&] {
    const sockaddr_un address = bind_to_path();
    for (int tries = 0; tries < 400; ++tries) {
      Fd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        back_end = std::make_unique<TestBackEnd>(std::move(socket), TestBackEnd::Behaviour());
        return;
      }
      std::this_thread::sleep_for(5ms);
    }
  });
  Result<FrontEnd> front_end = FrontEnd::listen(path_, 5s);
  connects.join();
  ASSERT_TRUE(front_end) << front_end.error().what;
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(front_end->negotiate(0));
}

}  // namespace
}  // namespace vxdp
