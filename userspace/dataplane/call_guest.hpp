// SPDX-License-Identifier: Apache-2.0
// The end of a batch in either direction: what was completed becomes visible, and the guest is called if it wants.
#pragma once

#include <cstdint>

#include "vxdp/metrics/counters.hpp"
#include "vxdp/virtqueue/split_queue.hpp"

namespace vxdp {

/// Publishes the completed entries of `queue` and counts the call made or spared; returns how many entries. Worker.
inline std::uint16_t publish_and_call(SplitQueue& queue, QueueCounters& counters) noexcept {
  const std::uint16_t entries = queue.publish();
  if (entries != 0) {
    if (queue.wants_call()) {
      counters.calls.add(queue.call() ? 1 : 0);
    } else {
      counters.calls_suppressed.add();
    }
  }
  return entries;
}

}  // namespace vxdp
