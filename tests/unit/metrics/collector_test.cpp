// SPDX-License-Identifier: Apache-2.0
// The text of a scrape: exact values, every series from the start, and what promtool says of it.
#include "vxdp/metrics/collector.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <set>
#include <sstream>

namespace vxdp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class FakePrograms : public ProgramStatsSource {
 public:
  explicit FakePrograms(std::vector<ProgramStats> stats) : stats_(std::move(stats)) {}
  [[nodiscard]] std::vector<ProgramStats> program_stats() const override { return stats_; }

 private:
  std::vector<ProgramStats> stats_;
};

ProgramStats program(const char* name, const char* tag, bool attached, std::uint64_t dropped) {
  ProgramStats stats{name,
                     tag,
                     attached,
                     true,
                     std::vector<std::uint64_t>(8),
                     std::vector<std::uint64_t>(8),
                     std::vector<std::uint64_t>(64)};
  stats.action_frames[1] = dropped;
  stats.action_bytes[1] = dropped * 60;
  stats.drop_frames[VXDP_DROP_POLICY] = dropped;
  return stats;
}

std::shared_ptr<PortMetrics> add_port(MetricsRegistry& registry, const std::string& name, std::size_t pairs = 1,
                                      std::vector<ProgramStats> programs = {}) {
  auto port = std::make_shared<PortMetrics>(name, pairs);
  port->programs = std::make_shared<FakePrograms>(std::move(programs));
  registry.add_port(port);
  return port;
}

/// The whole line of `series`, or nothing: "name{labels} value".
std::string line_of(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) {
      return line;
    }
  }
  return "no " + series;
}

TEST(MetricsText, EveryQueueCounterHasItsOwnSeries) {
  MetricsRegistry registry;
  auto& queue = add_port(registry, "vm0", 2)->queues[1].from_guest;
  queue.frames.add(101);
  queue.bytes.add(102);
  queue.batches.add(103);
  queue.kicks.add(104);
  queue.calls.add(105);
  queue.calls_suppressed.add(106);
  queue.syscalls.add(107);
  queue.ring_full.add(108);
  queue.native.add(109);
  queue.generic.add(110);
  queue.ring_broken.add(111);
  const std::string text = metrics_text(registry, "1");

  const std::string labels = R"({port="vm0",direction="from_guest",queue="1"})";
  int value = 101;
  for (const char* name : {"frames", "bytes", "batches", "kicks", "calls", "calls_suppressed", "syscalls", "ring_full",
                           "native_frames", "generic_frames", "ring_broken"}) {
    const std::string series = "vxdp_queue_" + std::string(name) + "_total" + labels;
    EXPECT_EQ(line_of(text, series), series + " " + std::to_string(value++));
  }
  EXPECT_EQ(line_of(text, R"(vxdp_queue_frames_total{port="vm0",direction="to_guest",queue="1"})"),
            R"(vxdp_queue_frames_total{port="vm0",direction="to_guest",queue="1"} 0)");
}

TEST(MetricsText, LargeCountsAreNotRounded) {
  MetricsRegistry registry;
  add_port(registry, "vm0")->queues[0].to_guest.frames.add(1'234'567'890'123);
  EXPECT_THAT(metrics_text(registry, "1"),
              HasSubstr("vxdp_queue_frames_total{port=\"vm0\",direction=\"to_guest\",queue=\"0\"} 1234567890123\n"));
}

TEST(MetricsText, HistogramIsCumulativeAndSumsFrames) {
  MetricsRegistry registry;
  auto& queue = add_port(registry, "vm0")->queues[0].from_guest;
  for (const std::size_t frames : {1, 2, 3, 64, 64}) {
    queue.batch_size.record(frames);
    queue.frames.add(frames);
  }
  const std::string text = metrics_text(registry, "1");
  const std::string labels = R"(port="vm0",direction="from_guest",queue="0")";
  const std::array<std::pair<const char*, int>, 8> expected{
      {{"1", 1}, {"2", 2}, {"4", 3}, {"8", 3}, {"16", 3}, {"32", 3}, {"64", 5}, {"+Inf", 5}}};
  for (const auto& [bound, count] : expected) {
    const std::string series = "vxdp_queue_batch_size_bucket{" + labels + ",le=\"" + bound + "\"}";
    EXPECT_EQ(line_of(text, series), series + " " + std::to_string(count));
  }
  EXPECT_THAT(text, HasSubstr("vxdp_queue_batch_size_count{" + labels + "} 5\n"));
  EXPECT_THAT(text, HasSubstr("vxdp_queue_batch_size_sum{" + labels + "} 134\n"));
}

TEST(MetricsText, DropSeriesExistFromTheStartForEveryReasonButNone) {
  MetricsRegistry registry;
  add_port(registry, "vm0")->queues[0].to_guest.drops[VXDP_DROP_NO_BUFFER].add(7);
  const std::string text = metrics_text(registry, "1");
  std::size_t series = 0;
  for (std::size_t at = 0; (at = text.find("\nvxdp_queue_drops_total{", at)) != std::string::npos; ++at) {
    ++series;
  }
  EXPECT_EQ(series, 2u * (VXDP_DROP_REASON_COUNT - 1));
  EXPECT_THAT(text, Not(HasSubstr("reason=\"none\"")));
  EXPECT_THAT(text, HasSubstr(R"(direction="to_guest",queue="0",reason="no_buffer"} 7)"));
  EXPECT_THAT(text, HasSubstr(R"(direction="from_guest",queue="0",reason="bad_chain"} 0)"));
}

TEST(MetricsText, ProgramsOfOneNameAreOneSeriesAndOnlyTheAttachedIsNamed) {
  MetricsRegistry registry;
  add_port(registry, "vm0", 1, {program("drop", "aa", false, 5), program("drop", "bb", true, 6)});
  const std::string text = metrics_text(registry, "1");
  EXPECT_THAT(text, HasSubstr(R"(vxdp_program_frames_total{port="vm0",program="drop",action="drop"} 11)"));
  EXPECT_THAT(text, HasSubstr(R"(vxdp_program_bytes_total{port="vm0",program="drop",action="drop"} 660)"));
  EXPECT_THAT(text, HasSubstr(R"(vxdp_program_drops_total{port="vm0",program="drop",reason="policy"} 11)"));
  EXPECT_THAT(text, HasSubstr(R"(vxdp_program_attached{port="vm0",program="drop",tag="bb",mode="native"} 1)"));
  EXPECT_THAT(text, Not(HasSubstr(R"(tag="aa")")));
}

TEST(MetricsText, SessionWorkerAndSubmitAreThere) {
  MetricsRegistry registry;
  auto port = add_port(registry, "vm0");
  port->session.state = static_cast<int>(SessionState::kConnected);
  port->session.bad_messages.add(3);
  port->submit = "uring-fixed";
  port->queues[0].from_guest_fps = 1500000.5;
  auto worker = std::make_shared<WorkerCounters>();
  worker->busy_ns.add(2'500'000'000);
  worker->sleeps.add(9);
  registry.add_worker(worker);
  const std::string text = metrics_text(registry, "1.2.3");
  EXPECT_THAT(text, HasSubstr("vxdp_session_state{port=\"vm0\",state=\"waiting\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("vxdp_session_state{port=\"vm0\",state=\"connected\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vxdp_session_bad_messages_total{port=\"vm0\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("vxdp_port_submit_info{port=\"vm0\",method=\"uring-fixed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("direction=\"from_guest\",queue=\"0\"} 1500000.5\n"));
  EXPECT_THAT(text, HasSubstr("vxdp_worker_busy_seconds_total{worker=\"0\"} 2.5\n"));
  EXPECT_THAT(text, HasSubstr("vxdp_worker_sleeps_total{worker=\"0\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("vxdp_build_info{version=\"1.2.3\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("\nprocess_resident_memory_bytes 0\n")));
  EXPECT_THAT(text, HasSubstr("\nprocess_open_fds "));
  const std::string start = line_of(text, "process_start_time_seconds");
  EXPECT_NEAR(std::strtod(start.c_str() + start.rfind(' '), nullptr), static_cast<double>(std::time(nullptr)), 60);
}

TEST(MetricsText, LabelValuesAreEscaped) {
  MetricsRegistry registry;
  add_port(registry, "a\"b\\c\nd");
  EXPECT_THAT(metrics_text(registry, "1"), HasSubstr(R"(vxdp_session_connects_total{port="a\"b\\c\nd"} 0)"));
}

TEST(MetricsText, NoSeriesAppearsTwice) {
  MetricsRegistry registry;
  add_port(registry, "vm0", 4, {program("drop", "aa", false, 5), program("drop", "bb", true, 6)});
  add_port(registry, "vm1", 2, {program("pass", "cc", true, 1)});
  std::set<std::string> seen;
  std::istringstream lines(metrics_text(registry, "1"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('#')) {
      EXPECT_TRUE(seen.insert(line.substr(0, line.rfind(' '))).second) << line;
    }
  }
  EXPECT_GT(seen.size(), 500u);
}

TEST(MetricsText, PromtoolFindsNothingToSay) {
  if (std::system("command -v promtool >/dev/null") != 0) {
    GTEST_SKIP() << "promtool is not installed (Debian package prometheus)";
  }
  MetricsRegistry registry;
  add_port(registry, "vm \"0\"", 2, {program("drop", "aa", true, 5)})->queues[0].from_guest.batch_size.record(3);
  registry.add_worker(std::make_shared<WorkerCounters>());
  FILE* promtool = ::popen("promtool check metrics", "w");
  ASSERT_NE(promtool, nullptr);
  const std::string text = metrics_text(registry, "1");
  EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), promtool), text.size());
  EXPECT_EQ(::pclose(promtool), 0);  // 3 = it found something, printed above
}

TEST(Labels, UnknownNumbersHaveAName) {
  EXPECT_EQ(drop_reason_label(VXDP_DROP_RUNT), "runt");
  EXPECT_EQ(drop_reason_label(VXDP_DROP_REASON_COUNT), "unknown");
  EXPECT_EQ(xdp_action_label(4), "redirect");
  EXPECT_EQ(xdp_action_label(5), "unknown");
}

}  // namespace
}  // namespace vxdp
