// SPDX-License-Identifier: Apache-2.0
// Each thing that can happen to a sequence is counted as what it is.
#include "guest/checker.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace vxdp {
namespace {

class Check : public ::testing::Test {
 protected:
  std::vector<std::byte> frame(std::uint64_t sequence, std::uint16_t queue = 0) const {
    std::vector<std::byte> bytes = frames_.frame(queue, 5);
    const std::uint16_t tail = frame_tail(sequence);
    std::memcpy(bytes.data() + frames_.sequence_offset(), &sequence, 8);
    std::memcpy(bytes.data() + frames_.tail_offset(), &tail, 2);
    return bytes;
  }
  void arrive(FrameChecker& checker, const std::vector<std::byte>& bytes) {
    const std::span<const std::byte> whole(bytes);
    const std::array<std::span<const std::byte>, 2> parts = {whole.first(20), whole.subspan(20)};
    checker.check(parts, false);
  }
  CheckCounts counts(FrameChecker& checker) {
    checker.flush();
    CheckCounts all = log_.counts();
    all.add(checker.counts());
    return all;
  }

  FrameTemplate frames_ = *FrameTemplate::create({});
  SequenceLog log_;
  FrameChecker checker_{log_};
};

TEST_F(Check, InOrderIsGood) {
  for (std::uint64_t s = 1000; s < 5000; ++s) {
    arrive(checker_, frame(s, static_cast<std::uint16_t>(s % 2)));  // every second sequence of each queue
  }
  const CheckCounts c = counts(checker_);
  EXPECT_EQ(c.good, 4000U);
  EXPECT_EQ(c.lost, 2 * 1999U);
  EXPECT_EQ(c.duplicated + c.reordered + c.corrupted + c.foreign, 0U);
}

TEST_F(Check, GapIsLostUntilItArrivesLateAsReordered) {
  for (const std::uint64_t s : {0, 1, 2, 5, 6}) {
    arrive(checker_, frame(s));
  }
  EXPECT_EQ(counts(checker_).lost, 2U);
  EXPECT_TRUE(counts(checker_).fault());
  arrive(checker_, frame(3));
  EXPECT_EQ(counts(checker_).lost, 1U);
  EXPECT_EQ(counts(checker_).reordered, 1U);
  EXPECT_EQ(counts(checker_).duplicated, 0U);
}

TEST_F(Check, SameSequenceTwiceIsADuplicateAlsoOverAnotherReceivingQueue) {
  FrameChecker other(log_);
  arrive(checker_, frame(0));
  arrive(checker_, frame(1));
  arrive(checker_, frame(1));
  counts(checker_);
  arrive(other, frame(0));
  const CheckCounts c = counts(other);
  EXPECT_EQ(c.duplicated, 2U);
  EXPECT_EQ(c.good, 2U);
  EXPECT_EQ(c.lost, 0U);
  EXPECT_EQ(checker_.counts().reordered, 0U);
}

TEST_F(Check, TwoReceivingQueuesMayShareASenderWithoutBeingOutOfOrder) {
  FrameChecker other(log_);
  for (std::uint64_t s = 0; s < 100; s += 2) {
    arrive(other, frame(s + 1));
    counts(other);
    arrive(checker_, frame(s));
    counts(checker_);
  }
  CheckCounts c = counts(checker_);
  c.add(other.counts());
  EXPECT_EQ(c.good, 100U);
  EXPECT_FALSE(c.fault());
}

TEST_F(Check, JumpBeyondTheWindowIsLossAndWhatIsOlderIsADuplicate) {
  arrive(checker_, frame(0));
  arrive(checker_, frame(SequenceWindow::kSequences * 3));
  EXPECT_EQ(counts(checker_).lost, SequenceWindow::kSequences * 3 - 1);
  arrive(checker_, frame(1));
  EXPECT_EQ(counts(checker_).duplicated, 1U);
  arrive(checker_, frame(SequenceWindow::kSequences * 3 - 10));
  EXPECT_EQ(counts(checker_).good, 3U);
}

TEST(SequenceWindow, ALapLaterNothingIsLeftOfTheLapBefore) {
  SequenceWindow window;
  for (std::uint64_t s = 0; s < SequenceWindow::kSequences; ++s) {
    ASSERT_TRUE(window.note(s));
  }
  EXPECT_TRUE(window.note(SequenceWindow::kSequences + 10));
  EXPECT_TRUE(window.note(SequenceWindow::kSequences + 5)) << "taken for sequence 5";
  EXPECT_FALSE(window.note(SequenceWindow::kSequences + 5));
  EXPECT_EQ(window.lost(), 9U);
}

TEST_F(Check, DamagedAndForeignFramesAreNotCountedAsOurs) {
  std::vector<std::byte> damaged = frame(0);
  damaged[40] ^= std::byte{1};
  arrive(checker_, damaged);
  arrive(checker_, std::vector<std::byte>(64));
  arrive(checker_, frame(0, kMaxSenderQueues));
  const CheckCounts c = counts(checker_);
  EXPECT_EQ(c.corrupted, 1U);
  EXPECT_EQ(c.foreign, 2U);
  EXPECT_EQ(c.good, 0U);
}

}  // namespace
}  // namespace vxdp
