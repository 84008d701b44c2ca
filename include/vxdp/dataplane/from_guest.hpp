// SPDX-License-Identifier: Apache-2.0
// Guest to backend: chains become XDP buffers, up to 64 of them one message.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "vxdp/backend/backend.hpp"
#include "vxdp/base/mapping.hpp"
#include "vxdp/metrics/counters.hpp"
#include "vxdp/packet/batch.hpp"
#include "vxdp/virtqueue/split_queue.hpp"

namespace vxdp {

/// How frames of this queue meet an XDP program on the backend. Written by the control thread.
struct XdpPath {
  std::atomic<bool> attached{false};
  std::atomic<bool> native{false};
  std::atomic<bool> may_redirect{false};  // then checksums are finished here: XDP has no field for "unfinished"
};

/// Owned by the worker's queue pair; start() and stop() run on the worker too.
class FromGuest {
 public:
  /// `batch_limit`: frames, 1 .. 64. All references outlive the object.
  FromGuest(Backend& backend, QueueCounters& counters, const XdpPath& path, unsigned batch_limit);

  void start(SplitQueue queue) noexcept;
  /// Gives unsent chains back to the guest's side; returns the next available index.
  std::uint16_t stop() noexcept;

  /// Moves at most one batch; returns chains handled.
  std::size_t step() noexcept;

  /// From now on frames go through `backend`.
  void use_backend(Backend& backend) noexcept {
    backend_ = &backend;
    backend_gone_.store(false, std::memory_order_relaxed);
  }
  [[nodiscard]] SplitQueue* queue() noexcept { return queue_ ? &*queue_ : nullptr; }
  /// Frames wait because the backend had no room; step() does nothing until unblock().
  [[nodiscard]] bool blocked() const noexcept { return blocked_; }
  void unblock() noexcept { blocked_ = false; }
  [[nodiscard]] bool has_work() noexcept {
    return queue_ && !blocked_ && (!batch_.empty() || queue_->available() != 0);
  }
  /// The interface was deleted under us.
  [[nodiscard]] bool backend_gone() const noexcept { return backend_gone_.load(std::memory_order_relaxed); }

 private:
  void fill() noexcept;
  void collect_chains() noexcept;
  void judge_frames() noexcept;
  [[nodiscard]] vxdp_drop_reason judge(XdpBuff& frame) noexcept;
  [[nodiscard]] vxdp_drop_reason make_private(XdpBuff& frame, std::size_t position) noexcept;
  void send() noexcept;
  void account(std::span<const XdpBuff> frames) noexcept;
  void hand_back(std::size_t chains_end) noexcept;

  Backend* backend_;
  QueueCounters& counters_;
  const XdpPath& path_;
  const unsigned batch_limit_;
  std::optional<SplitQueue> queue_;
  std::uint32_t header_bytes_ = 12;
  Batch batch_;
  std::size_t sent_ = 0;         // frames of the batch the backend is done with
  std::size_t handed_back_ = 0;  // chains of the batch the guest has back
  bool blocked_ = false;
  bool limited_ = false;  // the backend wants frames singly; asked once a batch
  std::atomic<bool> backend_gone_{false};
  Mapping copies_;  // one slot a frame, for those whose bytes must change on the way; its pages come when first needed
};

}  // namespace vxdp
