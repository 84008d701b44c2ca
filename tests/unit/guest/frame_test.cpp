// SPDX-License-Identifier: Apache-2.0
// Frames of every kind and length are recognised, and every change to them is.
#include "guest/frame.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace vxdp {
namespace {

FrameSpec spec_of(FrameKind kind, std::uint32_t bytes) {
  FrameSpec spec;
  spec.kind = kind;
  spec.bytes = bytes;
  return spec;
}

/// What a sender does to a prepared frame.
void stamp(const FrameTemplate& frames, std::vector<std::byte>& frame, std::uint64_t sequence) {
  std::memcpy(frame.data() + frames.sequence_offset(), &sequence, 8);
  if (frames.tail_offset() != 0) {
    const std::uint16_t tail = frame_tail(sequence);
    std::memcpy(frame.data() + frames.tail_offset(), &tail, 2);
  }
}

class FrameKinds : public ::testing::TestWithParam<FrameKind> {};
INSTANTIATE_TEST_SUITE_P(All, FrameKinds, ::testing::Values(FrameKind::kRaw, FrameKind::kUdp, FrameKind::kTcp));

TEST_P(FrameKinds, AreGoodWithEverySequenceAndLengthWithoutTouchingTheChecksum) {
  for (const std::uint32_t bytes : {73U, 74U, 100U, 101U, 1514U, 9014U, 65534U, 65535U}) {
    const FrameTemplate frames = *FrameTemplate::create(spec_of(GetParam(), bytes));
    std::vector<std::byte> frame = frames.frame(7, 200);
    ASSERT_EQ(frame.size(), bytes);
    for (const std::uint64_t sequence : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0xffff},
                                         std::uint64_t{0x123456789abcdef}, ~std::uint64_t{0}}) {
      stamp(frames, frame, sequence);
      const FrameVerdict verdict = judge_frame(frame, false);
      ASSERT_EQ(verdict.kind, FrameVerdict::kGood) << bytes << " bytes, sequence " << sequence;
      EXPECT_EQ(verdict.queue, 7);
      EXPECT_EQ(verdict.sequence, sequence);
    }
  }
}

TEST_P(FrameKinds, EveryChangedByteBehindTheHeadersIsSeen) {
  const FrameTemplate frames = *FrameTemplate::create(spec_of(GetParam(), 120));
  std::vector<std::byte> frame = frames.frame(0, 1);
  stamp(frames, frame, 99);
  for (std::size_t i = frames.sequence_offset(); i < frame.size(); ++i) {
    frame[i] ^= std::byte{0x40};
    EXPECT_NE(judge_frame(frame, false).kind, FrameVerdict::kGood) << "byte " << i;
    frame[i] ^= std::byte{0x40};
  }
  EXPECT_EQ(judge_frame(frame, false).kind, FrameVerdict::kGood);
}

TEST_P(FrameKinds, CutFramesAreSeen) {
  const FrameTemplate frames = *FrameTemplate::create(spec_of(GetParam(), 1514));
  std::vector<std::byte> frame = frames.frame(0, 1);
  stamp(frames, frame, 3);
  for (std::size_t bytes = 1512; bytes > 80; bytes -= 7) {
    EXPECT_EQ(judge_frame(std::span(frame).first(bytes), false).kind, FrameVerdict::kCorrupted) << bytes;
  }
}

TEST_P(FrameKinds, TooShortForAStampAreForeignNotWrong) {
  const std::uint32_t headers = GetParam() == FrameKind::kRaw ? 14 : GetParam() == FrameKind::kUdp ? 42 : 54;
  for (std::uint32_t bytes = headers; bytes < headers + 16; ++bytes) {
    const FrameTemplate frames = *FrameTemplate::create(spec_of(GetParam(), bytes));
    EXPECT_EQ(frames.sequence_offset(), 0U);
    EXPECT_EQ(judge_frame(frames.frame(0, 0), false).kind, FrameVerdict::kForeign) << bytes;
  }
  EXPECT_FALSE(FrameTemplate::create(spec_of(GetParam(), headers - 1)));
  EXPECT_FALSE(FrameTemplate::create(spec_of(GetParam(), 65536)));
}

TEST(Frame, SixtyFourBytesAreStampedInRawAndUdp) {
  EXPECT_NE(FrameTemplate::create(spec_of(FrameKind::kRaw, 64))->tail_offset(), 0U);
  EXPECT_NE(FrameTemplate::create(spec_of(FrameKind::kUdp, 64))->tail_offset(), 0U);
}

TEST(Frame, UnfinishedChecksumIsThePseudoHeaderSumAndNothingElseIsMissing) {
  for (const FrameKind kind : {FrameKind::kUdp, FrameKind::kTcp}) {
    FrameSpec spec = spec_of(kind, 301);
    spec.partial_checksum = true;
    const FrameTemplate frames = *FrameTemplate::create(spec);
    const VnetHeader& header = frames.header();
    EXPECT_EQ(header.hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
    EXPECT_EQ(header.hdr.gso_type, VIRTIO_NET_HDR_GSO_NONE);
    ASSERT_EQ(header.hdr.csum_start, 34);
    ASSERT_EQ(header.hdr.csum_offset, kind == FrameKind::kUdp ? 6 : 16);
    std::vector<std::byte> frame = frames.frame(0, 0);
    stamp(frames, frame, 12345);
    EXPECT_EQ(judge_frame(frame, true).kind, FrameVerdict::kGood);
    EXPECT_EQ(judge_frame(frame, false).kind, FrameVerdict::kBadChecksum);
    // What a device does, virtio 1.2, 5.1.6.2.1.
    const auto sum = static_cast<std::uint16_t>(~internet_fold(internet_sum(std::span(frame).subspan(34))));
    std::memcpy(frame.data() + 34 + header.hdr.csum_offset, &sum, 2);
    EXPECT_EQ(judge_frame(frame, false).kind, FrameVerdict::kGood);
  }
}

TEST(Frame, SuperFrameSaysWhereToCut) {
  FrameSpec spec = spec_of(FrameKind::kTcp, 60000);
  spec.segment_bytes = 1448;
  const FrameTemplate frames = *FrameTemplate::create(spec);
  EXPECT_EQ(frames.header().hdr.gso_type, VIRTIO_NET_HDR_GSO_TCPV4);
  EXPECT_EQ(frames.header().hdr.gso_size, 1448);
  EXPECT_EQ(frames.header().hdr.hdr_len, 54);
  EXPECT_EQ(frames.header().hdr.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
  EXPECT_EQ(frames.tail_offset(), 0U);
  spec.kind = FrameKind::kUdp;
  EXPECT_FALSE(FrameTemplate::create(spec));
}

TEST(Frame, InternetSumFollowsRfc1071) {
  const std::vector<std::byte> example = {std::byte{0x00}, std::byte{0x01}, std::byte{0xf2}, std::byte{0x03},
                                          std::byte{0xf4}, std::byte{0xf5}, std::byte{0xf6}, std::byte{0xf7}};
  EXPECT_EQ(internet_fold(internet_sum(example)), 0xf2dd);  // the RFC's ddf2, little-endian
}

TEST(Frame, AddressesAreParsedOrRefused) {
  EXPECT_EQ(*parse_mac("52:54:00:12:34:fF"), (MacAddress{0x52, 0x54, 0, 0x12, 0x34, 0xff}));
  for (const char* bad : {"", "52:54:00:12:34", "52:54:00:12:34:56:78", "52:54:00:12:34:5g", "hello"}) {
    EXPECT_FALSE(parse_mac(bad)) << bad;
  }
  EXPECT_EQ(*parse_ipv4("10.0.0.1"), 0x0a000001U);
  EXPECT_FALSE(parse_ipv4("10.0.0"));
}

}  // namespace
}  // namespace vxdp
