// SPDX-License-Identifier: Apache-2.0
// A whole run of the built-in guest: connect, set up, traffic on every queue pair, stop, report.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "guest/checker.hpp"
#include "guest/driver.hpp"
#include "guest/frame.hpp"
#include "vxdp/base/result.hpp"

namespace vxdp {

struct GuestOptions {
  std::string socket;
  bool listen = false;                    // be the server, for a back end in client mode
  std::chrono::milliseconds limit{5000};  // for each answer, and for progress of the traffic

  bool send = false;
  std::optional<std::uint64_t> send_frames;  // over all queues, spread evenly
  double seconds = 0;                        // 0 = no limit
  double rate = 0;                           // frames a second over all queues; 0 = no limit
  unsigned bad_every = 0;                    // one of so many frames gets a header that must be refused; 0 = none
  bool receive = false;
  bool verify = false;
  std::uint64_t expect = 0;  // good frames to receive; 0 = no condition

  FrameSpec frame;
  unsigned queues = 1;  // queue pairs, 1 .. 64
  std::uint16_t ring_size = 256;
  HeaderLayout layout = HeaderLayout::kInline;
  std::optional<bool> mergeable;  // empty: as offered
  std::optional<bool> event_idx;  // empty: as offered
  bool indirect = false;
  bool receive_offloads = false;   // acknowledge GUEST_CSUM, GUEST_TSO4 and GUEST_TSO6
  std::uint32_t buffer_bytes = 0;  // of a receive buffer; 0 = chosen
  unsigned regions = 1;

  bool busy_poll = false;
  std::vector<int> cpus;  // queue pair i is pinned to cpus[i modulo size]; empty: not pinned
};

struct GuestReport {
  std::uint64_t features = 0;
  std::uint64_t sent = 0, acknowledged = 0, sent_bytes = 0;
  std::uint64_t received = 0, received_bytes = 0;
  std::uint64_t kicks = 0, wakeups = 0;
  double send_seconds = 0, receive_seconds = 0;
  CheckCounts checked;  // zeros but for --verify
  std::string fault;    // one sentence; empty: all went well
};

/// Does what `options` say and returns what came of it. SIGINT and SIGTERM end the traffic early, not the report;
/// a second one does not wait for frames in flight.
/// Errors (nothing was sent): impossible options, no back end, a back end that refuses or lacks a feature.
/// Thread: one that may block; no other call at the same time in the process, because of the signals.
Result<GuestReport> run_guest(const GuestOptions& options);

}  // namespace vxdp
