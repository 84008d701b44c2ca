// SPDX-License-Identifier: Apache-2.0
#include "vxdp/memory/guest_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace vxdp {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

Fd file_of(std::uint64_t bytes) {
  Fd fd(::memfd_create("guest", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

RegionRequest region(std::uint64_t gpa, std::uint64_t bytes, std::uint64_t fva, std::uint64_t offset = 0,
                     std::uint64_t file_bytes = 0) {
  return {.gpa = gpa,
          .bytes = bytes,
          .fva = fva,
          .mmap_offset = offset,
          .fd = file_of(file_bytes != 0 ? file_bytes : offset + bytes)};
}

template <typename... Regions>
std::vector<RegionRequest> table(Regions... regions) {
  std::vector<RegionRequest> list;
  (list.push_back(std::move(regions)), ...);
  return list;
}

TEST(GuestMemory, TranslatesBothKindsOfAddress) {
  const auto memory = GuestMemory::map(table(region(0, kMiB, 0x1000'0000), region(4 * kMiB, kMiB, 0x2000'0000)));
  ASSERT_TRUE(memory);
  const auto part = (*memory)->translate(4 * kMiB + 100, 50);
  ASSERT_EQ(part.size(), 50u);
  EXPECT_EQ(part.data(), (*memory)->translate_fva(0x2000'0000 + 100, 50));
  EXPECT_EQ((*memory)->translate(kMiB - 10, 50).size(), 10u) << "up to the region's end";
  EXPECT_TRUE((*memory)->translate(kMiB, 1).empty());
  EXPECT_TRUE((*memory)->translate(UINT64_MAX, 2).empty());
  EXPECT_EQ((*memory)->translate_fva(0x1000'0000 + kMiB - 10, 11), nullptr) << "all or nothing";
  EXPECT_EQ((*memory)->translate_fva(0x1000'0000, UINT64_MAX), nullptr);
}

TEST(GuestMemory, B39_OffsetNeedNotBeAPageMultiple) {
  Fd fd = file_of(2 * kMiB);
  void* own = ::mmap(nullptr, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  static_cast<char*>(own)[12345] = 'x';
  std::vector<RegionRequest> regions;
  regions.push_back({.gpa = 0, .bytes = kMiB, .fva = 0, .mmap_offset = 12345, .fd = std::move(fd)});
  const auto memory = GuestMemory::map(std::move(regions));
  ASSERT_TRUE(memory);
  EXPECT_EQ(static_cast<char>(*(*memory)->translate(0, 1).data()), 'x');
  ::munmap(own, 2 * kMiB);
}

TEST(GuestMemory, B39_BadTablesAreRefused) {
  const auto refused = [](std::vector<RegionRequest> regions) { return !GuestMemory::map(std::move(regions)); };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(table(region(0, 0, 0))));
  EXPECT_TRUE(refused(table(region(UINT64_MAX - 100, kMiB, 0))));
  EXPECT_TRUE(refused(table(region(0, kMiB, UINT64_MAX - 100))));
  EXPECT_TRUE(refused(table(region(0, kMiB, 0, UINT64_MAX - 100, kMiB))));
  EXPECT_TRUE(refused(table(region(0, 2 * kMiB, 0, 0, kMiB)))) << "longer than its file";
  EXPECT_TRUE(refused(table(region(0, kMiB, 0), region(kMiB - 1, kMiB, 8 * kMiB)))) << "gpa overlap";
  EXPECT_TRUE(refused(table(region(0, kMiB, 0), region(8 * kMiB, kMiB, kMiB - 1)))) << "fva overlap";
  std::vector<RegionRequest> nine;
  for (std::uint64_t i = 0; i < 9; ++i) {
    nine.push_back(region(i * kMiB, kMiB, i * kMiB));
  }
  EXPECT_TRUE(refused(std::move(nine)));
}

TEST(GuestMemory, B51_FileThatShrinksPoisonsItAndKillsNobody) {
  std::vector<RegionRequest> regions = table(region(0, kMiB, 0), region(kMiB, kMiB, kMiB));
  const Fd file = regions[1].fd.duplicate();
  const auto memory = GuestMemory::map(std::move(regions));
  ASSERT_TRUE(memory);
  volatile std::byte* byte = (*memory)->translate(kMiB + 5000, 1).data();
  *byte = std::byte{7};
  EXPECT_FALSE((*memory)->poisoned());
  ASSERT_EQ(::ftruncate(file.get(), 0), 0);
  EXPECT_TRUE(*byte == std::byte{0}) << "SIGBUS became a zero page";
  EXPECT_TRUE((*memory)->poisoned());
  *byte = std::byte{1};
}

TEST(GuestMemory, MappingsGoWithTheLastHolder) {
  for (int i = 0; i < 5000; ++i) {  // more than there are guard entries
    ASSERT_TRUE(GuestMemory::map(table(region(0, 4096, 0)))) << i;
  }
}

}  // namespace
}  // namespace vxdp
