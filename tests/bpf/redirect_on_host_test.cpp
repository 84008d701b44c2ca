// SPDX-License-Identifier: Apache-2.0
// Frames too short for the kernel's XDP against the same source built for the host.
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "vxdp/abi/drop_reasons.h"
#include "vxdp/abi/program_stats.h"

extern "C" {
extern vxdp_stats_entry host_stats[VXDP_STATS_ENTRIES];
extern int host_has_target;
int vxdp_redirect(xdp_md* ctx);
}

namespace vxdp {
namespace {

class RedirectOnHost : public ::testing::Test {
 protected:
  static constexpr std::size_t kPage = 4'096;

  void SetUp() override {
    std::memset(host_stats, 0, sizeof host_stats);
    host_has_target = 1;
    // xdp_md holds 32-bit addresses; the page after the frames is unreadable.
    void* const low = reinterpret_cast<void*>(0x1000'0000);
    void* pages = ::mmap(low, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(pages, MAP_FAILED);
    page_ = static_cast<std::uint8_t*>(pages);
    if (reinterpret_cast<std::uintptr_t>(page_) > UINT32_MAX - 2 * kPage) {
      GTEST_SKIP() << "no memory below 4 GiB";
    }
    ASSERT_EQ(::mprotect(page_ + kPage, kPage, PROT_NONE), 0);
  }
  void TearDown() override { ::munmap(page_, 2 * kPage); }

  /// Runs on a frame of `bytes` that ends at the unreadable page.
  int run(std::size_t bytes) {
    xdp_md ctx{};
    ctx.data = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(page_ + kPage - bytes));
    ctx.data_end = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(page_ + kPage));
    return vxdp_redirect(&ctx);
  }
  std::uint8_t* page_ = nullptr;
};

TEST_F(RedirectOnHost, RuntsAreDroppedWithThatReasonAndNotReadBeyondTheirEnd) {
  std::uint64_t bytes_sum = 0;
  for (std::size_t bytes = 0; bytes < 14; ++bytes) {
    EXPECT_EQ(run(bytes), XDP_DROP) << bytes << " bytes";
    bytes_sum += bytes;
  }
  EXPECT_EQ(host_stats[XDP_DROP].frames, 14U);
  EXPECT_EQ(host_stats[XDP_DROP].bytes, bytes_sum);
  EXPECT_EQ(host_stats[VXDP_STATS_ACTIONS + VXDP_DROP_RUNT].frames, 14U);
  EXPECT_EQ(host_stats[VXDP_STATS_ACTIONS + VXDP_DROP_RUNT].bytes, bytes_sum);
  EXPECT_EQ(host_stats[XDP_REDIRECT].frames, 0U);
}

TEST_F(RedirectOnHost, AnEthernetHeaderAloneIsRedirected) {
  EXPECT_EQ(run(14), XDP_REDIRECT);
  EXPECT_EQ(host_stats[XDP_REDIRECT].frames, 1U);
  EXPECT_EQ(host_stats[XDP_REDIRECT].bytes, 14U);
  EXPECT_EQ(host_stats[XDP_DROP].frames, 0U);
}

TEST_F(RedirectOnHost, WithoutTargetItIsPassed) {
  host_has_target = 0;
  EXPECT_EQ(run(60), XDP_PASS);
  EXPECT_EQ(host_stats[XDP_PASS].frames, 1U);
}

}  // namespace
}  // namespace vxdp
