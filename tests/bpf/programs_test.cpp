// SPDX-License-Identifier: Apache-2.0
// The built-in programs on frames of every kind: verdict and counts, by the kernel's test run.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>

#include <map>

#include "loaded_program.hpp"
#include "sandbox.hpp"
#include "vxdp/abi/drop_reasons.h"
#include "vxdp/abi/program_stats.h"

namespace vxdp {
namespace {

using testing::make_frame;
using Entry = std::pair<std::uint64_t, std::uint64_t>;  // frames, bytes
using Counts = std::map<std::uint32_t, Entry>;          // by index in vxdp_stats, only what is not zero

constexpr std::uint32_t by_reason(vxdp_drop_reason reason) {
  return VXDP_STATS_ACTIONS + reason;
}

class Programs : public testing::Sandbox {
 protected:
  void load(const std::string& name, const std::string& redirect_to = "") {
    Result<ProgramImage> image = find_program(name);
    ASSERT_TRUE(image) << image.error().what;
    Result<LoadedProgram> loaded = LoadedProgram::load(*image, redirect_to);
    ASSERT_TRUE(loaded) << loaded.error().what;
    program_ = std::move(*loaded);
  }
  /// The verdict on `frame`, given `repeat` times.
  std::uint32_t run(const std::vector<std::uint8_t>& frame, int repeat = 1) {
    std::vector<std::uint8_t> out(frame.size());
    LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame.data(), .data_out = out.data(),
                .data_size_in = static_cast<__u32>(frame.size()), .data_size_out = static_cast<__u32>(out.size()),
                .repeat = repeat);
    EXPECT_EQ(bpf_prog_test_run_opts(program_.fd, &options), 0) << frame.size() << " bytes: " << std::strerror(errno);
    EXPECT_EQ(out, frame) << "the program changed the frame";
    return options.retval;
  }
  Counts counts() {
    std::vector<vxdp_stats_entry> per_cpu(static_cast<std::size_t>(libbpf_num_possible_cpus()));
    Counts found;
    for (std::uint32_t i = 0; i < VXDP_STATS_ENTRIES; ++i) {
      EXPECT_EQ(bpf_map_lookup_elem(program_.stats.get(), &i, per_cpu.data()), 0);
      Entry sum;
      for (const vxdp_stats_entry& entry : per_cpu) {
        sum.first += entry.frames;
        sum.second += entry.bytes;
      }
      if (sum != Entry{}) {
        found[i] = sum;
      }
    }
    return found;
  }
  LoadedProgram program_;
};

constexpr std::size_t kLengths[] = {14, 15, 18, 59, 60, 64, 65, 128, 1'499, 1'500, 1'514, 1'518, 3'000};
constexpr Entry kAllLengths = {13, 14 + 15 + 18 + 59 + 60 + 64 + 65 + 128 + 1'499 + 1'500 + 1'514 + 1'518 + 3'000};

TEST_F(Programs, PassPassesAndCountsEveryLength) {
  load("pass");
  for (const std::size_t bytes : kLengths) {
    EXPECT_EQ(run(make_frame(bytes)), XDP_PASS) << bytes;
  }
  EXPECT_EQ(counts(), (Counts{{XDP_PASS, kAllLengths}}));
}

TEST_F(Programs, DropDropsEveryLengthByPolicy) {
  load("drop");
  for (const std::size_t bytes : kLengths) {
    EXPECT_EQ(run(make_frame(bytes)), XDP_DROP) << bytes;
  }
  EXPECT_EQ(counts(), (Counts{{XDP_DROP, kAllLengths}, {by_reason(VXDP_DROP_POLICY), kAllLengths}}));
}

TEST_F(Programs, RedirectRedirectsEveryLength) {
  load("redirect", "lo");
  for (const std::size_t bytes : kLengths) {
    EXPECT_EQ(run(make_frame(bytes)), XDP_REDIRECT) << bytes;
  }
  EXPECT_EQ(counts(), (Counts{{XDP_REDIRECT, kAllLengths}}));
}

TEST_F(Programs, RedirectPassesWhenItsTargetIsGone) {
  {
    const testing::Tap target("target0");
    load("redirect", "target0");
    EXPECT_EQ(run(make_frame(64)), XDP_REDIRECT);
  }
  EXPECT_EQ(run(make_frame(64)), XDP_PASS);
  EXPECT_EQ(counts(), (Counts{{XDP_REDIRECT, {1, 64}}, {XDP_PASS, {1, 64}}}));
}

TEST_F(Programs, RedirectDropsAFrameFromAGroupAddressAsMalformed) {
  load("redirect", "lo");
  std::vector<std::uint8_t> frame = make_frame(64);
  frame[6] = 0x03;
  EXPECT_EQ(run(frame), XDP_DROP);
  frame[6] = 0xff;
  EXPECT_EQ(run(frame), XDP_DROP);
  frame[6] = 0x00;
  EXPECT_EQ(run(frame), XDP_REDIRECT);
  EXPECT_EQ(counts(),
            (Counts{{XDP_DROP, {2, 128}}, {by_reason(VXDP_DROP_MALFORMED), {2, 128}}, {XDP_REDIRECT, {1, 64}}}));
}

TEST_F(Programs, RedirectTakesBroadcastAndGroupReceivers) {
  load("redirect", "lo");
  std::vector<std::uint8_t> frame = make_frame(60);
  std::fill_n(frame.begin(), 6, 0xff);
  EXPECT_EQ(run(frame), XDP_REDIRECT);
}

TEST_F(Programs, CountsAreExactOverManyRuns) {
  load("drop");
  run(make_frame(64), 100'000);
  run(make_frame(1'500), 1'000);
  const Entry all{101'000, 100'000 * 64 + 1'000 * 1'500};
  EXPECT_EQ(counts(), (Counts{{XDP_DROP, all}, {by_reason(VXDP_DROP_POLICY), all}}));
}

}  // namespace
}  // namespace vxdp
