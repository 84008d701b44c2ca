// SPDX-License-Identifier: Apache-2.0
// Follows the sequence numbers of received frames: what was lost, came twice, or out of order.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "guest/frame.hpp"

namespace vxdp {

/// What a check found; the sum of several is their field by field sum.
struct CheckCounts {
  std::uint64_t good = 0;  // stamped, undamaged, seen for the first time
  std::uint64_t lost = 0;  // between the first and the last sequence seen of each sender's queue
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;  // behind a later one on the same receiving queue
  std::uint64_t corrupted = 0;  // cut or changed; such a frame also counts as lost
  std::uint64_t bad_checksum = 0;
  std::uint64_t bad_header = 0;  // virtio-net header with a num_buffers that was not agreed on
  std::uint64_t foreign = 0;     // not ours

  void add(const CheckCounts& other) noexcept;
  [[nodiscard]] bool fault() const noexcept {
    return (lost | duplicated | reordered | corrupted | bad_checksum | bad_header) != 0;
  }
};

/// The sequences of one sender's queue that have arrived, over all receiving queues.
class SequenceWindow {
 public:
  /// How far behind the highest a sequence can be told from a duplicate.
  static constexpr std::uint64_t kSequences = 1 << 17;

  /// Notes one; false if it was there before, or is too old to tell.
  bool note(std::uint64_t sequence);
  [[nodiscard]] std::uint64_t lost() const noexcept { return next_ - first_ - noted_; }

 private:
  void set(std::uint64_t sequence) noexcept { bits_[sequence % kSequences / 64] |= std::uint64_t{1} << sequence % 64; }
  void clear(std::uint64_t sequence) noexcept {
    bits_[sequence % kSequences / 64] &= ~(std::uint64_t{1} << sequence % 64);
  }
  [[nodiscard]] bool test(std::uint64_t sequence) const noexcept {
    return (bits_[sequence % kSequences / 64] >> sequence % 64 & 1) != 0;
  }

  std::vector<std::uint64_t> bits_;  // empty until the first sequence
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t noted_ = 0;
};

constexpr unsigned kMaxSenderQueues = 64;

struct StampId {
  std::uint16_t queue = 0;
  std::uint64_t sequence = 0;
};

/// What all receiving queues have seen together. Any thread.
class SequenceLog {
 public:
  void note(std::span<const StampId> stamps);
  [[nodiscard]] std::uint64_t good() const noexcept { return good_.load(std::memory_order_relaxed); }
  /// good, lost and duplicated.
  [[nodiscard]] CheckCounts counts() const;

 private:
  mutable std::mutex mutex_;  // guards windows_ and duplicated_
  std::array<SequenceWindow, kMaxSenderQueues> windows_;
  std::uint64_t duplicated_ = 0;
  std::atomic<std::uint64_t> good_{0};  // written under the mutex, read without
};

/// The checker of one receiving queue, used by its thread.
class FrameChecker {
 public:
  explicit FrameChecker(SequenceLog& log) : log_(log) { pending_.reserve(kPending); }

  /// Judges a frame that lies in `parts`.
  void check(std::span<const std::span<const std::byte>> parts, bool checksum_unfinished);
  void count_bad_header() noexcept { ++counts_.bad_header; }
  /// Hands what was seen to the log. Call after each burst.
  void flush();
  /// reordered, corrupted, bad_checksum, bad_header and foreign.
  [[nodiscard]] const CheckCounts& counts() const noexcept { return counts_; }

 private:
  static constexpr std::size_t kPending = 256;
  SequenceLog& log_;
  CheckCounts counts_;
  std::array<std::uint64_t, kMaxSenderQueues> next_{};
  std::vector<StampId> pending_;
  std::vector<std::byte> joined_;  // a frame of several parts
};

}  // namespace vxdp
