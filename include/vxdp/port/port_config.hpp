// SPDX-License-Identifier: Apache-2.0
// What a user asks of a port, and what it is doing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vxdp/metrics/counters.hpp"
#include "vxdp/xdp/program_manager.hpp"

namespace vxdp {

enum class SocketMode { kServer, kClient };
enum class SubmitChoice { kAuto, kUring, kWritev };

struct PortConfig {
  std::string name;    // 1 .. 32 of [A-Za-z0-9._-]
  std::string socket;  // path, at most 107 bytes
  SocketMode mode = SocketMode::kServer;
  std::string tap;                   // interface name, 1 .. 15; default: the port's name
  std::vector<int> tap_fds;          // open TAP descriptors instead, one a queue pair
  unsigned queues = 1;               // queue pairs, 1 .. 16
  std::string xdp;                   // program, see ProgramChoice; empty or "none" = none
  std::string redirect_to;           // port or interface that "redirect" sends to
  std::optional<std::uint16_t> mtu;  // 68 .. 65535
  std::string mac;                   // of the guest, "52:54:00:..", for reference and RARP; may be empty
  unsigned busy_poll_us = 50;        // how long a worker polls after the last work
  unsigned batch = 64;               // frames, 1 .. 64
  SubmitChoice submit = SubmitChoice::kAuto;
};

struct QueueStatus {
  unsigned queue = 0;     // queue pair
  std::string direction;  // "from_guest" or "to_guest"
  bool running = false;
  bool broken = false;
  unsigned ring_size = 0;
  unsigned worker = 0;
  double frames_per_second = 0;
  std::uint64_t frames = 0, bytes = 0, batches = 0, kicks = 0, calls = 0, calls_suppressed = 0, syscalls = 0,
                ring_full = 0, native = 0, generic = 0;
  std::vector<std::uint64_t> drops;  // by vxdp_drop_reason
};

struct PortStatus {
  PortConfig config;
  std::string state;  // "waiting", "connected", "running"
  std::string tap;    // interface name
  int ifindex = 0;
  bool link_up = false;
  std::uint64_t features = 0;  // acknowledged by the guest
  std::string submit;          // method in use
  std::string submit_reason;   // why that one
  std::optional<ProgramInfo> program;
  std::vector<ProgramStats> program_stats;
  std::vector<QueueStatus> queues;
};

}  // namespace vxdp
