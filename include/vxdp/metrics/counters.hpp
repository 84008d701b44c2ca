// SPDX-License-Identifier: Apache-2.0
// What is counted. Each counter has one writing thread; any thread may read at any time.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "vxdp/abi/drop_reasons.h"

namespace vxdp {

/// A count with one writer: add() is a plain load and store, never a locked instruction.
class Counter {
 public:
  void add(std::uint64_t n = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t read() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// Frames per batch in buckets with upper bounds 1, 2, 4, 8, 16, 32, 64.
struct BatchHistogram {
  static constexpr std::size_t kBuckets = 7;
  void record(std::size_t frames) noexcept {  // frames: 1 .. 64
    buckets[static_cast<std::size_t>(std::bit_width(frames - 1))].add();
  }
  std::array<Counter, kBuckets> buckets;
};

/// One direction of one queue pair. Written by the worker that owns the pair. Its own cache lines.
struct alignas(64) QueueCounters {
  Counter frames;             // delivered to the other side
  Counter bytes;              // of those frames, virtio-net header excluded
  Counter batches;            // from_guest: messages to the backend; to_guest: groups published together
  BatchHistogram batch_size;  // frames in each
  Counter kicks;              // notifications received from the guest
  Counter calls;              // notifications sent to the guest
  Counter calls_suppressed;   // not sent because the guest asked so
  Counter syscalls;           // entries into the kernel to move frames
  Counter ring_full;          // times frames waited because the guest had no buffer
  Counter native;             // from_guest: frames that met an XDP program on the native path
  Counter generic;            // from_guest: frames that met an XDP program as an skb
  Counter ring_broken;        // times the ring was found impossible and stopped
  std::array<Counter, VXDP_DROP_REASON_COUNT> drops;  // by vxdp_drop_reason
};

/// One port's vhost-user session. Written by the control thread.
struct SessionCounters {
  Counter connects;
  Counter disconnects;
  Counter messages;
  Counter bad_messages;
  std::atomic<int> state{0};  // a SessionState
};
enum class SessionState { kWaiting = 0, kConnected = 1, kRunning = 2 };

/// One worker thread. Written by it.
struct alignas(64) WorkerCounters {
  Counter busy_ns;  // time spent in rounds that moved frames
  Counter poll_ns;  // time spent awake in rounds that moved none
  Counter sleeps;   // waits in epoll
};

}  // namespace vxdp
