// SPDX-License-Identifier: Apache-2.0
#include "vxdp/base/event_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <future>

namespace vxdp {

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  auto loop = std::unique_ptr<EventLoop>(new EventLoop);
  loop->epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_) {
    return errno_error("create", "epoll instance");
  }
  loop->wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!loop->wake_) {
    return errno_error("create", "eventfd");
  }
  auto* raw = loop.get();
  auto added = loop->add(loop->wake_.get(), EPOLLIN, [raw](std::uint32_t /*events*/) {
    std::uint64_t count = 0;
    (void)!::read(raw->wake_.get(), &count, sizeof count);
  });
  if (!added) {
    return added.error();
  }
  return loop;
}

Result<> EventLoop::add(int fd, std::uint32_t epoll_events, Callback callback) {
  epoll_event event{.events = epoll_events, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return errno_error("watch", "descriptor");
  }
  callbacks_[fd] = std::make_shared<Callback>(std::move(callback));
  return Ok{};
}

void EventLoop::modify(int fd, std::uint32_t epoll_events) noexcept {
  epoll_event event{.events = epoll_events, .data = {.fd = fd}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::remove(int fd) noexcept {
  if (callbacks_.erase(fd) != 0) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

EventLoop::TimerId EventLoop::after(std::chrono::milliseconds delay, Work work) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair(Clock::now() + delay, id), std::move(work));
  return id;
}

void EventLoop::cancel(TimerId timer) noexcept {
  std::erase_if(timers_, [timer](const auto& entry) { return entry.first.second == timer; });
}

void EventLoop::post(Work work) {
  const std::lock_guard lock(posted_mutex_);
  posted_.push_back(std::move(work));
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

bool EventLoop::call(const Work& work) {
  // Shared, because the posted copy may be destroyed after this function returned.
  auto done = std::make_shared<std::promise<bool>>();
  auto result = done->get_future();
  {
    const std::lock_guard lock(posted_mutex_);
    if (ended_) {
      return false;
    }
    // A destroyed, never run entry breaks the promise, which reads as "not run" below.
    posted_.push_back([work, done = std::move(done)] {
      work();
      done->set_value(true);
    });
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }
  try {
    return result.get();
  } catch (const std::future_error&) {
    return false;
  }
}

void EventLoop::stop() {
  const std::lock_guard lock(posted_mutex_);
  stopping_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void EventLoop::run_posted() {
  std::vector<Work> work;
  {
    const std::lock_guard lock(posted_mutex_);
    work.swap(posted_);
  }
  for (auto& item : work) {
    item();
  }
}

int EventLoop::next_timeout_ms() const noexcept {
  if (timers_.empty()) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void EventLoop::run_due_timers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    node.mapped()();
  }
}

void EventLoop::run() {
  std::array<epoll_event, 64> events;
  for (;;) {
    run_posted();
    run_due_timers();
    {
      const std::lock_guard lock(posted_mutex_);
      if (stopping_) {
        ended_ = true;
        break;
      }
      if (!posted_.empty()) {
        continue;
      }
    }
    const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), next_timeout_ms());
    for (int i = 0; i < ready; ++i) {
      // The callback may have been removed by an earlier one of this round.
      const auto found = callbacks_.find(events[static_cast<std::size_t>(i)].data.fd);
      if (found != callbacks_.end()) {
        const auto callback = found->second;
        (*callback)(events[static_cast<std::size_t>(i)].events);
      }
    }
  }
  const std::lock_guard lock(posted_mutex_);
  posted_.clear();
}

}  // namespace vxdp
