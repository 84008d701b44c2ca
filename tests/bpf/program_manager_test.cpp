// SPDX-License-Identifier: Apache-2.0
// ProgramManager on real devices: attach, errors, redirect, what it does when the interface goes away.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <gmock/gmock.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/if_link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "built_in.hpp"
#include "sandbox.hpp"

namespace vxdp {
namespace {

using ::testing::EndsWith;
using testing::frames_of;
using ::testing::HasSubstr;
using testing::make_frame;
using testing::stats_of;
using testing::Tap;
using testing::test_object;

class ProgramManagerOnTap : public testing::Sandbox {
 protected:
  /// Attaches `program` and returns what is said about it; fails the test if it is refused.
  ProgramInfo attach(int ifindex, const std::string& program, const std::string& redirect_to = "") {
    Result<ProgramInfo> info = manager_->attach(ifindex, {program, redirect_to});
    EXPECT_TRUE(info) << info.error().what;
    return info ? *info : ProgramInfo{};
  }
  /// The sentence with which `program` is refused.
  std::string refusal(int ifindex, const std::string& program, const std::string& redirect_to = "") {
    const Result<ProgramInfo> info = manager_->attach(ifindex, {program, redirect_to});
    return info ? "not refused" : info.error().what;
  }
  std::shared_ptr<ProgramManager> manager_ = ProgramManager::create();
};

std::uint32_t program_on(int ifindex) {
  __u32 id = 0;
  EXPECT_EQ(bpf_xdp_query_id(ifindex, 0, &id), 0);
  return id;
}

TEST_F(ProgramManagerOnTap, AttachesNativeAndCountsExactly) {
  const Tap tap("tap0");
  const ProgramInfo info = attach(tap.index(), "drop");
  EXPECT_EQ(info.name, "drop");
  EXPECT_EQ(info.origin, "built-in");
  EXPECT_EQ(info.tag.size(), 16U);
  EXPECT_EQ(info.id, program_on(tap.index()));
  EXPECT_TRUE(info.native);
  EXPECT_EQ(info.generic_reason, "");
  EXPECT_FALSE(info.may_redirect);
  EXPECT_TRUE(info.counts);

  tap.write_all(1'000, 64);
  tap.write_all(10, 1'500);

  const ProgramStats stats = stats_of(*manager_, "drop");
  EXPECT_EQ(stats.tag, info.tag);
  EXPECT_TRUE(stats.attached);
  EXPECT_TRUE(stats.native);
  EXPECT_EQ(stats.action_frames, (std::vector<std::uint64_t>{0, 1'010, 0, 0, 0}));
  EXPECT_EQ(stats.action_bytes, (std::vector<std::uint64_t>{0, 1'000 * 64 + 10 * 1'500, 0, 0, 0}));
  std::vector<std::uint64_t> reasons(VXDP_DROP_REASON_COUNT);
  reasons[VXDP_DROP_POLICY] = 1'010;
  EXPECT_EQ(stats.drop_frames, reasons);
}

TEST_F(ProgramManagerOnTap, DetachAndDestructionTakeTheProgramOff) {
  const Tap tap("tap0");
  attach(tap.index(), "drop");
  tap.write_all(5, 64);
  manager_->detach();
  EXPECT_EQ(program_on(tap.index()), 0U);
  EXPECT_FALSE(manager_->current());
  tap.write_all(5, 64);
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 5U);
  EXPECT_FALSE(stats_of(*manager_, "drop").attached);
  manager_->detach();

  attach(tap.index(), "drop");
  EXPECT_NE(program_on(tap.index()), 0U);
  manager_.reset();
  EXPECT_EQ(program_on(tap.index()), 0U);
}

TEST_F(ProgramManagerOnTap, ARefusedProgramLeavesTheOldOneWorking) {
  const Tap tap("tap0");
  const ProgramInfo old = attach(tap.index(), "drop");

  const std::string refused = refusal(tap.index(), test_object("refused"));
  EXPECT_THAT(refused, HasSubstr("cannot load XDP program refused"));
  EXPECT_THAT(refused, HasSubstr("the verifier says: invalid access to packet, off=100 size=1"));
  EXPECT_THAT(refused, EndsWith("offset is outside of the packet"));
  EXPECT_EQ(refused.find('\n'), std::string::npos);
  EXPECT_THAT(refusal(tap.index(), test_object("no_xdp")), HasSubstr("no XDP program in"));
  EXPECT_THAT(refusal(tap.index(), "/no/such/file.o"), HasSubstr("there is no XDP program"));
  EXPECT_EQ(refusal(tap.index(), "redirect"), "XDP program redirect needs an interface to redirect to");
  EXPECT_EQ(refusal(tap.index(), "redirect", "nowhere"), "cannot redirect to nowhere: there is no such interface");

  ASSERT_TRUE(manager_->current());
  EXPECT_EQ(manager_->current()->id, old.id);
  EXPECT_EQ(program_on(tap.index()), old.id);
  tap.write_all(7, 64);
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 7U);
  EXPECT_EQ(manager_->program_stats().size(), 1U);
}

TEST_F(ProgramManagerOnTap, AForeignProgramIsNamedAndNeverReplaced) {
  const Tap tap("tap0");
  const auto bytes = built_in_object("pass");
  bpf_object* foreign = bpf_object__open_mem(bytes.data(), bytes.size(), nullptr);
  ASSERT_NE(foreign, nullptr);
  ASSERT_EQ(bpf_object__load(foreign), 0);
  const int program = bpf_program__fd(bpf_object__next_program(foreign, nullptr));

  for (const __u32 mode : {XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE}) {
    ASSERT_EQ(bpf_xdp_attach(tap.index(), program, mode, nullptr), 0);
    const std::uint32_t id = program_on(tap.index());
    const Result<ProgramInfo> info = manager_->attach(tap.index(), {"drop", ""});
    ASSERT_FALSE(info);
    EXPECT_EQ(info.error().code, std::errc::device_or_resource_busy);
    EXPECT_EQ(info.error().what, "interface tap0 already has an XDP program of someone else (id " + std::to_string(id) +
                                     "): detach that one first");
    EXPECT_EQ(program_on(tap.index()), id);
    ASSERT_EQ(bpf_xdp_detach(tap.index(), mode, nullptr), 0);
  }
  bpf_object__close(foreign);
  attach(tap.index(), "drop");

  const auto second = ProgramManager::create();
  EXPECT_FALSE(second->attach(tap.index(), {"pass", ""}));
  EXPECT_FALSE(second->current());
  tap.write_all(3, 64);
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 3U);
}

TEST_F(ProgramManagerOnTap, RedirectMovesFramesToAnotherTap) {
  const Tap from("from0");
  const Tap to("to0");
  const ProgramInfo info = attach(from.index(), "redirect", "to0");
  EXPECT_TRUE(info.may_redirect);
  EXPECT_TRUE(info.native);

  for (std::uint32_t round = 0; round < 10; ++round) {
    std::vector<std::vector<std::uint8_t>> sent;
    for (std::uint32_t i = 0; i < 64; ++i) {
      sent.push_back(make_frame(60 + i, round * 64 + i));
      ASSERT_TRUE(from.write(sent.back()));
    }
    EXPECT_EQ(to.read_all(), sent);
  }
  EXPECT_EQ(frames_of(*manager_, "redirect", XDP_REDIRECT), 640U);

  // Another target is another attach; not one frame more goes to the old one.
  const Tap other("other0");
  attach(from.index(), "redirect", "other0");
  ASSERT_TRUE(from.write(make_frame(64, 1)));
  EXPECT_TRUE(to.read_all().empty());
  EXPECT_EQ(other.read_all().size(), 1U);
  EXPECT_EQ(frames_of(*manager_, "redirect", XDP_REDIRECT), 641U);
}

TEST_F(ProgramManagerOnTap, RedirectIsReadyAtTheMomentItIsSwappedIn) {
  const Tap from("from0");
  const Tap to("to0");
  attach(from.index(), "drop");
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) {
      EXPECT_TRUE(from.write(make_frame(64)));
    }
  });
  for (int i = 0; i < 20; ++i) {
    attach(from.index(), "redirect", "to0");
    attach(from.index(), "drop");
    (void)to.read_all();
  }
  stop = true;
  writer.join();
  EXPECT_GT(frames_of(*manager_, "redirect", XDP_REDIRECT), 0U);
  EXPECT_EQ(frames_of(*manager_, "redirect", XDP_PASS), 0U);  // would be a run without a target
}

TEST_F(ProgramManagerOnTap, OutlivesItsInterface) {
  auto tap = std::make_unique<Tap>("tap0");
  const int gone = tap->index();
  attach(gone, "drop");
  tap->write_all(4, 64);
  tap.reset();

  EXPECT_FALSE(manager_->current());
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 4U);
  EXPECT_THAT(refusal(gone, "pass"), HasSubstr("there is no interface with index"));

  const Tap next("tap0");
  ASSERT_NE(next.index(), gone);
  attach(next.index(), "drop");
  next.write_all(6, 64);
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 10U);
  ASSERT_TRUE(manager_->current());
}

TEST_F(ProgramManagerOnTap, MovesToAnotherInterfaceOnlyIfItCan) {
  const Tap first("tap0");
  const Tap second("tap1");
  const ProgramInfo info = attach(first.index(), "drop");
  EXPECT_THAT(refusal(9'999, "drop"), HasSubstr("there is no interface with index 9999"));
  EXPECT_EQ(program_on(first.index()), info.id);

  attach(second.index(), "drop");
  EXPECT_EQ(program_on(first.index()), 0U);
  first.write_all(2, 64);
  second.write_all(3, 64);
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 3U);
}

TEST_F(ProgramManagerOnTap, FallsBackToGenericWhereTheDriverHasNoNativeMode) {
  const Tap tun("tun0", IFF_TUN);  // a layer 3 device: tun.c has XDP for TAP only
  const ProgramInfo info = attach(tun.index(), "drop");
  EXPECT_FALSE(info.native);
  EXPECT_THAT(info.generic_reason, HasSubstr("interface tun0 refuses native XDP: Operation not supported"));

  std::vector<std::uint8_t> packet(64);
  packet[0] = 0x45;  // IPv4
  ASSERT_TRUE(tun.write(packet));
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 1U);
  EXPECT_FALSE(stats_of(*manager_, "drop").native);

  EXPECT_FALSE(attach(tun.index(), "pass").native);
  ASSERT_TRUE(tun.write(packet));
  EXPECT_EQ(frames_of(*manager_, "pass", XDP_PASS), 1U);
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 1U);
}

TEST_F(ProgramManagerOnTap, TakesTheFirstXdpProgramOfAFile) {
  const Tap tap("tap0");
  EXPECT_EQ(attach(tap.index(), test_object("several")).name, "several");
  tap.write_all(3, 64);
  EXPECT_EQ(stats_of(*manager_, "several").drop_frames[VXDP_DROP_MALFORMED], 3U);
}

TEST_F(ProgramManagerOnTap, ProgramsWithoutOurMapRunUncounted) {
  const Tap tap("tap0");
  attach(tap.index(), "drop");
  for (const char* name : {"old_style", "wrong_stats"}) {
    EXPECT_FALSE(attach(tap.index(), test_object(name)).counts) << name;
    tap.write_all(3, 64);
    EXPECT_TRUE(stats_of(*manager_, name).attached) << name;
    EXPECT_TRUE(stats_of(*manager_, name).action_frames.empty()) << name;
  }
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 0U);
}

TEST_F(ProgramManagerOnTap, TailCallsStillReachTheirProgramAfterAttach) {
  const Tap tap("tap0");
  EXPECT_TRUE(attach(tap.index(), test_object("tail_call")).may_redirect);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // an array nobody holds is emptied in the background
  tap.write_all(3, 64);
  EXPECT_EQ(frames_of(*manager_, "tail_call", XDP_DROP), 3U);
  EXPECT_EQ(frames_of(*manager_, "tail_call", XDP_PASS), 0U);
}

TEST_F(ProgramManagerOnTap, MissingCapabilitiesAreNamed) {
  const Tap tap("tap0");
  std::string refused;
  std::thread([&] {  // capabilities are a thread's
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
    ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
    refused = refusal(tap.index(), "drop");
  })
      .join();
  EXPECT_EQ(refused, "cannot load XDP program drop (built-in): CAP_BPF and CAP_NET_ADMIN and CAP_PERFMON are missing");
}

TEST_F(ProgramManagerOnTap, ThreeCapabilitiesAreEnough) {
  const Tap tap("tap0");
  std::string refused;
  std::thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
    data[0].effective = 1U << CAP_NET_ADMIN;
    data[1].effective = 1U << (CAP_BPF - 32) | 1U << (CAP_PERFMON - 32);
    data[0].permitted = data[0].effective;
    data[1].permitted = data[1].effective;
    ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
    refused = refusal(tap.index(), "redirect", "tap0");
  }).join();
  EXPECT_EQ(refused, "not refused");
}

}  // namespace
}  // namespace vxdp
