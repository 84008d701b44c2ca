// SPDX-License-Identifier: Apache-2.0
// The data path in one page:
//
//   from_guest   avail ring -> chains -> XDP buffers, judged -> backend.sendmsg(64 at a time) -> used ring -> call
//   to_guest     avail ring -> buffers -> backend.recvmmsg(straight into them)                -> used ring -> call
//
// from_guest.cpp and to_guest.cpp hold the two halves; worker.cpp turns the crank.
#include "vxdp/dataplane/queue_pair.hpp"

namespace vxdp {

QueuePair::QueuePair(std::unique_ptr<Backend> backend, QueuePairMetrics& metrics, const XdpPath& path,
                     unsigned batch_limit, std::uint32_t busy_poll_us)
    : backend_(std::move(backend)),
      metrics_(metrics),
      from_guest_(*backend_, metrics.from_guest, path, batch_limit),
      to_guest_(*backend_, metrics.to_guest, batch_limit),
      busy_poll_us_(busy_poll_us) {}

std::size_t QueuePair::poll() noexcept {
  watch(from_guest_.queue(), from_guest_broken_, metrics_.from_guest);
  watch(to_guest_.queue(), to_guest_broken_, metrics_.to_guest);
  return from_guest_.step() + to_guest_.step();
}

/// Memory that shrank under us reads as zeros: whatever the ring says then, it has stopped being one.
void QueuePair::watch(SplitQueue* queue, std::atomic<bool>& broken, QueueCounters& counters) noexcept {
  if (queue == nullptr) {
    broken.store(false, std::memory_order_relaxed);
    return;
  }
  if (queue->memory().poisoned() && !queue->broken()) [[unlikely]] {
    queue->set_broken();
  }
  if (queue->broken() && !broken.load(std::memory_order_relaxed)) [[unlikely]] {
    broken.store(true, std::memory_order_relaxed);
    counters.ring_broken.add();
  }
}

bool QueuePair::arm() noexcept {
  if (auto* queue = from_guest_.queue()) {
    queue->enable_kicks();
  }
  if (auto* queue = to_guest_.queue()) {
    queue->enable_kicks();
  }
  return from_guest_.has_work() || to_guest_.has_work();
}

void QueuePair::disarm() noexcept {
  if (auto* queue = from_guest_.queue()) {
    queue->disable_kicks();
  }
  if (auto* queue = to_guest_.queue()) {
    queue->disable_kicks();
  }
}

bool QueuePair::needs_looking() noexcept {
  const auto has_no_kick = [](const SplitQueue* queue) { return queue != nullptr && queue->kick_fd() < 0; };
  return has_no_kick(from_guest_.queue()) || has_no_kick(to_guest_.queue());
}

std::unique_ptr<Backend> QueuePair::replace_backend(std::unique_ptr<Backend> backend) noexcept {
  backend_.swap(backend);
  from_guest_.use_backend(*backend_);
  to_guest_.use_backend(*backend_);
  to_guest_.set_readable();
  return backend;
}

}  // namespace vxdp
