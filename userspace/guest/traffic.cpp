// SPDX-License-Identifier: Apache-2.0
#include "guest/traffic.hpp"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace vxdp {
namespace {

using Seconds = std::chrono::duration<double>;

void pin_to(int cpu) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void drain(int eventfd) noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(eventfd, &count, sizeof count);
}

}  // namespace

QueuePairTraffic::QueuePairTraffic(std::uint16_t index, Ring from_guest, Ring to_guest, const FrameTemplate& frames,
                                   const TrafficPlan& plan, TrafficShared& shared)
    : index_(index),
      from_guest_(from_guest),
      to_guest_(to_guest),
      frames_(frames),
      plan_(plan),
      shared_(shared),
      checker_(shared.log) {
  if (plan_.send_frames == 0) {
    return;
  }
  DriverQueue& queue = from_guest_.queue;
  if (queue.options().layout != HeaderLayout::kSplit) {
    frame_of_.resize(queue.options().size);
  }
  VnetHeader bad_header{};
  bad_header.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
  bad_header.hdr.csum_start = 0xffff;  // far behind any frame
  unsigned prepared = 0;
  for (const DriverQueue::Slot slot : queue.slots()) {
    const bool bad = plan_.bad_every != 0 && ++prepared % plan_.bad_every == 0;
    queue.prepare(slot, frames_.frame(index_, static_cast<std::uint8_t>(slot)), bad ? bad_header : frames_.header());
    if (!frame_of_.empty()) {
      frame_of_[slot] = queue.contiguous_frame(slot);
    }
  }
}

void QueuePairTraffic::run() {
  if (plan_.cpu >= 0) {
    pin_to(plan_.cpu);
  }
  start_ = rate_start_ = last_used_ = last_received_ = sending_ended_ = Clock::now();
  sending_ = plan_.send_frames > 0;
  from_guest_.queue.disable_calls();
  to_guest_.queue.disable_calls();
  if (plan_.receive) {
    to_guest_.queue.post_buffers();
    kick_if_needed(to_guest_);
  }
  while (true) {
    const Clock::time_point now = Clock::now();
    if (sending_ && (counts_.sent == plan_.send_frames || shared_.stop.load(std::memory_order_relaxed) ||
                     (plan_.seconds > 0 && Seconds(now - start_).count() >= plan_.seconds))) {
      sending_ = false;
      sending_ended_ = now;
    }
    unsigned work = sending_ ? send(now) : 0;
    // A full used ring is read before it is needed only when there is nothing to send: its cache lines are the
    // device's.
    if (work == 0 || from_guest_.queue.free_slots() < 2 * kSendBurstFrames) {
      const unsigned used = reclaim();
      if (used > 0) {
        last_used_ = now;
      }
      work += used;
    }
    if (plan_.receive) {
      work += receive(now);
    }
    if (done(now, work > 0)) {
      break;
    }
    if (work > 0) {
      continue;
    }
    if (plan_.busy_poll) {
      relax();
    } else {
      sleep(now);
    }
  }
  counts_.checked = checker_.counts();
  counts_.send_seconds = Seconds(last_used_ - start_).count();
  counts_.receive_seconds = counts_.received == 0 ? 0 : Seconds(last_received_ - first_received_).count();
  counts_.broken = from_guest_.queue.broken() != nullptr ? from_guest_.queue.broken() : to_guest_.queue.broken();
  shared_.running.fetch_sub(1, std::memory_order_release);
}

unsigned QueuePairTraffic::send(Clock::time_point now) {
  DriverQueue& queue = from_guest_.queue;
  const unsigned count = static_cast<unsigned>(
      std::min<std::uint64_t>(std::min(queue.free_slots(), allowed(now)), plan_.send_frames - counts_.sent));
  if (count == 0 || queue.broken() != nullptr) {
    return 0;
  }
  if (counts_.sent == counts_.acknowledged) {
    last_used_ = now;  // nothing was in flight: the back end's time to make progress starts now
  }
  for (unsigned i = 0; i < count; ++i) {
    const DriverQueue::Slot slot = queue.take();
    stamp(slot, counts_.sent + i);
    queue.add(slot);
  }
  queue.publish();
  counts_.sent += count;
  rate_sent_ += count;
  kick_if_needed(from_guest_);
  return count;
}

void QueuePairTraffic::stamp(DriverQueue::Slot slot, std::uint64_t sequence) noexcept {
  const std::uint32_t sequence_offset = frames_.sequence_offset();
  const std::uint32_t tail_offset = frames_.tail_offset();
  if (sequence_offset == 0) {
    return;
  }
  const std::uint16_t tail = frame_tail(sequence);
  if (!frame_of_.empty()) {
    std::memcpy(frame_of_[slot] + sequence_offset, &sequence, sizeof sequence);
    if (tail_offset != 0) {
      std::memcpy(frame_of_[slot] + tail_offset, &tail, sizeof tail);
    }
    return;
  }
  from_guest_.queue.write(slot, sequence_offset, std::as_bytes(std::span(&sequence, 1)));
  if (tail_offset != 0) {
    from_guest_.queue.write(slot, tail_offset, std::as_bytes(std::span(&tail, 1)));
  }
}

unsigned QueuePairTraffic::reclaim() {
  const unsigned used = from_guest_.queue.reclaim(from_guest_.queue.slot_count());
  counts_.acknowledged += used;
  return used;
}

unsigned QueuePairTraffic::receive(Clock::time_point now) {
  DriverQueue& queue = to_guest_.queue;
  const bool one_buffer = !queue.options().mergeable;
  const unsigned count = queue.receive(kSendBurstFrames, [&](const ReceivedFrame& frame) {
    ++counts_.received;
    counts_.received_bytes += frame.bytes;
    if (!plan_.verify) {
      return;
    }
    if (one_buffer && frame.header.num_buffers != 1) {
      checker_.count_bad_header();
    }
    const bool unfinished = plan_.receive_checksum_unfinished &&
                            (frame.header.hdr.flags & (VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID)) != 0;
    checker_.check(frame.parts, unfinished);
  });
  if (count == 0) {
    return 0;
  }
  checker_.flush();
  if (first_received_ == Clock::time_point{}) {
    first_received_ = now;
  }
  last_received_ = now;
  queue.post_buffers();
  kick_if_needed(to_guest_);
  return count;
}

void QueuePairTraffic::kick_if_needed(Ring& ring) noexcept {
  if (ring.queue.kick_needed()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(ring.kick, &one, sizeof one);
    ++counts_.kicks;
  }
}

unsigned QueuePairTraffic::allowed(Clock::time_point now) noexcept {
  if (plan_.send_rate <= 0) {
    return kSendBurstFrames;
  }
  const double due = Seconds(now - rate_start_).count() * plan_.send_rate - static_cast<double>(rate_sent_);
  // Behind by more than a tenth of a second: the back end cannot take that rate, and what it missed is not made up.
  if (due > std::max(plan_.send_rate / 10, 2.0 * kSendBurstFrames)) {
    rate_start_ = now;
    rate_sent_ = 0;
    return kSendBurstFrames;
  }
  return due < 1 ? 0 : static_cast<unsigned>(std::min(due, double{kSendBurstFrames}));
}

bool QueuePairTraffic::done(Clock::time_point now, bool worked) const noexcept {
  if (from_guest_.queue.broken() != nullptr || to_guest_.queue.broken() != nullptr ||
      shared_.abandon.load(std::memory_order_relaxed)) {
    return true;
  }
  const bool in_flight = counts_.acknowledged < counts_.sent;
  if (in_flight && now - last_used_ > plan_.limit) {
    return true;  // the report shows what is missing
  }
  if (sending_ || in_flight) {
    return false;
  }
  if (!plan_.receive) {
    return true;
  }
  // What was sent last may still come back.
  const Clock::time_point last_sign = std::max(last_received_, sending_ended_);
  const bool quiet = now - last_sign > plan_.quiet || now - sending_ended_ > plan_.limit;
  if (shared_.stop.load(std::memory_order_relaxed)) {
    return plan_.send_frames == 0 || quiet;
  }
  if (plan_.expect > 0) {
    // Not before the ring was found empty: one frame too many is worth knowing.
    return (shared_.log.good() >= plan_.expect && !worked) || now - last_sign > plan_.limit;
  }
  if (plan_.send_frames > 0) {
    return quiet;
  }
  return plan_.seconds > 0 && Seconds(now - start_).count() >= plan_.seconds;
}

void QueuePairTraffic::sleep(Clock::time_point now) {
  DriverQueue& sender = from_guest_.queue;
  DriverQueue& receiver = to_guest_.queue;
  // Sending at full speed, half a ring of free slots is worth waking up for; one is not.
  const bool blocked = sending_ && sender.free_slots() == 0;
  sender.enable_calls(blocked ? sender.in_flight() / 2 : sender.in_flight());
  if (plan_.receive) {
    receiver.enable_calls();
  }
  if (!sender.used_pending() && !(plan_.receive && receiver.used_pending())) {
    std::chrono::duration<double> wait = std::chrono::milliseconds(50);  // `stop` is looked at that often
    if (sending_ && plan_.send_rate > 0 && !blocked) {
      const double due = static_cast<double>(rate_sent_ + 1) / plan_.send_rate - Seconds(now - rate_start_).count();
      wait = std::clamp(Seconds(due), Seconds(0), wait);
    }
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(wait).count();
    const timespec timeout{0, static_cast<long>(nanoseconds)};
    std::array<pollfd, 2> calls{{{from_guest_.call, POLLIN, 0}, {to_guest_.call, POLLIN, 0}}};
    if (::ppoll(calls.data(), calls.size(), &timeout, nullptr) > 0) {
      ++counts_.wakeups;
      for (const pollfd& call : calls) {
        if (call.revents != 0) {
          drain(call.fd);
        }
      }
    }
  }
  sender.disable_calls();
  receiver.disable_calls();
}

}  // namespace vxdp
