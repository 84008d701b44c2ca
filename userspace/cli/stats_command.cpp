// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "report.hpp"
#include "stats.hpp"
#include "table.hpp"
#include "vxdp/control/client.hpp"

namespace vxdp {
namespace {

struct StatsOptions {
  std::string control;
  bool watch = false;
  bool json = false;
  double interval = 1;  // seconds
};

std::uint64_t count(const Json& object, const char* name) {
  return object.value(name, std::uint64_t{0});
}

/// Bytes counted for the same queue in an earlier answer; null if it was not there.
const Json* find_queue(const Json& stats, const std::string& port, const Json& queue) {
  if (!stats.contains("ports")) {
    return nullptr;
  }
  for (const Json& other_port : stats["ports"]) {
    for (const Json& other : other_port["queue_stats"]) {
      if (other_port["name"] == port && other["queue"] == queue["queue"] && other["direction"] == queue["direction"]) {
        return &other;
      }
    }
  }
  return nullptr;
}

std::string megabits_per_second(const Json& now, const Json& before, const std::string& port, const Json& queue) {
  const Json* earlier = find_queue(before, port, queue);
  if (earlier == nullptr || count(*earlier, "bytes") > count(queue, "bytes")) {  // new, or added again
    return "";
  }
  const double seconds = static_cast<double>(count(now, "monotonic_ns") - count(before, "monotonic_ns")) / 1e9;
  const auto bytes = static_cast<double>(count(queue, "bytes") - count(*earlier, "bytes"));
  return seconds > 0 ? fmt::format("{:.1f}", bytes * 8 / 1e6 / seconds) : "";
}

/// Sleeps; false if the user (or a supervisor) asked to end. Those signals are blocked, so none is lost.
bool pause_for(double seconds) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  const auto whole = static_cast<time_t>(seconds);
  const timespec time{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
  return sigtimedwait(&ends, nullptr, &time) < 0;
}

int run_stats(const StatsOptions& options) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  Json before;
  do {
    auto now = parse_answer(Client(options.control).get("/v1/stats"));
    if (!now) {
      return report_error(now.error());
    }
    if (options.json) {
      fmt::print("{}\n", options.watch ? dump(*now) : now->dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
      fmt::print("{}{}",
                 options.watch && terminal ? "\033[H\033[2J"
                 : before.is_null()        ? ""
                                           : "\n",
                 stats_text(*now, before));
    }
    std::fflush(stdout);
    before = std::move(*now);
  } while (options.watch && pause_for(options.interval));
  return 0;
}

}  // namespace

std::string stats_text(const Json& now, const Json& before) {
  Table queues({"PORT", "STATE", ">QUEUE", "DIRECTION", ">FRAMES/S", ">MBIT/S", ">FRAMES", ">AVG-BATCH", ">DROPS"});
  Table programs({"PORT", "PROGRAM", "MODE", ">ABORTED", ">DROP", ">PASS", ">TX", ">REDIRECT"});
  for (const Json& port : now["ports"]) {
    const std::string name = port.value("name", "");
    for (const Json& queue : port["queue_stats"]) {
      const std::uint64_t batches = count(queue, "batches");
      const auto average = static_cast<double>(count(queue, "frames")) / static_cast<double>(batches);
      queues.add({name, queue.value("broken", false) ? "broken" : port.value("state", ""),
                  std::to_string(count(queue, "queue")), queue.value("direction", ""),
                  grouped(static_cast<std::uint64_t>(queue.value("frames_per_second", 0.0))),
                  megabits_per_second(now, before, name, queue), grouped(count(queue, "frames")),
                  batches == 0 ? "" : fmt::format("{:.1f}", average), grouped(count(queue["drops"], "total"))});
    }
    for (const Json& program : port["program_stats"]) {
      const auto frames = [&](const char* action) {
        const Json& actions = program["actions"];
        return actions.contains(action) ? grouped(count(actions[action], "frames")) : std::string();
      };
      programs.add({name, program.value("program", ""),
                    !program.value("attached", false) ? "detached"
                    : program.value("native", false)  ? "native"
                                                      : "generic",
                    frames("aborted"), frames("drop"), frames("pass"), frames("tx"), frames("redirect")});
    }
  }
  if (queues.empty()) {
    return now["ports"].empty() ? "no ports\n" : "no queues\n";
  }
  return programs.empty() ? queues.text() : queues.text() + "\n" + programs.text();
}

void add_stats_command(CLI::App& app, int& exit_code) {
  CLI::App* stats = app.add_subcommand("stats", "Show rates and counts of every queue");
  auto options = std::make_shared<StatsOptions>();
  stats->add_flag("--watch", options->watch, "Show again and again until Ctrl-C");
  stats->add_option("--interval", options->interval, "Seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  stats->add_flag("--json", options->json, "Print JSON, with --watch one line each time");
  add_control_option(*stats, options->control);
  stats->callback([options, &exit_code] { exit_code = run_stats(*options); });
}

}  // namespace vxdp
