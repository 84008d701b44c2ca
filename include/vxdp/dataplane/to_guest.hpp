// SPDX-License-Identifier: Apache-2.0
// Backend to guest: frames are read straight into the guest's buffers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "vxdp/backend/backend.hpp"
#include "vxdp/metrics/counters.hpp"
#include "vxdp/packet/batch.hpp"
#include "vxdp/virtqueue/split_queue.hpp"

namespace vxdp {

/// Owned by the worker's queue pair; start() and stop() run on the worker too.
class ToGuest {
 public:
  ToGuest(Backend& backend, QueueCounters& counters, unsigned batch_limit);

  /// `frame_bytes`: the largest frame the interface is expected to deliver. A larger one is still safe.
  void start(SplitQueue queue, std::uint32_t frame_bytes) noexcept;
  /// Gives buffers taken ahead back to the guest's side; returns the next available index.
  std::uint16_t stop() noexcept;

  /// Moves at most one batch; returns frames handled.
  std::size_t step() noexcept;

  /// The backend may have frames. From the worker's epoll.
  void set_readable() noexcept { readable_ = true; }
  /// Frames can be moved now.
  [[nodiscard]] bool has_work() noexcept;
  /// From now on frames go through `backend`.
  void use_backend(Backend& backend) noexcept {
    backend_ = &backend;
    backend_gone_.store(false, std::memory_order_relaxed);
  }
  [[nodiscard]] SplitQueue* queue() noexcept { return queue_ ? &*queue_ : nullptr; }
  [[nodiscard]] bool backend_gone() const noexcept { return backend_gone_.load(std::memory_order_relaxed); }

 private:
  /// One chain taken from the ring and not filled yet: iov_[first_iov, first_iov + iovs).
  struct Buffer {
    std::uint16_t head;
    std::uint16_t iovs;
    std::uint32_t first_iov;
    std::uint32_t bytes;
  };

  enum class Take { kTaken, kNone, kBadNext };

  Take take_buffer() noexcept;
  Take gather(std::size_t buffers, std::uint64_t bytes) noexcept;
  void compact() noexcept;
  [[nodiscard]] std::size_t window_iovs() const noexcept {
    return count_ == 0 ? 0 : end_iov_ - buffers_[first_].first_iov;
  }
  [[nodiscard]] bool holds_any_frame(const Buffer& buffer) const noexcept {
    return !mergeable_ || buffer.bytes >= wanted_bytes_;
  }
  [[nodiscard]] std::size_t rooms_ready(std::size_t limit) const noexcept;
  std::size_t read_one() noexcept;
  std::size_t read_many(std::size_t count) noexcept;
  [[nodiscard]] bool fits(std::uint32_t bytes, const Buffer& buffer) const noexcept;
  bool finish_waiting_frame() noexcept;
  void deliver(std::uint32_t bytes) noexcept;
  void write_header_fields(const Buffer& buffer, std::uint16_t buffers) noexcept;
  void drop_refused(std::int32_t result) noexcept;
  void note_reads(std::size_t offered, std::size_t got) noexcept;
  void note_starving() noexcept;
  void publish() noexcept;

  static constexpr std::size_t kIovs = 4096;
  static constexpr std::size_t kBuffers = 1024;
  static constexpr std::size_t kReadIovs = 1023;         // with the overflow UIO_MAXIOV
  static constexpr std::size_t kOverflowBytes = 69'632;  // more than any frame

  Backend* backend_;
  QueueCounters& counters_;
  const unsigned batch_limit_;
  std::optional<SplitQueue> queue_;
  std::uint32_t header_bytes_ = 12;
  std::uint32_t wanted_bytes_ = 0;  // header and the largest expected frame
  bool mergeable_ = false;
  bool clear_flags_ = false;  // guest without GUEST_CSUM: header flags must be 0
  bool readable_ = true;
  bool starving_ = false;
  std::size_t reads_ahead_ = 1;  // rooms offered at once; follows how many were filled
  std::atomic<bool> backend_gone_{false};

  // The window of buffers taken but not filled: buffers_[first_, first_ + count_). A buffer that can hold any
  // frame has a spare iovec behind its own, of length 0 except while it is a room of its own.
  std::array<Buffer, kBuffers> buffers_;
  std::array<iovec, kIovs> iov_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t end_iov_ = 0;
  std::uint64_t window_bytes_ = 0;

  // Where the kernel puts what does not fit, so that nothing is cut unseen; the tail of a frame that waits for
  // more mergeable buffers lies here.
  std::vector<std::byte> overflow_;
  std::uint32_t waiting_bytes_ = 0;   // that frame's length with header; 0 = none waits
  std::uint64_t waiting_placed_ = 0;  // how much of it the window holds already
};

}  // namespace vxdp
