// SPDX-License-Identifier: Apache-2.0
// One queue pair of the built-in guest at work: a thread that sends stamped frames, takes used buffers back and
// receives.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "guest/checker.hpp"
#include "guest/driver.hpp"
#include "guest/frame.hpp"

namespace vxdp {

/// Frames published together: what a back end takes as one batch.
constexpr unsigned kSendBurstFrames = 64;

struct TrafficPlan {
  std::uint64_t send_frames = 0;  // 0: sends nothing; unlimited: see kUnlimited
  double send_rate = 0;           // frames a second; 0 = as fast as possible
  double seconds = 0;             // when to stop sending and receiving; 0 = never
  unsigned bad_every = 0;         // this one of so many frames has a header the back end must refuse; 0 = none
  bool receive = false;
  bool verify = false;
  bool receive_checksum_unfinished = false;  // GUEST_CSUM was agreed on
  bool busy_poll = false;                    // never sleep
  int cpu = -1;                              // pinned to it; -1: not pinned
  std::chrono::milliseconds limit{5000};     // longest wait for the back end to make progress
  std::chrono::milliseconds quiet{300};      // after sending: receiving ends when nothing came for so long,
                                             // or after `limit`
  std::uint64_t expect = 0;                  // good frames over all queues that end receiving; 0 = not a condition

  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
};

struct TrafficCounts {
  std::uint64_t sent = 0;
  std::uint64_t acknowledged = 0;  // of sent: used by the back end
  std::uint64_t received = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t kicks = 0;
  std::uint64_t wakeups = 0;   // sleeps that a call ended
  double send_seconds = 0;     // first add to last frame used
  double receive_seconds = 0;  // first to last frame received
  CheckCounts checked;         // without good, lost and duplicated, which only the log knows
  const char* broken = nullptr;
};

/// What the threads of all queue pairs share.
struct TrafficShared {
  std::atomic<bool> stop{false};     // send nothing more, receive only what still comes back
  std::atomic<bool> abandon{false};  // do not even wait for what is in flight
  std::atomic<unsigned> running{0};
  SequenceLog log;
};

/// All of it but the constructor runs on the queue pair's own thread.
class QueuePairTraffic {
 public:
  /// The queues' descriptors are eventfds, non-blocking, borrowed. All references must outlive the object.
  struct Ring {
    DriverQueue& queue;
    int kick;
    int call;
  };
  QueuePairTraffic(std::uint16_t index, Ring from_guest, Ring to_guest, const FrameTemplate& frames,
                   const TrafficPlan& plan, TrafficShared& shared);

  /// Until the plan is fulfilled, the back end makes no progress, or `shared.stop`.
  void run();
  /// After run().
  [[nodiscard]] const TrafficCounts& counts() const noexcept { return counts_; }

 private:
  using Clock = std::chrono::steady_clock;

  unsigned send(Clock::time_point now);
  unsigned reclaim();
  unsigned receive(Clock::time_point now);
  void stamp(DriverQueue::Slot slot, std::uint64_t sequence) noexcept;
  void kick_if_needed(Ring& ring) noexcept;
  /// How many more frames the rate allows now, at most one burst.
  [[nodiscard]] unsigned allowed(Clock::time_point now) noexcept;
  [[nodiscard]] bool done(Clock::time_point now, bool worked) const noexcept;
  void sleep(Clock::time_point now);

  const std::uint16_t index_;
  Ring from_guest_;
  Ring to_guest_;
  const FrameTemplate& frames_;
  const TrafficPlan& plan_;
  TrafficShared& shared_;
  FrameChecker checker_;
  TrafficCounts counts_;
  std::vector<std::byte*> frame_of_;  // by slot; empty if frames are in pieces

  bool sending_ = false;
  Clock::time_point start_;
  Clock::time_point rate_start_;  // moved when the back end was too slow for the rate
  std::uint64_t rate_sent_ = 0;   // since rate_start_
  Clock::time_point last_used_;   // last progress of from_guest
  Clock::time_point last_received_;
  Clock::time_point sending_ended_;
  Clock::time_point first_received_;
};

}  // namespace vxdp
