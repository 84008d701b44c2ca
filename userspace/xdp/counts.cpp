// SPDX-License-Identifier: Apache-2.0
#include "counts.hpp"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>

#include <algorithm>
#include <utility>

#include "vxdp/abi/program_stats.h"
#include "vxdp/base/log.hpp"

namespace vxdp {
namespace {

constexpr std::size_t kActions = XDP_REDIRECT + 1;
/// Far longer than one run of a program can take: the kernel runs XDP with bottom halves off.
constexpr std::chrono::milliseconds kLinger{1'500};

/// Entry `index` of a per-CPU map, summed. Zeroes if the kernel refuses.
vxdp_stats_entry sum_over_cpus(int map, std::uint32_t index, std::vector<vxdp_stats_entry>& per_cpu) {
  vxdp_stats_entry sum{};
  if (bpf_map_lookup_elem(map, &index, per_cpu.data()) == 0) {
    for (const vxdp_stats_entry& one : per_cpu) {
      sum.frames += one.frames;
      sum.bytes += one.bytes;
    }
  }
  return sum;
}

}  // namespace

void ProgramCounts::started(const std::string& name, const std::string& tag, bool native, Fd map,
                            std::uint32_t entries) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  stop_all(now);
  fold_finished(now);
  auto program = std::find_if(programs_.begin(), programs_.end(),
                              [&name](const Program& one) { return one.retained.program == name; });
  if (program == programs_.end()) {
    program = programs_.emplace(programs_.end());
    program->retained.program = name;
  }
  ProgramStats& stats = program->retained;
  stats.tag = tag;
  stats.attached = true;
  stats.native = native;
  if (map) {
    stats.action_frames.resize(kActions);
    stats.action_bytes.resize(kActions);
    stats.drop_frames.resize(VXDP_DROP_REASON_COUNT);
    program->sources.push_back({std::move(map), entries, true, {}});
  }
}

void ProgramCounts::stopped() {
  const std::lock_guard lock(mutex_);
  stop_all(Clock::now());
}

std::vector<ProgramStats> ProgramCounts::read() const {
  const std::lock_guard lock(mutex_);
  fold_finished(Clock::now());
  std::vector<ProgramStats> all;
  for (const Program& program : programs_) {
    ProgramStats& stats = all.emplace_back(program.retained);
    for (const Source& source : program.sources) {
      add_counts(source, stats);
    }
  }
  return all;
}

void ProgramCounts::stop_all(Clock::time_point now) {
  for (Program& program : programs_) {
    program.retained.attached = false;
    for (Source& source : program.sources) {
      if (source.running) {
        source.running = false;
        source.stopped_at = now;
      }
    }
  }
}

void ProgramCounts::fold_finished(Clock::time_point now) const {
  for (Program& program : programs_) {
    std::erase_if(program.sources, [&program, now](const Source& source) {
      const bool finished = !source.running && now - source.stopped_at >= kLinger;
      if (finished) {
        add_counts(source, program.retained);
      }
      return finished;
    });
  }
}

void ProgramCounts::add_counts(const Source& source, ProgramStats& stats) {
  static const int cpus = libbpf_num_possible_cpus();
  if (cpus <= 0) {
    log_warn("XDP programs are not counted: the number of CPUs cannot be read");
    return;
  }
  std::vector<vxdp_stats_entry> per_cpu(static_cast<std::size_t>(cpus));
  for (std::size_t action = 0; action < kActions; ++action) {
    const vxdp_stats_entry sum = sum_over_cpus(source.map.get(), static_cast<std::uint32_t>(action), per_cpu);
    stats.action_frames[action] += sum.frames;
    stats.action_bytes[action] += sum.bytes;
  }
  for (std::size_t reason = 0; reason < VXDP_DROP_REASON_COUNT; ++reason) {
    const auto index = static_cast<std::uint32_t>(VXDP_STATS_ACTIONS + reason);
    if (index < source.entries) {
      stats.drop_frames[reason] += sum_over_cpus(source.map.get(), index, per_cpu).frames;
    }
  }
}

}  // namespace vxdp
