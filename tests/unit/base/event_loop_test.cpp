// SPDX-License-Identifier: Apache-2.0
#include "vxdp/base/event_loop.hpp"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <chrono>
#include <thread>

namespace vxdp {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<EventLoop> make_loop() {
  return std::move(*EventLoop::create());
}

/// A descriptor that is readable from the start.
Fd readable() {
  return Fd(::eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC));
}

/// Ends a loop that a failed test would leave running.
void stop_after(EventLoop& loop, std::chrono::milliseconds delay) {
  loop.after(delay, [&loop] { loop.stop(); });
}

TEST(EventLoop, PostedWorkRunsInOrderOnTheLoopsThread) {
  auto loop = make_loop();
  std::vector<int> order;
  std::thread::id ran_on;
  std::thread runner([&] { loop->run(); });
  const auto runner_id = runner.get_id();
  loop->post([&] { order.push_back(1); });
  loop->post([&] {
    order.push_back(2);
    ran_on = std::this_thread::get_id();
  });
  loop->post([&] { loop->stop(); });
  runner.join();
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_EQ(ran_on, runner_id);
}

TEST(EventLoop, WorkPostedByWorkRunsToo) {
  auto loop = make_loop();
  bool inner = false;
  loop->post([&] {
    loop->post([&] {
      inner = true;
      loop->stop();
    });
  });
  stop_after(*loop, 5s);
  loop->run();
  EXPECT_TRUE(inner);
}

TEST(EventLoop, CallWaitsUntilTheWorkIsDone) {
  auto loop = make_loop();
  std::thread runner([&] { loop->run(); });
  bool done = false;
  EXPECT_TRUE(loop->call([&] {
    std::this_thread::sleep_for(20ms);
    done = true;
  }));
  EXPECT_TRUE(done);
  loop->stop();
  runner.join();
}

TEST(EventLoop, CallAfterTheEndSaysSo) {
  auto loop = make_loop();
  loop->stop();
  loop->run();
  bool ran = false;
  EXPECT_FALSE(loop->call([&] { ran = true; }));
  EXPECT_FALSE(ran);
}

TEST(EventLoop, CallsThatRaceWithStopEitherRanOrSayNo) {
  for (int round = 0; round < 50; ++round) {
    auto loop = make_loop();
    std::thread runner([&] { loop->run(); });
    std::atomic<int> ran{0};
    std::atomic<int> promised{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&] {
        while (loop->call([&] { ++ran; })) {
          ++promised;
        }
      });
    }
    std::this_thread::sleep_for(1ms);
    loop->stop();
    runner.join();
    for (auto& caller : callers) {
      caller.join();
    }
    EXPECT_EQ(ran, promised);
  }
}

TEST(EventLoop, TimersFireInOrderOfTimeAndOnce) {
  auto loop = make_loop();
  std::vector<int> order;
  const auto start = std::chrono::steady_clock::now();
  loop->after(30ms, [&] { order.push_back(2); });
  loop->after(10ms, [&] { order.push_back(1); });
  loop->after(60ms, [&] { loop->stop(); });
  loop->run();
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 60ms);
}

TEST(EventLoop, CancelledTimerDoesNotFire) {
  auto loop = make_loop();
  bool fired = false;
  const auto timer = loop->after(10ms, [&] { fired = true; });
  EventLoop::TimerId later = 0;
  loop->after(1ms, [&] { loop->cancel(later); });
  later = loop->after(20ms, [&] { fired = true; });
  loop->cancel(timer);
  loop->cancel(12345);  // unknown: nothing happens
  stop_after(*loop, 50ms);
  loop->run();
  EXPECT_FALSE(fired);
}

TEST(EventLoop, TimerMayArmItselfAgain) {
  auto loop = make_loop();
  int fired = 0;
  std::function<void()> tick = [&] {
    if (++fired == 3) {
      loop->stop();
    } else {
      loop->after(0ms, tick);
    }
  };
  loop->after(0ms, tick);
  stop_after(*loop, 5s);
  loop->run();
  EXPECT_EQ(fired, 3);
}

TEST(EventLoop, CallbackMayRemoveItselfAndIsNotCalledAgain) {
  auto loop = make_loop();
  const Fd fd = readable();  // never drained: a callback that stayed would be called for ever
  int calls = 0;
  auto token = std::make_shared<int>(7);  // lives in the callback, which must outlive its own removal
  ASSERT_TRUE(loop->add(fd.get(), EPOLLIN, [&, token](std::uint32_t) {
    ++calls;
    loop->remove(fd.get());
    calls += *token - 7;
  }));
  stop_after(*loop, 30ms);
  loop->run();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, CallbackMayRemoveAnotherThatIsReadyInTheSameRound) {
  auto loop = make_loop();
  const Fd a = readable();
  const Fd b = readable();
  int calls = 0;
  const auto callback = [&](std::uint32_t) {
    ++calls;
    loop->remove(a.get());
    loop->remove(b.get());
  };
  ASSERT_TRUE(loop->add(a.get(), EPOLLIN, callback));
  ASSERT_TRUE(loop->add(b.get(), EPOLLIN, callback));
  stop_after(*loop, 30ms);
  loop->run();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, ModifyChangesWhatIsWaitedFor) {
  auto loop = make_loop();
  const Fd fd = readable();
  std::vector<std::uint32_t> events;
  ASSERT_TRUE(loop->add(fd.get(), EPOLLIN, [&](std::uint32_t ready) {
    events.push_back(ready);
    if (events.size() == 1) {
      loop->modify(fd.get(), EPOLLOUT);
    } else {
      loop->stop();
    }
  }));
  stop_after(*loop, 5s);
  loop->run();
  EXPECT_EQ(events, (std::vector<std::uint32_t>{EPOLLIN, EPOLLOUT}));
}

TEST(EventLoop, AddingADescriptorTwiceOrAClosedOneIsAnError) {
  auto loop = make_loop();
  const Fd fd = readable();
  EXPECT_TRUE(loop->add(fd.get(), EPOLLIN, [](std::uint32_t) {}));
  EXPECT_FALSE(loop->add(fd.get(), EPOLLIN, [](std::uint32_t) {}));
  EXPECT_FALSE(loop->add(-1, EPOLLIN, [](std::uint32_t) {}));
}

TEST(EventLoop, StopBeforeRunEndsAtOnceButRunsWhatWasPosted) {
  auto loop = make_loop();
  bool ran = false;
  loop->post([&] { ran = true; });
  loop->stop();
  loop->run();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace vxdp
