// SPDX-License-Identifier: Apache-2.0
#include "vxdp/packet/vnet_header.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace vxdp {
namespace {

TEST(FinishChecksum, MatchesAKnownUdpDatagram) {
  // Ethernet, IPv4 and UDP from 10.0.0.1:4096 to 10.0.0.2:4097 with "hi"; the field holds the pseudo-header's sum:
  // 0a00 + 0001 + 0a00 + 0002 + 0011 + 000a = 141e.
  std::vector<std::uint8_t> frame(14 + 20);
  const std::array<std::uint8_t, 10> udp = {0x10, 0x00, 0x10, 0x01, 0x00, 0x0a, 0x14, 0x1e, 'h', 'i'};
  frame.insert(frame.end(), udp.begin(), udp.end());
  VnetHeader header{};
  header.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
  header.hdr.csum_start = 34;
  header.hdr.csum_offset = 6;
  finish_checksum(header, reinterpret_cast<std::byte*>(frame.data()), frame.size());
  // ~(1000 + 1001 + 000a + 141e + 6869) = ~9c92
  EXPECT_EQ(frame[40], 0x63);
  EXPECT_EQ(frame[41], 0x6d);
  EXPECT_EQ(header.hdr.flags, 0);
}

TEST(FinishChecksum, UdpSumOfZeroIsSentAsAllOnes) {
  std::vector<std::uint8_t> frame(34 + 8);
  frame[34] = 0xff;
  frame[35] = 0xff;
  VnetHeader header{};
  header.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
  header.hdr.csum_start = 34;
  header.hdr.csum_offset = 6;
  finish_checksum(header, reinterpret_cast<std::byte*>(frame.data()), frame.size());
  EXPECT_EQ(frame[40], 0xff);
  EXPECT_EQ(frame[41], 0xff);
}

TEST(FinishChecksum, LeavesAFrameThatAsksForNothing) {
  std::vector<std::uint8_t> frame(60, 0x5a);
  const auto before = frame;
  VnetHeader header{};
  finish_checksum(header, reinterpret_cast<std::byte*>(frame.data()), frame.size());
  EXPECT_EQ(frame, before);
}

TEST(VnetHeaderBytes, FollowVersion1AndMergeableBuffers) {
  EXPECT_EQ(vnet_header_bytes(0), 10u);
  EXPECT_EQ(vnet_header_bytes(feature_bit(VIRTIO_F_VERSION_1)), 12u);
  EXPECT_EQ(vnet_header_bytes(feature_bit(VIRTIO_NET_F_MRG_RXBUF)), 12u);
}

}  // namespace
}  // namespace vxdp
