// SPDX-License-Identifier: Apache-2.0
#include "vxdp/control/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "fake_port_manager.hpp"
#include "vxdp/control/port_fields.hpp"

namespace vxdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(YamlConfig, EveryFieldIsRead) {
  DaemonConfig config;
  const auto applied = apply_yaml(config, R"(
metrics: "[::1]:9000"
control: /tmp/c.sock
workers: 2
cpus: [1, 3]
log-level: debug
log-format: json
ports:
  - name: vm0
    socket: /run/vm0.sock
    mac: 52:54:00:00:00:01
    queues: 4
  - {name: vm1, socket: /run/vm1.sock, tap-fd: [5, 6], xdp: drop}
)",
                                  "file");
  ASSERT_TRUE(applied) << applied.error().what;
  EXPECT_EQ(config.metrics, "[::1]:9000");
  EXPECT_EQ(config.control, "/tmp/c.sock");
  EXPECT_EQ(config.workers, 2u);
  EXPECT_EQ(config.cpus, (std::vector{1u, 3u}));
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.log_format, "json");
  ASSERT_EQ(config.ports.size(), 2u);
  EXPECT_EQ(config.ports[0].mac, "52:54:00:00:00:01");
  EXPECT_EQ(config.ports[0].queues, 4u);
  EXPECT_EQ(config.ports[1].tap_fds, (std::vector{5, 6}));
}

TEST(YamlConfig, EmptyFilesAndEmptyListsChangeNothing) {
  for (const char* text : {"", "# only a comment\n", "ports:\n", "ports: []\n", "---\n"}) {
    DaemonConfig config;
    const auto applied = apply_yaml(config, text, "file");
    EXPECT_TRUE(applied) << text;
    EXPECT_TRUE(config.ports.empty());
    EXPECT_EQ(config.control, kDefaultControlPath);
  }
}

struct BadCase {
  const char* text;
  const char* line;
  const char* names;
};
class BadYaml : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadYaml, IsRefusedWithItsLineAndTheFieldsName) {
  DaemonConfig config;
  const auto applied = apply_yaml(config, GetParam().text, "conf.yaml");
  ASSERT_FALSE(applied) << GetParam().text;
  EXPECT_THAT(applied.error().what, AllOf(StartsWith(std::string("conf.yaml line ") + GetParam().line + ": "),
                                          HasSubstr(GetParam().names), Not(HasSubstr("\n"))));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadYaml,
    ::testing::Values(
        BadCase{"metrics: none\ncolour: red\n", "2", "\"colour\""}, BadCase{"workers: 0\n", "1", "workers"},
        BadCase{"\n\nworkers: 65\n", "3", "1 to 64"}, BadCase{"workers: two\n", "1", "workers"},
        BadCase{"workers:\n", "1", "workers must have one value"}, BadCase{"workers: {a: 1}\n", "1", "workers"},
        BadCase{"cpus: [1, x]\n", "1", "cpus"}, BadCase{"cpus: []\n", "1", "cpus"},
        BadCase{"cpus: [1, [2]]\n", "1", "cpus"}, BadCase{"cpus: 1,1024\n", "1", "cpus"},
        BadCase{"log-level: loud\n", "1", "debug, info, warn or error"},
        BadCase{"log-format: xml\n", "1", "text or json"}, BadCase{"metrics: 9477\n", "1", "metrics"},
        BadCase{"metrics: 127.0.0.1:0\n", "1", "metrics"}, BadCase{"metrics: ::1:9477\n", "1", "metrics"},
        BadCase{"control: ''\n", "1", "control"}, BadCase{"workers: 1\nworkers: 1\n", "2", "workers is given twice"},
        BadCase{"ports: 3\n", "1", "ports must be a list"}, BadCase{"ports: {name: a}\n", "1", "ports must be a list"},
        BadCase{"ports:\n  - vm0\n", "2", "ports must be a map"}, BadCase{"- name: vm0\n", "1", "must be a map"},
        BadCase{"ports:\n  - name: a\n    socket: b\n    size: 3\n", "4", "\"size\""},
        BadCase{"ports:\n  - name: a\n    socket: b\n    queues: 99\n", "4", "queues"},
        BadCase{"ports:\n  - name: a\n    socket: [1, {}]\n", "3", "socket must have one value"},
        BadCase{"ports:\n  - name: a\n", "2", "socket is missing"},
        BadCase{"ports:\n  - name: a\n    name: b\n    socket: c\n", "2", "name is given twice"},
        BadCase{"ports:\n  - {name: a, socket: b}\n  - {name: a, socket: c}\n", "3", "port name a"},
        BadCase{"ports:\n  - {name: a, socket: b}\n  - {name: c, socket: b}\n", "3", "socket b"},
        BadCase{"ports:\n  - {name: a, socket: b}\n  - {name: c, socket: d, tap: a}\n", "3", "tap a"},
        BadCase{"ports: [\n", "2", ""}, BadCase{"a: b: c\n", "1", ""}, BadCase{"x: *nowhere\n", "1", ""},
        BadCase{"\tports:\n", "1", ""}));

TEST(YamlConfig, DeepNestingIsAnErrorNotACrash) {
  DaemonConfig config;
  EXPECT_FALSE(apply_yaml(config, std::string(100'000, '['), "file"));
}

TEST(ConfigFile, MissingAndHugeFilesAreNamed) {
  const testing::TemporaryDirectory directory;
  DaemonConfig config;
  const auto missing = apply_file(config, directory / "none.yaml");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().what, AllOf(HasSubstr("none.yaml"), HasSubstr("No such file")));
  const auto a_directory = apply_file(config, directory / "");
  EXPECT_FALSE(a_directory);
  std::ofstream(directory / "huge.yaml") << std::string((1 << 20) + 1, '#');
  const auto huge = apply_file(config, directory / "huge.yaml");
  ASSERT_FALSE(huge);
  EXPECT_THAT(huge.error().what, HasSubstr("larger than 1 MiB"));
  std::ofstream(directory / "good.yaml") << "workers: 3\n";
  EXPECT_TRUE(apply_file(config, directory / "good.yaml"));
  EXPECT_EQ(config.workers, 3u);
}

TEST(DaemonFields, FlagsAndFileAreOneTable) {
  DaemonConfig config;
  EXPECT_TRUE(set_field(config, "cpus", "0,2"));
  EXPECT_EQ(config.cpus, (std::vector{0u, 2u}));
  EXPECT_TRUE(set_field(config, "metrics", "none"));
  const auto bad = set_field(config, "control", std::string(108, 'x'));
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().what, HasSubstr("107 bytes"));
}

}  // namespace
}  // namespace vxdp
