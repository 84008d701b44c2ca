// SPDX-License-Identifier: Apache-2.0
#include "guest/checker.hpp"

#include <algorithm>

namespace vxdp {

void CheckCounts::add(const CheckCounts& other) noexcept {
  good += other.good;
  lost += other.lost;
  duplicated += other.duplicated;
  reordered += other.reordered;
  corrupted += other.corrupted;
  bad_checksum += other.bad_checksum;
  bad_header += other.bad_header;
  foreign += other.foreign;
}

bool SequenceWindow::note(std::uint64_t sequence) {
  if (bits_.empty()) {
    bits_.resize(kSequences / 64);
    first_ = next_ = sequence;
  }
  if (sequence >= next_) {
    if (sequence - next_ >= kSequences) {
      std::fill(bits_.begin(), bits_.end(), 0);
    } else {
      for (std::uint64_t s = next_; s < sequence; ++s) {
        clear(s);
      }
    }
    next_ = sequence + 1;
  } else if (next_ - sequence > kSequences || (sequence >= first_ && test(sequence))) {
    return false;
  } else if (sequence < first_) {
    first_ = sequence;  // arrived behind the one we took for the first
  }
  set(sequence);
  ++noted_;
  return true;
}

void SequenceLog::note(std::span<const StampId> stamps) {
  const std::lock_guard lock(mutex_);
  std::uint64_t good = 0;
  for (const StampId& stamp : stamps) {
    good += windows_[stamp.queue].note(stamp.sequence) ? 1U : 0U;
  }
  duplicated_ += stamps.size() - good;
  good_.fetch_add(good, std::memory_order_relaxed);
}

CheckCounts SequenceLog::counts() const {
  const std::lock_guard lock(mutex_);
  CheckCounts counts;
  counts.good = good();
  counts.duplicated = duplicated_;
  for (const SequenceWindow& window : windows_) {
    counts.lost += window.lost();
  }
  return counts;
}

void FrameChecker::check(std::span<const std::span<const std::byte>> parts, bool checksum_unfinished) {
  std::span<const std::byte> frame;
  if (parts.size() == 1) {
    frame = parts.front();
  } else {
    joined_.clear();
    for (const std::span<const std::byte> part : parts) {
      joined_.insert(joined_.end(), part.begin(), part.end());
    }
    frame = joined_;
  }
  const FrameVerdict verdict = judge_frame(frame, checksum_unfinished);
  if (verdict.kind == FrameVerdict::kForeign || verdict.queue >= kMaxSenderQueues) {
    ++counts_.foreign;
  } else if (verdict.kind == FrameVerdict::kCorrupted) {
    ++counts_.corrupted;
  } else if (verdict.kind == FrameVerdict::kBadChecksum) {
    ++counts_.bad_checksum;
  } else {
    std::uint64_t& next = next_[verdict.queue];
    // A sequence just seen again is a duplicate, not out of order.
    if (verdict.sequence + 1 < next) {
      ++counts_.reordered;
    }
    next = std::max(next, verdict.sequence + 1);
    pending_.push_back({verdict.queue, verdict.sequence});
    if (pending_.size() == kPending) {
      flush();
    }
  }
}

void FrameChecker::flush() {
  if (!pending_.empty()) {
    log_.note(pending_);
    pending_.clear();
  }
}

}  // namespace vxdp
