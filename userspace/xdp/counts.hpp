// SPDX-License-Identifier: Apache-2.0
// What the programs of one interface have counted since the start, across replacements.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/metrics/registry.hpp"

namespace vxdp {

/// All methods: any thread. Counts of a name never fall: attaching a program of the same name goes on from them.
class ProgramCounts {
 public:
  /// `name` now runs, whatever ran before does not. `map` is its vxdp_stats with `entries` entries, or empty.
  void started(const std::string& name, const std::string& tag, bool native, Fd map, std::uint32_t entries);
  /// Nothing runs any more.
  void stopped();
  /// One row per name, in the order of first attachment.
  [[nodiscard]] std::vector<ProgramStats> read() const;

 private:
  using Clock = std::chrono::steady_clock;
  /// One loaded instance's map. It is read for a while after the instance was replaced, because runs that
  /// began before may still count; then what it holds goes into the program's retained counts.
  struct Source {
    Fd map;
    std::uint32_t entries = 0;
    bool running = true;
    Clock::time_point stopped_at;
  };
  struct Program {
    ProgramStats retained;
    std::vector<Source> sources;
  };
  void stop_all(Clock::time_point now);
  void fold_finished(Clock::time_point now) const;
  static void add_counts(const Source& source, ProgramStats& stats);

  mutable std::mutex mutex_;
  mutable std::vector<Program> programs_;  // guarded by mutex_
};

}  // namespace vxdp
