// SPDX-License-Identifier: Apache-2.0
// What people see: tables, rates, and that probing works whoever asks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <net/if.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/probe.hpp"
#include "cli/report.hpp"
#include "cli/stats.hpp"
#include "cli/table.hpp"

namespace vxdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Table, ColumnsAreAlignedAndEmptyCellsAreDashes) {
  Table table({"NAME", ">COUNT", "WHY"});
  EXPECT_TRUE(table.empty());
  table.add({"vm0", "7", ""});
  table.add({"a-long-name", "1,000", "x"});
  EXPECT_EQ(table.text(),
            "NAME         COUNT  WHY\n"
            "vm0              7  -\n"
            "a-long-name  1,000  x\n");
}

TEST(Grouped, PutsCommas) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(18'446'744'073'709'551'615u), "18,446,744,073,709,551,615");
}

Json answer(long long monotonic_ns, std::uint64_t bytes) {
  return Json::parse(R"({"monotonic_ns":)" + std::to_string(monotonic_ns) +
                     R"(,"ports":[{"name":"vm0","state":"running",
    "program_stats":[{"program":"drop","attached":true,"native":true,"actions":{"drop":{"frames":1234,"bytes":1}}}],
    "queue_stats":[{"queue":0,"direction":"from_guest","frames_per_second":1500.7,"frames":6400,"batches":100,
                    "bytes":)" +
                     std::to_string(bytes) + R"(,"drops":{"total":3,"runt":3}}]}]})");
}

TEST(Stats, RatesComeFromTwoAnswers) {
  const std::string text = stats_text(answer(3'000'000'000, 2'000'000), answer(1'000'000'000, 1'000'000));
  EXPECT_THAT(text, HasSubstr("PORT  STATE    QUEUE  DIRECTION   FRAMES/S  MBIT/S  FRAMES  AVG-BATCH  DROPS\n"
                              "vm0   running      0  from_guest     1,500     4.0   6,400       64.0      3\n"));
  EXPECT_THAT(text, HasSubstr("vm0   drop     native        -  1,234     -   -         -\n"));
}

TEST(Stats, NoRateWithoutAnEarlierAnswerOrAfterARestart) {
  EXPECT_THAT(stats_text(answer(1, 5), nullptr), HasSubstr("1,500       -   6,400"));
  EXPECT_THAT(stats_text(answer(2'000'000'000, 5), answer(1, 6)), HasSubstr("1,500       -   6,400"));
  EXPECT_EQ(stats_text(Json::parse(R"({"ports":[]})"), nullptr), "no ports\n");
}

TEST(Program, OnlyPathsAreMadeAbsolute) {
  for (const char* name : {"", "none", "pass", "drop", "redirect", "/x/y.o"}) {
    EXPECT_EQ(absolute_program(name), name);
  }
  EXPECT_THAT(absolute_program("./y.o"),
              AllOf(::testing::StartsWith("/"), ::testing::EndsWith("/y.o"), Not(HasSubstr("./"))));
}

TEST(Probe, EveryFeatureHasAFindingAndALossAndNothingStaysBehind) {
  std::set<std::string> names;
  for (const Feature& feature : probe()) {
    EXPECT_TRUE(names.insert(feature.name).second) << feature.name;
    EXPECT_NE(feature.detail, "") << feature.name;
    EXPECT_NE(feature.without, "") << feature.name;
  }
  for (const char* name : {"tap", "tap-uso", "bpf", "xdp-native", "freplace", "btf", "io-uring", "io-uring-fixed",
                           "vhost-net", "huge-pages", "CAP_NET_ADMIN"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_EQ(::if_nametoindex("vxdp-probe0"), 0u);
}

}  // namespace
}  // namespace vxdp
