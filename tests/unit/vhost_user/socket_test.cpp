// SPDX-License-Identifier: Apache-2.0
#include "vxdp/vhost_user/socket.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>

#include "front_end.hpp"

namespace vxdp::testing {
namespace {

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

ino_t inode_of(int fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return status.st_ino;
}

class SocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = open_descriptors();
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    front_ = std::make_unique<FrontEnd>(Fd(ends[0]));
    socket_ = std::make_unique<VhostUserSocket>(Fd(ends[1]));
  }
  void TearDown() override {
    socket_.reset();
    front_.reset();
    EXPECT_EQ(open_descriptors(), before_) << "descriptors leaked";
  }
  std::optional<VhostUserMessage> receive() {
    auto got = socket_->receive();
    if (!got) {
      ADD_FAILURE() << got.error().what;
      return std::nullopt;
    }
    return std::move(*got);
  }
  void expect_violation() {
    const auto got = socket_->receive();
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, std::errc::invalid_argument) << got.error().what;
    EXPECT_EQ(open_descriptors(), before_ + 2) << "the bad message's descriptors are still open";
  }

  std::ptrdiff_t before_ = 0;
  std::unique_ptr<FrontEnd> front_;
  std::unique_ptr<VhostUserSocket> socket_;
};

TEST_F(SocketTest, NothingIsThereYet) {
  EXPECT_FALSE(receive());
}

TEST_F(SocketTest, B31_FragmentedStreamIsReassembledWithItsDescriptor) {
  const Fd event = make_memfd(1);
  const auto bytes = message_bytes(12, bytes_of(std::uint64_t{7}));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(receive());
    const int fd = event.get();
    ASSERT_TRUE(front_->send_raw({&bytes[i], 1}, i == 0 ? std::span(&fd, 1) : std::span<const int>()));
  }
  const auto message = receive();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->header.request, 12U);
  EXPECT_EQ(message->read<std::uint64_t>(), 7U);
  ASSERT_EQ(message->fds.size(), 1U);
  EXPECT_EQ(inode_of(message->fds[0].get()), inode_of(event.get()));
  EXPECT_EQ(::fcntl(message->fds[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(SocketTest, B31_SeveralMessagesInOneWriteAreKeptApart) {
  Bytes both = message_bytes(2, bytes_of(std::uint64_t{5}));
  const auto second = message_bytes(3, {});
  both.insert(both.end(), second.begin(), second.end());
  ASSERT_TRUE(front_->send_raw(both));
  const auto first = receive();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->read<std::uint64_t>(), 5U);
  const auto next = receive();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->header.request, 3U);
  EXPECT_TRUE(next->payload.empty());
  EXPECT_FALSE(receive());
}

TEST_F(SocketTest, B31_QueuedMessagesKeepTheirOwnDescriptors) {
  const std::array<Fd, 2> events{make_memfd(1), make_memfd(1)};
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetVringNum, bytes_of(VhostUserVringState{0, 256})));
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetVringKick, bytes_of(std::uint64_t{0}), {events[0].get()}));
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetVringCall, bytes_of(std::uint64_t{0}), {events[1].get()}));
  const auto num = receive();
  ASSERT_TRUE(num);
  EXPECT_TRUE(num->fds.empty());
  for (const auto& event : events) {
    const auto message = receive();
    ASSERT_TRUE(message);
    ASSERT_EQ(message->fds.size(), 1U);
    EXPECT_EQ(inode_of(message->fds[0].get()), inode_of(event.get()));
  }
}

TEST_F(SocketTest, EightDescriptorsAreAccepted) {
  const Fd event = make_eventfd();
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetMemTable, Bytes(264), std::vector<int>(8, event.get())));
  const auto message = receive();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->fds.size(), 8U);
}

TEST_F(SocketTest, B30_NineDescriptorsAreRefusedAndClosed) {
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetMemTable, Bytes(264), std::vector<int>(9, front_->fd())));
  expect_violation();
}

TEST_F(SocketTest, B30_NineDescriptorsOverTwoPartsAreRefusedAndClosed) {
  const auto bytes = message_bytes(5, Bytes(264));
  const std::vector<int> eight(8, front_->fd());
  ASSERT_TRUE(front_->send_raw(std::span(bytes).first(12), eight));
  EXPECT_FALSE(receive());
  ASSERT_TRUE(front_->send_raw(std::span(bytes).subspan(12), std::span(eight).first(1)));
  expect_violation();
}

TEST_F(SocketTest, B30_DescriptorsTruncatedByTheProcessLimitAreRefusedAndClosed) {
  // One more descriptor may be opened: three arrive, the kernel delivers one and truncates.
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetMemTable, Bytes(264), std::vector<int>(3, front_->fd())));
  const int free_fd = ::dup(front_->fd());
  ASSERT_GE(free_fd, 0);
  ::close(free_fd);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit tight{static_cast<rlim_t>(free_fd) + 1, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto got = socket_->receive();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, std::errc::invalid_argument);
  EXPECT_EQ(open_descriptors(), before_ + 2);
}

TEST_F(SocketTest, B31_BadHeadersAreRefused) {
  struct Case {
    const char* what;
    VhostUserHeader header;
  };
  for (const auto& [what, header] :
       {Case{"version 0", {1, 0, 0}}, Case{"version 2", {1, 2, 0}},
        Case{"a reply", {1, kVhostUserVersion | kVhostUserReply, 0}}, Case{"4097 bytes", {1, kVhostUserVersion, 4097}},
        Case{"4 GiB", {1, kVhostUserVersion, UINT32_MAX}}}) {
    SCOPED_TRACE(what);
    TearDown();
    SetUp();
    const int fd = front_->fd();
    ASSERT_TRUE(front_->send_raw(bytes_of(header), std::span(&fd, 1)));
    expect_violation();
  }
}

TEST_F(SocketTest, LargestMessageIsAccepted) {
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetLogBase, Bytes(4096)));
  const auto message = receive();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->payload.size(), 4096U);
}

TEST_F(SocketTest, B31_EndInsideAMessageIsAViolation) {
  const auto bytes = message_bytes(2, bytes_of(std::uint64_t{0}));
  for (const std::size_t sent : {1, 11, 12, 19}) {
    SCOPED_TRACE(sent);
    TearDown();
    SetUp();
    ASSERT_TRUE(front_->send_raw(std::span(bytes).first(sent)));
    EXPECT_FALSE(receive());
    front_->close();
    const auto got = socket_->receive();
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, std::errc::invalid_argument);
  }
}

TEST_F(SocketTest, EndBetweenMessagesIsAHangUp) {
  ASSERT_TRUE(front_->send(VhostUserRequest::kSetOwner));
  front_->close();
  EXPECT_TRUE(receive());
  const auto got = socket_->receive();
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, std::errc::connection_reset);
}

TEST_F(SocketTest, ReplyHasTheRequestsNumberAndTheReplyFlag) {
  ASSERT_TRUE(socket_->reply({17, kVhostUserVersion | kVhostUserNeedReply, 0}, std::uint64_t{128}));
  const auto reply = front_->receive();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->header.request, 17U);
  EXPECT_EQ(reply->header.flags, kVhostUserVersion | kVhostUserReply);
  EXPECT_EQ(reply->as<std::uint64_t>(), 128U);
}

TEST_F(SocketTest, B49_RepliesToAPeerThatDoesNotReadEndInAnError) {
  int sent = 0;
  while (socket_->reply({1, kVhostUserVersion, 0}, std::uint64_t{0})) {
    ASSERT_LT(++sent, 1'000'000);
  }
  EXPECT_GT(sent, 0);
}

}  // namespace
}  // namespace vxdp::testing
