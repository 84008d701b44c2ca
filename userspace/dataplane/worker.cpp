// SPDX-License-Identifier: Apache-2.0
#include "vxdp/dataplane/worker.hpp"

#include <fmt/core.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>

namespace vxdp {
namespace {

constexpr std::uint64_t kLookEveryNs = 20'000;  // how often a polling worker asks epoll for edges
// Edge-triggered: an interface that stays readable because its guest has no buffers must not keep us awake.
constexpr std::uint32_t kBackendEvents = EPOLLIN | EPOLLOUT | EPOLLET;
constexpr int kRetryMs = 1;  // while a backend has no room, or a ring has no kick descriptor

std::uint64_t now_ns() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

Worker::Worker(unsigned index, std::shared_ptr<WorkerCounters> counters, Fd epoll, Fd wake)
    : index_(index), counters_(std::move(counters)), epoll_(std::move(epoll)), mailbox_(std::move(wake)) {}

Result<std::unique_ptr<Worker>> Worker::create(unsigned index, std::optional<unsigned> cpu,
                                               std::shared_ptr<WorkerCounters> counters) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll || !wake) {
    return errno_error("create", "a worker's descriptors");
  }
  std::unique_ptr<Worker> worker(new Worker(index, std::move(counters), std::move(epoll), std::move(wake)));
  if (auto watched = worker->watch(worker->mailbox_.wake_fd(), EPOLLIN, nullptr, Source::kMailbox); !watched) {
    return watched.error();
  }
  worker->thread_ = std::thread([raw = worker.get()] { raw->run(); });
  const pthread_t thread = worker->thread_.native_handle();
  ::pthread_setname_np(thread, fmt::format("vxdp-worker{}", index).c_str());
  if (cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (*cpu >= CPU_SETSIZE) {
      return invalid(fmt::format("there is no CPU {}", *cpu));
    }
    CPU_SET(*cpu, &set);
    if (const int error = ::pthread_setaffinity_np(thread, sizeof set, &set); error != 0) {
      return errno_error("pin", fmt::format("worker {} to CPU {}", index, *cpu), error);
    }
  }
  return worker;
}

Worker::~Worker() {
  if (thread_.joinable()) {
    mailbox_.execute([this] { stopping_ = true; });
    thread_.join();
  }
}

Result<> Worker::watch(int fd, std::uint32_t events, QueuePair* pair, Source source) {
  // A queue pair's address is aligned, so its low bits can say which descriptor of it this is.
  epoll_event event{.events = events,
                    .data = {.u64 = reinterpret_cast<std::uintptr_t>(pair) | static_cast<std::uintptr_t>(source)}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return errno_error("wait for", source == Source::kBackend ? "the interface" : "a kick descriptor");
  }
  return Ok{};
}

void Worker::unwatch(int fd) noexcept {
  if (fd >= 0) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

Result<> Worker::attach(QueuePair& pair) {
  if (auto watched = watch(pair.backend().event_fd(), kBackendEvents, &pair, Source::kBackend); !watched) {
    return watched;
  }
  mailbox_.execute([this, &pair] {
    pairs_.push_back(&pair);
    update_busy_poll();
  });
  ++pair_count_;
  return Ok{};
}

void Worker::detach(QueuePair& pair) {
  mailbox_.execute([this, &pair] {
    unwatch(pair.backend().event_fd());
    std::erase(pairs_, &pair);
    update_busy_poll();
  });
  --pair_count_;
}

Result<std::unique_ptr<Backend>> Worker::replace_backend(QueuePair& pair, std::unique_ptr<Backend> backend) {
  if (auto watched = watch(backend->event_fd(), kBackendEvents, &pair, Source::kBackend); !watched) {
    return watched.error();
  }
  mailbox_.execute([&] {
    unwatch(pair.backend().event_fd());
    backend = pair.replace_backend(std::move(backend));
  });
  return backend;
}

void Worker::update_busy_poll() noexcept {
  busy_poll_ns_ = 0;
  for (const auto* pair : pairs_) {
    busy_poll_ns_ = std::max(busy_poll_ns_, std::uint64_t{pair->busy_poll_us()} * 1000);
  }
}

template <typename Start>
Result<> Worker::start(QueuePair& pair, Source kick, SplitQueue& queue, const Start& start) {
  Result<> result = Ok{};
  mailbox_.execute([&] {
    if (queue.kick_fd() >= 0) {
      result = watch(queue.kick_fd(), EPOLLIN | EPOLLET, &pair, kick);
    }
    if (result) {
      start();
    }
  });
  return result;
}

Result<> Worker::start_from_guest(QueuePair& pair, SplitQueue queue) {
  return start(pair, Source::kKickFromGuest, queue, [&] { pair.from_guest().start(std::move(queue)); });
}

Result<> Worker::start_to_guest(QueuePair& pair, SplitQueue queue, std::uint32_t frame_bytes) {
  return start(pair, Source::kKickToGuest, queue, [&] { pair.to_guest().start(std::move(queue), frame_bytes); });
}

template <typename Direction>
std::uint16_t Worker::stop(Direction& direction) {
  std::uint16_t next_avail = 0;
  mailbox_.execute([&] {
    unwatch(direction.queue()->kick_fd());
    next_avail = direction.stop();
  });
  return next_avail;
}

std::uint16_t Worker::stop_from_guest(QueuePair& pair) {
  return stop(pair.from_guest());
}
std::uint16_t Worker::stop_to_guest(QueuePair& pair) {
  return stop(pair.to_guest());
}

void Worker::run() {
  std::uint64_t round_began = now_ns();
  std::uint64_t last_work = round_began;
  std::uint64_t last_look = round_began;
  for (;;) {
    mailbox_.run_pending();
    if (stopping_) {
      return;  // before a sleep that nobody would end
    }
    const bool worked = round();
    std::uint64_t now = now_ns();
    (worked ? counters_->busy_ns : counters_->poll_ns).add(now - round_began);
    if (worked) {
      last_work = now;
    }
    if (now - last_work > busy_poll_ns_ && !worked) {
      sleep();
      now = last_work = last_look = now_ns();
      // Polling begins with this grace only if the wake-up brings work; a round decides.
      last_work -= std::min(last_work, busy_poll_ns_);
    } else if (now - last_look > kLookEveryNs) {
      look(0);
      last_look = now;
    }
    round_began = now;
  }
}

bool Worker::round() noexcept {
  std::size_t moved = 0;
  for (QueuePair* pair : pairs_) {
    moved += pair->poll();
  }
  return moved != 0;
}

/// Sleeps until a kick, a backend or the mailbox has something. What came between the last round and the
/// request for kicks is found before the sleep.
void Worker::sleep() noexcept {
  bool work = false;
  bool look_again = false;
  for (QueuePair* pair : pairs_) {
    work |= pair->arm();
    look_again |= pair->from_guest().blocked() || pair->needs_looking();
  }
  if (work) {
    look(0);
  } else {
    counters_->sleeps.add();
    look(look_again ? kRetryMs : -1);
  }
  for (QueuePair* pair : pairs_) {
    pair->disarm();
    pair->from_guest().unblock();
  }
}

/// Takes the edges that epoll has seen; waits for one up to `timeout_ms` (-1: as long as it takes).
void Worker::look(int timeout_ms) noexcept {
  std::array<epoll_event, 64> events;
  const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < ready; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    constexpr std::uintptr_t kSourceBits = 3;
    auto* pair = reinterpret_cast<QueuePair*>(event.data.u64 & ~kSourceBits);
    switch (static_cast<Source>(event.data.u64 & kSourceBits)) {
      case Source::kMailbox: {
        std::uint64_t count = 0;
        (void)!::read(mailbox_.wake_fd(), &count, sizeof count);
        break;
      }
      // Kick descriptors come from the front-end and may be anything: they are waited for, never read.
      case Source::kKickFromGuest:
        pair->metrics().from_guest.kicks.add();
        break;
      case Source::kKickToGuest:
        pair->metrics().to_guest.kicks.add();
        break;
      case Source::kBackend:
        pair->to_guest().set_readable();
        if ((event.events & EPOLLOUT) != 0) {
          pair->from_guest().unblock();
        }
        break;
    }
  }
}

}  // namespace vxdp
