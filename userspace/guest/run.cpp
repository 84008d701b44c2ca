// SPDX-License-Identifier: Apache-2.0
#include "guest/run.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>

#include "guest/front_end.hpp"
#include "guest/traffic.hpp"

namespace vxdp {
namespace {

/// One vring with its two eventfds.
struct Vring {
  DriverQueue queue;
  Fd kick;
  Fd call;

  [[nodiscard]] QueuePairTraffic::Ring ring() { return {queue, kick.get(), call.get()}; }
};

/// SIGINT and SIGTERM as a descriptor, while it lives. Threads started meanwhile inherit the mask.
class StopSignals {
 public:
  StopSignals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~StopSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void take() noexcept {
    signalfd_siginfo info;
    [[maybe_unused]] const ssize_t n = ::read(fd_.get(), &info, sizeof info);
  }

 private:
  sigset_t before_{};
  Fd fd_;
};

Result<> check(const GuestOptions& options) {
  if (!options.send && !options.receive) {
    return invalid("nothing to do: say --send, --seconds or --receive");
  }
  if (options.queues < 1 || options.queues > kMaxSenderQueues) {
    return invalid(fmt::format("{} queues are not possible: use 1 to {}", options.queues, kMaxSenderQueues));
  }
  if (options.regions < 1 || options.regions > 8) {
    return invalid(fmt::format("{} memory regions are not possible: use 1 to 8", options.regions));
  }
  if (options.seconds < 0 || options.rate < 0) {
    return invalid("seconds and rate cannot be negative");
  }
  if (options.send && options.send_frames == 0U) {
    return invalid("sending 0 frames is not possible: use 1 or more");
  }
  if (options.verify && !options.receive) {
    return invalid("--verify checks received frames: it needs --receive");
  }
  if (options.expect > 0 && !options.verify) {
    return invalid("--expect counts verified frames: it needs --verify");
  }
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  for (const int cpu : options.cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(static_cast<unsigned>(cpu), &allowed)) {
      return invalid(fmt::format("CPU {} does not exist here or is not allowed", cpu));
    }
  }
  return Ok{};
}

struct FeatureWish {
  unsigned feature;
  const char* name;
  const char* option;  // that cannot do without; null: only used if offered
};

std::vector<FeatureWish> feature_wishes(const GuestOptions& options) {
  std::vector<FeatureWish> wishes = {{VIRTIO_F_VERSION_1, "VIRTIO_F_VERSION_1", "this guest"}};
  if (options.mergeable.value_or(true)) {
    wishes.push_back({VIRTIO_NET_F_MRG_RXBUF, "VIRTIO_NET_F_MRG_RXBUF", options.mergeable ? "--mergeable" : nullptr});
  }
  if (options.event_idx.value_or(true)) {
    wishes.push_back({VIRTIO_RING_F_EVENT_IDX, "VIRTIO_F_EVENT_IDX", options.event_idx ? "--event-idx" : nullptr});
  }
  if (options.indirect) {
    wishes.push_back({VIRTIO_RING_F_INDIRECT_DESC, "VIRTIO_F_INDIRECT_DESC", "--indirect"});
  }
  if (options.frame.partial_checksum || options.frame.segment_bytes != 0) {
    wishes.push_back({VIRTIO_NET_F_CSUM, "VIRTIO_NET_F_CSUM", "--csum"});
  }
  if (options.frame.segment_bytes != 0) {
    wishes.push_back({VIRTIO_NET_F_HOST_TSO4, "VIRTIO_NET_F_HOST_TSO4", "--gso"});
  }
  if (options.receive_offloads) {
    wishes.push_back({VIRTIO_NET_F_GUEST_CSUM, "VIRTIO_NET_F_GUEST_CSUM", "--receive-offloads"});
    wishes.push_back({VIRTIO_NET_F_GUEST_TSO4, "VIRTIO_NET_F_GUEST_TSO4", "--receive-offloads"});
    wishes.push_back({VIRTIO_NET_F_GUEST_TSO6, "VIRTIO_NET_F_GUEST_TSO6", "--receive-offloads"});
  }
  if (options.queues > 1) {
    wishes.push_back({VIRTIO_NET_F_MQ, "VIRTIO_NET_F_MQ", "--queues"});
    // virtio 1.2, 5.1.3.1: MQ requires the control queue, which a vhost-user back end never sees.
    wishes.push_back({VIRTIO_NET_F_CTRL_VQ, "VIRTIO_NET_F_CTRL_VQ", nullptr});
  }
  return wishes;
}

Result<> negotiate(FrontEnd& front_end, const GuestOptions& options) {
  const std::vector<FeatureWish> wishes = feature_wishes(options);
  std::uint64_t wanted = 0;
  for (const FeatureWish& wish : wishes) {
    wanted |= feature_bit(wish.feature);
  }
  if (Result<> agreed = front_end.negotiate(wanted); !agreed) {
    return agreed;
  }
  for (const FeatureWish& wish : wishes) {
    if (wish.option != nullptr && (front_end.features() & feature_bit(wish.feature)) == 0) {
      return invalid(fmt::format("the back end does not offer {}, which {} needs", wish.name, wish.option));
    }
  }
  if (options.queues > front_end.queue_pair_limit()) {
    return invalid(
        fmt::format("the back end has {} queue pairs, not {}", front_end.queue_pair_limit(), options.queues));
  }
  return Ok{};
}

DriverQueueOptions queue_options(const GuestOptions& options, std::uint64_t features, RingDirection direction) {
  DriverQueueOptions result;
  result.direction = direction;
  result.layout = options.layout;
  result.size = options.ring_size;
  result.event_idx = (features & feature_bit(VIRTIO_RING_F_EVENT_IDX)) != 0;
  result.indirect = (features & feature_bit(VIRTIO_RING_F_INDIRECT_DESC)) != 0;
  result.mergeable = (features & feature_bit(VIRTIO_NET_F_MRG_RXBUF)) != 0;
  if (direction == RingDirection::kFromGuest) {
    result.buffer_bytes = options.send ? options.frame.bytes : 64;
  } else if (!options.receive) {
    result.buffer_bytes = 64;  // never posted
  } else if (options.buffer_bytes != 0) {
    result.buffer_bytes = options.buffer_bytes;
  } else if (result.mergeable) {
    result.buffer_bytes = 2048;
  } else {
    constexpr std::uint32_t kLargestSuperFrame = 65550;
    result.buffer_bytes = options.receive_offloads ? kLargestSuperFrame : std::max(options.frame.bytes, 2048U);
  }
  return result;
}

/// Memory and rings for all queue pairs: vring 2i is to_guest of pair i, 2i+1 from_guest.
struct GuestRings {
  GuestRam ram;
  std::vector<Vring> vrings;
};

Result<GuestRings> make_rings(const GuestOptions& options, std::uint64_t features) {
  const std::array<DriverQueueOptions, 2> kinds = {queue_options(options, features, RingDirection::kToGuest),
                                                   queue_options(options, features, RingDirection::kFromGuest)};
  std::uint64_t bytes = 0;
  for (const DriverQueueOptions& kind : kinds) {
    // A region's end may be too short for one more block: at most a ring part or a buffer.
    bytes += options.queues * DriverQueue::memory_bytes(kind) +
             std::uint64_t{options.regions} * (kind.buffer_bytes + 0x1'0000U);
  }
  bytes += std::uint64_t{options.regions} * options.ring_size * sizeof(vring_desc);
  Result<GuestRam> ram = GuestRam::create(bytes, options.regions);
  if (!ram) {
    return ram.error();
  }
  GuestRings rings{std::move(*ram), {}};
  for (unsigned i = 0; i < 2 * options.queues; ++i) {
    Result<DriverQueue> queue = DriverQueue::create(rings.ram, kinds[i % 2]);
    if (!queue) {
      return queue.error();
    }
    Vring vring{std::move(*queue), Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
                Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
    if (!vring.kick || !vring.call) {
      return errno_error("create", "an eventfd");
    }
    rings.vrings.push_back(std::move(vring));
  }
  return rings;
}

TrafficPlan plan_for(const GuestOptions& options, unsigned pair, std::uint64_t features) {
  TrafficPlan plan;
  if (options.send) {
    // The first queues take one more each when the frames do not divide evenly.
    plan.send_frames = !options.send_frames ? TrafficPlan::kUnlimited
                                            : *options.send_frames / options.queues +
                                                  (pair < *options.send_frames % options.queues ? 1 : 0);
  }
  plan.send_rate = options.rate / options.queues;
  plan.seconds = options.seconds;
  plan.bad_every = options.bad_every;
  plan.receive = options.receive;
  plan.verify = options.verify;
  plan.receive_checksum_unfinished = (features & feature_bit(VIRTIO_NET_F_GUEST_CSUM)) != 0;
  plan.busy_poll = options.busy_poll;
  plan.cpu = options.cpus.empty() ? -1 : options.cpus[pair % options.cpus.size()];
  plan.limit = options.limit;
  plan.expect = options.expect;
  return plan;
}

/// Waits for the traffic threads; stops them on a signal or when the back end goes. True: it went.
bool supervise(TrafficShared& shared, StopSignals& signals, int back_end) {
  bool gone = false;
  while (shared.running.load(std::memory_order_acquire) > 0) {
    std::array<pollfd, 2> watched{{{signals.fd(), POLLIN, 0}, {gone ? -1 : back_end, POLLIN, 0}}};
    ::poll(watched.data(), watched.size(), 10);
    if (watched[0].revents != 0) {
      signals.take();
      shared.abandon = shared.stop.load();
      shared.stop = true;
    }
    if (watched[1].revents != 0) {
      gone = true;
      shared.stop = true;
      shared.abandon = true;
    }
  }
  return gone;
}

void collect(GuestReport& report, const TrafficCounts& counts, std::uint32_t frame_bytes) {
  report.sent += counts.sent;
  report.acknowledged += counts.acknowledged;
  report.sent_bytes += counts.acknowledged * frame_bytes;
  report.received += counts.received;
  report.received_bytes += counts.received_bytes;
  report.kicks += counts.kicks;
  report.wakeups += counts.wakeups;
  report.send_seconds = std::max(report.send_seconds, counts.send_seconds);
  report.receive_seconds = std::max(report.receive_seconds, counts.receive_seconds);
  report.checked.add(counts.checked);
  if (counts.broken != nullptr) {
    report.fault = counts.broken;
  }
}

void judge(GuestReport& report, const GuestOptions& options) {
  if (!report.fault.empty()) {
    return;
  }
  if (report.acknowledged != report.sent) {
    report.fault =
        fmt::format("the back end did not take {} of {} frames", report.sent - report.acknowledged, report.sent);
  } else if (report.checked.fault()) {
    report.fault = "received frames were not what was sent";
  } else if (report.checked.good < options.expect) {
    report.fault = fmt::format("{} of {} expected frames arrived", report.checked.good, options.expect);
  }
}

}  // namespace

Result<GuestReport> run_guest(const GuestOptions& options) {
  if (Result<> possible = check(options); !possible) {
    return possible.error();
  }
  const Result<FrameTemplate> frames = FrameTemplate::create(options.frame);
  if (!frames) {
    return frames.error();
  }
  Result<FrontEnd> front_end = options.listen ? FrontEnd::listen(options.socket, options.limit)
                                              : FrontEnd::connect(options.socket, options.limit);
  if (!front_end) {
    return front_end.error();
  }
  if (Result<> agreed = negotiate(*front_end, options); !agreed) {
    return agreed.error();
  }
  const std::uint64_t features = front_end->features();
  Result<GuestRings> rings = make_rings(options, features);
  if (!rings) {
    return rings.error();
  }

  TrafficShared shared;
  std::vector<TrafficPlan> plans;
  for (unsigned pair = 0; pair < options.queues; ++pair) {
    plans.push_back(plan_for(options, pair, features));
  }
  std::vector<std::unique_ptr<QueuePairTraffic>> pairs;
  for (unsigned pair = 0; pair < options.queues; ++pair) {
    pairs.push_back(std::make_unique<QueuePairTraffic>(
        static_cast<std::uint16_t>(pair), rings->vrings[std::size_t{2} * pair + 1].ring(),
        rings->vrings[std::size_t{2} * pair].ring(), *frames, plans[pair], shared));
  }

  if (Result<> shared_memory = front_end->share_memory(rings->ram); !shared_memory) {
    return shared_memory.error();
  }
  for (unsigned i = 0; i < rings->vrings.size(); ++i) {
    const Vring& vring = rings->vrings[i];
    VringSetup setup;
    setup.index = i;
    setup.size = vring.queue.options().size;
    setup.addresses = vring.queue.addresses();
    setup.kick = vring.kick.get();
    setup.call = vring.call.get();
    if (Result<> started = front_end->start_vring(setup); !started) {
      return started.error();
    }
  }

  GuestReport report;
  report.features = features;
  bool gone = false;
  {
    StopSignals signals;
    shared.running = options.queues;
    std::vector<std::thread> threads;
    threads.reserve(pairs.size());
    for (const auto& pair : pairs) {
      threads.emplace_back([&pair] { pair->run(); });
    }
    gone = supervise(shared, signals, front_end->fd());
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  for (const auto& pair : pairs) {
    collect(report, pair->counts(), options.frame.bytes);
  }
  report.checked.add(shared.log.counts());
  if (gone) {
    report.fault = "the back end closed the connection";
  }
  for (unsigned i = 0; i < rings->vrings.size() && !gone; ++i) {
    if (Result<std::uint16_t> stopped = front_end->stop_vring(i); !stopped) {
      report.fault = stopped.error().what;
      break;
    }
  }
  judge(report, options);
  return report;
}

}  // namespace vxdp
