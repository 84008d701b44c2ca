// SPDX-License-Identifier: Apache-2.0
// READ FIRST. One queue pair of one port: the guest's two rings and the backend between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "vxdp/backend/backend.hpp"
#include "vxdp/dataplane/from_guest.hpp"
#include "vxdp/dataplane/to_guest.hpp"
#include "vxdp/metrics/registry.hpp"

namespace vxdp {

/// Belongs to one worker from Worker::attach() to Worker::detach(); its methods run on that worker,
/// except those marked.
class QueuePair {
 public:
  /// `batch_limit`: frames a batch, 1 .. 64. References outlive the object.
  QueuePair(std::unique_ptr<Backend> backend, QueuePairMetrics& metrics, const XdpPath& path, unsigned batch_limit,
            std::uint32_t busy_poll_us);

  /// One round: at most one batch each way. Returns frames and chains handled.
  std::size_t poll() noexcept;
  /// Asks the guest for kicks before a sleep; true if work came meanwhile, so that no sleep must follow.
  bool arm() noexcept;
  void disarm() noexcept;
  /// A running ring has no kick descriptor: it must be looked at now and then.
  [[nodiscard]] bool needs_looking() noexcept;
  /// Goes on with `backend` and returns the one before.
  std::unique_ptr<Backend> replace_backend(std::unique_ptr<Backend> backend) noexcept;

  [[nodiscard]] FromGuest& from_guest() noexcept { return from_guest_; }
  [[nodiscard]] ToGuest& to_guest() noexcept { return to_guest_; }
  [[nodiscard]] QueuePairMetrics& metrics() noexcept { return metrics_; }
  /// Any thread, while the worker does not use it: control calls of Backend.
  [[nodiscard]] Backend& backend() noexcept { return *backend_; }
  [[nodiscard]] std::uint32_t busy_poll_us() const noexcept { return busy_poll_us_; }
  /// Any thread: the interface was deleted under us.
  [[nodiscard]] bool backend_gone() const noexcept { return from_guest_.backend_gone() || to_guest_.backend_gone(); }
  /// Any thread: a ring was found impossible and stands still until the guest resets it.
  [[nodiscard]] bool from_guest_broken() const noexcept { return from_guest_broken_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool to_guest_broken() const noexcept { return to_guest_broken_.load(std::memory_order_relaxed); }

 private:
  static void watch(SplitQueue* queue, std::atomic<bool>& broken, QueueCounters& counters) noexcept;

  std::unique_ptr<Backend> backend_;
  QueuePairMetrics& metrics_;
  FromGuest from_guest_;
  ToGuest to_guest_;
  const std::uint32_t busy_poll_us_;
  std::atomic<bool> from_guest_broken_{false};
  std::atomic<bool> to_guest_broken_{false};
};

}  // namespace vxdp
