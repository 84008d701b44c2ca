// SPDX-License-Identifier: Apache-2.0
// The field table: what is taken, and that each refusal names the field and what it may be.
#include "vxdp/control/port_fields.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "vxdp/control/json.hpp"

namespace vxdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kEveryField =
    "name=vm-0.a_b,socket=/run/x/vm0.sock,mode=client,tap=vm0,tap-fd=7:8,queues=2,xdp=redirect,redirect-to=vm1,"
    "mtu=9000,mac=52:54:00:AB:cd:01,busy-poll-us=0,batch=1,submit=writev";

TEST(PortText, EveryFieldIsRead) {
  const auto port = parse_port_text(kEveryField);
  ASSERT_TRUE(port) << port.error().what;
  EXPECT_EQ(port->name, "vm-0.a_b");
  EXPECT_EQ(port->socket, "/run/x/vm0.sock");
  EXPECT_EQ(port->mode, SocketMode::kClient);
  EXPECT_EQ(port->tap, "vm0");
  EXPECT_EQ(port->tap_fds, (std::vector{7, 8}));  // both tap and tap-fd: check() judges that
  EXPECT_EQ(port->queues, 2u);
  EXPECT_EQ(port->xdp, "redirect");
  EXPECT_EQ(port->redirect_to, "vm1");
  EXPECT_EQ(port->mtu, 9000);
  EXPECT_EQ(port->mac, "52:54:00:ab:cd:01");
  EXPECT_EQ(port->busy_poll_us, 0u);
  EXPECT_EQ(port->batch, 1u);
  EXPECT_EQ(port->submit, SubmitChoice::kWritev);
}

TEST(PortText, DefaultsAreThoseOfPortConfig) {
  const auto port = parse_port_text("name=a,socket=b");
  ASSERT_TRUE(port);
  EXPECT_EQ(port->mode, SocketMode::kServer);
  EXPECT_EQ(port->tap, "a");
  EXPECT_EQ(port->queues, 1u);
  EXPECT_EQ(port->batch, 64u);
  EXPECT_EQ(port->submit, SubmitChoice::kAuto);
  EXPECT_FALSE(port->mtu);
  EXPECT_EQ(port->busy_poll_us, 50u);
}

TEST(PortText, DescriptorsTakeThePlaceOfTheDefaultName) {
  const auto port = parse_port_text("name=a,socket=b,tap-fd=9");
  ASSERT_TRUE(port);
  EXPECT_EQ(port->tap, "");
}

TEST(PortText, WhatIsWrittenIsReadBackTheSame) {
  for (const char* text : {kEveryField, "name=a,socket=b", "name=a,socket=b,submit=uring,batch=64,mtu=68"}) {
    const auto port = parse_port_text(text);
    ASSERT_TRUE(port) << text;
    const auto again = parse_port(port_fields(*port));
    ASSERT_TRUE(again) << text;
    EXPECT_EQ(port_fields(*again), port_fields(*port));
  }
  EXPECT_EQ(port_fields(*parse_port_text(kEveryField)).size(), 13u);  // none was lost on the way
}

struct BadCase {
  const char* text;
  const char* field;    // must be named
  const char* allowed;  // must be told
};

class BadPortText : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadPortText, IsRefusedWithOneSentenceThatNamesTheField) {
  const auto port = parse_port_text(GetParam().text);
  ASSERT_FALSE(port) << GetParam().text;
  EXPECT_THAT(port.error().what,
              AllOf(HasSubstr(GetParam().field), HasSubstr(GetParam().allowed), Not(HasSubstr("\n"))));
  EXPECT_EQ(port.error().code, std::errc::invalid_argument);
}

const std::string kLongPath = "name=a,socket=/" + std::string(107, 'x');
const std::string kLongName = "socket=b,name=" + std::string(33, 'x');

INSTANTIATE_TEST_SUITE_P(
    Table, BadPortText,
    ::testing::Values(
        BadCase{"", "field name is missing", "1 to 32"},
        BadCase{"name=a", "field socket is missing", "path of 1 to 107 bytes"},
        BadCase{"socket=b", "field name is missing", "1 to 32"}, BadCase{"name=,socket=b", "name", "1 to 32"},
        BadCase{"name=a b,socket=b", "name", "letters, digits"},
        BadCase{"name=a/b,socket=b", "name", "letters, digits"}, BadCase{kLongName.c_str(), "name", "1 to 32"},
        BadCase{"name=a,socket=", "socket", "107 bytes"}, BadCase{kLongPath.c_str(), "socket", "107 bytes"},
        BadCase{"name=a,socket=b,colour=red", "\"colour\"", "busy-poll-us"},
        BadCase{"name=a,socket=b,Queues=1", "\"Queues\"", "queues"},
        BadCase{"name=a,socket=b,queues", "\"queues\" has no value", "name="},
        BadCase{"name=a,socket=b,", "\"\" has no value", "name="},
        BadCase{"name=a,socket=b,name=c", "name is given twice", ""},
        BadCase{"name=a,socket=b,mode=both", "mode", "server or client"},
        BadCase{"name=a,socket=b,tap=abcdefghijklmnop", "tap", "1 to 15 characters"},
        BadCase{"name=a,socket=b,tap=a/b", "tap", "interface name"},
        BadCase{"name=a,socket=b,tap=..", "tap", "interface name"},
        BadCase{"name=a,socket=b,tap-fd=", "tap-fd", "descriptors"},
        BadCase{"name=a,socket=b,tap-fd=7:", "tap-fd", "descriptors"},
        BadCase{"name=a,socket=b,tap-fd=2", "tap-fd", "from 3 up"},
        BadCase{"name=a,socket=b,tap-fd=-1", "tap-fd", "descriptors"},
        BadCase{"name=a,socket=b,tap-fd=99999999999", "tap-fd", "descriptors"},
        BadCase{"name=a,socket=b,queues=0", "queues", "1 to 16"},
        BadCase{"name=a,socket=b,queues=17", "queues", "1 to 16"},
        BadCase{"name=a,socket=b,queues=0x2", "queues", "1 to 16"},
        BadCase{"name=a,socket=b,queues= 2", "queues", "1 to 16"},
        BadCase{"name=a,socket=b,queues=2.0", "queues", "1 to 16"},
        BadCase{"name=a,socket=b,queues=+2", "queues", "1 to 16"},
        BadCase{"name=a,socket=b,queues=99999999999999999999999", "queues", "1 to 16"},
        BadCase{"name=a,socket=b,mtu=67", "mtu", "68 to 65535"},
        BadCase{"name=a,socket=b,mtu=65536", "mtu", "68 to 65535"},
        BadCase{"name=a,socket=b,mac=52:54:00:12:34", "mac", "52:54:00"},
        BadCase{"name=a,socket=b,mac=52-54-00-12-34-56", "mac", "52:54:00"},
        BadCase{"name=a,socket=b,mac=53:54:00:12:34:56", "mac", "one station"},
        BadCase{"name=a,socket=b,mac=00:00:00:00:00:00", "mac", "one station"},
        BadCase{"name=a,socket=b,mac=5 :54:00:12:34:56", "mac", "52:54:00"},
        BadCase{"name=a,socket=b,busy-poll-us=1000001", "busy-poll-us", "0 to 1000000"},
        BadCase{"name=a,socket=b,batch=0", "batch", "1 to 64"}, BadCase{"name=a,socket=b,batch=65", "batch", "1 to 64"},
        BadCase{"name=a,socket=b,submit=fast", "submit", "auto, uring or writev"},
        BadCase{"name=a,socket=b,xdp=", "xdp", "object file"},
        BadCase{"name=a,socket=b,redirect-to=", "redirect-to", "interface"}));

TEST(PortJson, RoundTripKeepsEveryField) {
  auto port = *parse_port_text(kEveryField);
  port.tap_fds.clear();
  const auto again = port_from_json(*parse_object(dump(to_json(port))));
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(port_fields(*again), port_fields(port));
}

TEST(PortJson, NumbersAreNumbers) {
  const Json json = to_json(*parse_port_text("name=a,socket=b,mtu=1500"));
  EXPECT_EQ(json["queues"], 1);
  EXPECT_EQ(json["mtu"], 1500);
  EXPECT_EQ(json["busy-poll-us"], 50);
  EXPECT_EQ(json["mode"], "server");
}

TEST(PortJson, NumbersMayBeText) {
  const auto port = port_from_json(*parse_object(R"({"name":"a","socket":"b","queues":"4"})"));
  ASSERT_TRUE(port);
  EXPECT_EQ(port->queues, 4u);
}

TEST(PortJson, BadValuesAreRefusedByName) {
  for (const auto& [text, field] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"name":"a","socket":"b","queues":2.5})", "queues"},
           {R"({"name":"a","socket":"b","queues":-1})", "queues"},
           {R"({"name":"a","socket":"b","queues":[1]})", "queues"},
           {R"({"name":"a","socket":"b","queues":null})", "queues"},
           {R"({"name":{"a":1},"socket":"b"})", "name"},
           {R"({"name":"a","socket":"b\u0000c"})", "socket"},
           {R"({"name":"a","socket":"b","tap-fd":"5"})", "tap-fd"},
           {R"({"name":"a","socket":"b","tap_fd":"5"})", "tap_fd"},
           {R"({})", "name"}}) {
    const auto object = parse_object(text);
    ASSERT_TRUE(object) << text;
    const auto port = port_from_json(*object);
    ASSERT_FALSE(port) << text;
    EXPECT_THAT(port.error().what, HasSubstr(field));
  }
}

TEST(PortJson, OnlyObjectsAreObjects) {
  for (const char* text : {"", "[]", "null", "{", "{\"a\":1}x", "\"name\"", "\xff"}) {
    EXPECT_FALSE(parse_object(text)) << text;
  }
  EXPECT_FALSE(parse_object(std::string(1 << 20, '[')));
}

TEST(StatusJson, HoldsWhatThePortIsDoing) {
  PortStatus status;
  status.config = *parse_port_text("name=vm0,socket=/s,xdp=drop");
  status.state = "running";
  status.tap = "vm0";
  status.features = 0x8000'0001'0000'0000;
  status.submit = "uring-fixed";
  status.program = ProgramInfo{"drop", "built-in", "abcd", 7, true, "", false, true};
  status.program_stats = {{"drop", "abcd", true, true, {0, 9}, {0, 540}, {}}};
  QueueStatus queue;
  queue.direction = "to_guest";
  queue.frames = 1'000'000'000'000'000'001;
  queue.drops.assign(VXDP_DROP_REASON_COUNT, 0);
  queue.drops[VXDP_DROP_NO_BUFFER] = 3;
  queue.drops[VXDP_DROP_RUNT] = 4;
  status.queues = {queue};
  const Json json = to_json(status);
  EXPECT_EQ(json["name"], "vm0");
  EXPECT_EQ(json["queues"], 1);
  EXPECT_EQ(json["state"], "running");
  EXPECT_EQ(json["features"], "0x8000000100000000");
  EXPECT_EQ(json["submit"], "auto");
  EXPECT_EQ(json["submit_method"], "uring-fixed");
  EXPECT_EQ(json["program"]["id"], 7);
  EXPECT_EQ(json["program_stats"][0]["actions"]["drop"], (Json{{"frames", 9}, {"bytes", 540}}));
  EXPECT_EQ(json["queue_stats"][0]["frames"], 1'000'000'000'000'000'001);
  EXPECT_EQ(json["queue_stats"][0]["drops"], (Json{{"total", 7}, {"runt", 4}, {"no_buffer", 3}}));
}

TEST(StatusJson, NoProgramIsNullAndBadTextIsStillJson) {
  PortStatus status;
  status.state = "\xff\xfe";
  EXPECT_TRUE(to_json(status)["program"].is_null());
  EXPECT_TRUE(parse_object(dump(to_json(status))));
}

}  // namespace
}  // namespace vxdp
