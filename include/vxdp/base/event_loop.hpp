// SPDX-License-Identifier: Apache-2.0
// The control thread's loop: descriptors, timers and work posted by other threads, one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"

namespace vxdp {

/// All methods but post(), call() and stop() are for the thread that runs the loop.
class EventLoop {
 public:
  using Callback = std::function<void(std::uint32_t epoll_events)>;
  using Work = std::function<void()>;
  using TimerId = std::uint64_t;

  static Result<std::unique_ptr<EventLoop>> create();

  /// Calls `callback` whenever `fd` (borrowed until remove()) has one of `epoll_events`.
  Result<> add(int fd, std::uint32_t epoll_events, Callback callback);
  /// Changes what `fd` waits for.
  void modify(int fd, std::uint32_t epoll_events) noexcept;
  /// Forgets `fd`; safe inside its own callback. Call before closing it.
  void remove(int fd) noexcept;

  /// Runs `work` once, `delay` from now.
  TimerId after(std::chrono::milliseconds delay, Work work);
  void cancel(TimerId timer) noexcept;

  /// Runs `work` on the loop's thread soon. Any thread.
  void post(Work work);
  /// Runs `work` on the loop's thread and waits for it; false if the loop has ended without running it.
  /// Any thread but the loop's.
  bool call(const Work& work);

  void run();
  /// Makes run() return. Any thread.
  void stop();

 private:
  EventLoop() = default;
  void run_posted();
  [[nodiscard]] int next_timeout_ms() const noexcept;
  void run_due_timers();

  using Clock = std::chrono::steady_clock;
  Fd epoll_;
  Fd wake_;
  std::unordered_map<int, std::shared_ptr<Callback>> callbacks_;
  std::map<std::pair<Clock::time_point, TimerId>, Work> timers_;
  TimerId next_timer_ = 1;

  std::mutex posted_mutex_;  // guards the three members below
  std::vector<Work> posted_;
  bool stopping_ = false;
  bool ended_ = false;
};

}  // namespace vxdp
