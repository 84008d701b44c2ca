// SPDX-License-Identifier: Apache-2.0
// Device side of a split virtqueue over memory that the guest may change at any moment.
// Source: virtio 1.2, 2.7.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "vxdp/abi/drop_reasons.h"
#include "vxdp/base/result.hpp"
#include "vxdp/base/virtio_uapi.hpp"
#include "vxdp/virtqueue/vring_config.hpp"

namespace vxdp {

/// One descriptor chain as a list of host buffers.
struct Chain {
  std::uint16_t head = 0;
  std::uint16_t segments = 0;  // iovecs filled
  std::uint64_t bytes = 0;     // in them
  vxdp_drop_reason verdict = VXDP_DROP_NONE;
  bool no_room = false;  // `room` was too small and nothing was taken
};

enum class ChainUse { kDeviceReads, kDeviceWrites };

/// Owned by one worker while it runs. No call allocates, blocks or follows a guest's loop for ever.
class SplitQueue {
 public:
  SplitQueue() = default;
  /// A queue ready to run. Errors: a ring address outside memory or misaligned.
  static Result<SplitQueue> create(VringConfig config);

  /// Chains the guest has made available and we have not taken. 0 once the ring is broken: an index that
  /// jumped by more than the ring's size breaks it until the queue is created anew.
  [[nodiscard]] std::uint16_t available() noexcept;
  /// Reads ahead, into the cache, the descriptors of the next `count` (<= available()) chains.
  void prefetch(std::uint16_t count) const noexcept;
  /// Takes the next chain; at least one must be available. A chain that loops, leaves guest memory, mixes
  /// directions or is otherwise malformed has a verdict and no segments; it must still be completed.
  /// An impossible head breaks the ring (verdict BAD_CHAIN, broken() true, nothing to complete).
  [[nodiscard]] Chain take(ChainUse use, std::span<iovec> room) noexcept;
  /// Takes the next chain unread and returns its head; for a chain that no room can hold.
  [[nodiscard]] std::uint16_t skip() noexcept;
  /// Gives the last `count` chains taken back to the available side, as if never taken.
  void untake(std::uint16_t count) noexcept { next_avail_ = static_cast<std::uint16_t>(next_avail_ - count); }

  /// Writes the next used entry; the guest sees it at publish(). `written` = bytes the device wrote.
  void complete(std::uint16_t head, std::uint32_t written) noexcept;
  /// Shows the guest all completed entries. Returns how many.
  std::uint16_t publish() noexcept;
  /// Whether the guest wants to be called for what was published since the last true answer.
  [[nodiscard]] bool wants_call() noexcept;
  /// Writes the call descriptor; false if the guest has none.
  bool call() const noexcept;

  /// Asks the guest for kicks. Afterwards available() must be checked once more before sleeping.
  void enable_kicks() noexcept;
  /// Asks for none.
  void disable_kicks() noexcept;

  /// Marks the ring as impossible and tells the front-end through the error descriptor.
  void set_broken() noexcept;
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  [[nodiscard]] std::uint16_t next_avail() const noexcept { return next_avail_; }
  [[nodiscard]] std::uint16_t size() const noexcept { return config_.size; }
  [[nodiscard]] std::uint64_t features() const noexcept { return config_.features; }
  [[nodiscard]] bool discards() const noexcept { return config_.discard; }
  [[nodiscard]] int kick_fd() const noexcept { return config_.kick.get(); }
  [[nodiscard]] const GuestMemory& memory() const noexcept { return *config_.memory; }

 private:
  /// What both rings begin with; their entries follow. Source: virtio 1.2, 2.7.6, 2.7.8.
  struct RingHead {
    std::uint16_t flags;
    std::uint16_t idx;
  };
  class Walk;
  [[nodiscard]] const std::uint16_t& used_event() const noexcept;
  [[nodiscard]] std::uint16_t& avail_event() const noexcept;

  VringConfig config_;
  const vring_desc* desc_ = nullptr;
  const RingHead* avail_ = nullptr;
  const std::uint16_t* avail_ring_ = nullptr;
  RingHead* used_ = nullptr;
  vring_used_elem* used_ring_ = nullptr;
  std::uint16_t mask_ = 0;
  std::uint16_t next_avail_ = 0;
  std::uint16_t next_used_ = 0;       // where complete() writes
  std::uint16_t published_used_ = 0;  // what the guest sees
  std::uint16_t called_used_ = 0;     // what it was last called for
  bool call_due_ = true;              // the first publish always calls: the guest's event index is unknown
  bool event_idx_ = false;
  bool indirect_ = false;
  bool broken_ = false;
};

}  // namespace vxdp
