// SPDX-License-Identifier: Apache-2.0
// Replacing the program under traffic: no frame meets no program, none is counted twice, no count falls.
#include <linux/bpf.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "sandbox.hpp"

namespace vxdp {
namespace {

using namespace std::chrono_literals;
using testing::frames_of;
using testing::make_frame;
using testing::Tap;

class ProgramSwap : public testing::Sandbox {
 protected:
  void attach(int ifindex, const std::string& program) {
    const Result<ProgramInfo> info = manager_->attach(ifindex, {program, ""});
    ASSERT_TRUE(info) << info.error().what;
  }
  std::shared_ptr<ProgramManager> manager_ = ProgramManager::create();
};

TEST_F(ProgramSwap, EveryFrameIsCountedByExactlyOneProgram) {
  const Tap tap("tap0");
  attach(tap.index(), "drop");
  std::atomic<bool> stop{false};
  std::uint64_t written = 0;
  std::thread writer([&] {
    const std::vector<std::uint8_t> frame = make_frame(64);
    while (!stop) {
      written += tap.write(frame) ? 1 : 0;
    }
  });
  std::uint64_t falls = 0;
  std::thread scraper([&] {
    std::map<std::string, std::uint64_t> last;
    while (!stop) {
      for (const ProgramStats& stats : manager_->program_stats()) {
        const std::uint64_t now = stats.action_frames[XDP_DROP] + stats.action_frames[XDP_PASS];
        falls += now < last[stats.program] ? 1 : 0;
        last[stats.program] = now;
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  // Longer than a replaced program's map is kept open, so retained, lingering and running counts all add up.
  unsigned swaps = 0;
  for (const auto end = std::chrono::steady_clock::now() + 2'500ms; std::chrono::steady_clock::now() < end; ++swaps) {
    attach(tap.index(), swaps % 2 == 0 ? "pass" : "drop");
    std::this_thread::sleep_for(5ms);
  }
  stop = true;
  writer.join();
  scraper.join();

  EXPECT_GT(swaps, 10U);
  EXPECT_EQ(falls, 0U);
  const std::uint64_t dropped = frames_of(*manager_, "drop", XDP_DROP);
  const std::uint64_t passed = frames_of(*manager_, "pass", XDP_PASS);
  EXPECT_GT(dropped, 0U);
  EXPECT_GT(passed, 0U);
  EXPECT_EQ(dropped + passed, written);
  EXPECT_EQ(manager_->program_stats().size(), 2U);
}

TEST_F(ProgramSwap, TheSameNameGoesOnCounting) {
  const Tap tap("tap0");
  attach(tap.index(), "drop");
  tap.write_all(10, 64);
  attach(tap.index(), "drop");
  tap.write_all(5, 64);
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 15U);  // the first one's map is still read
  std::this_thread::sleep_for(1'600ms);
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 15U);  // now it is folded in, once
  EXPECT_EQ(frames_of(*manager_, "drop", XDP_DROP), 15U);
  tap.write_all(1, 64);
  manager_->detach();
  std::this_thread::sleep_for(1'600ms);
  attach(tap.index(), "drop");
  tap.write_all(2, 64);
  const std::vector<ProgramStats> all = manager_->program_stats();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].action_frames[XDP_DROP], 18U);
  EXPECT_EQ(all[0].action_bytes[XDP_DROP], 18U * 64U);
  EXPECT_EQ(all[0].drop_frames[VXDP_DROP_POLICY], 18U);
}

}  // namespace
}  // namespace vxdp
