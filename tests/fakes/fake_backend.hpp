// SPDX-License-Identifier: Apache-2.0
// A backend that records what it is sent and delivers what it is told; rooms, refusals and limits are scripted.
#pragma once

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "vxdp/backend/backend.hpp"

namespace vxdp::testing {

class FakeBackend : public Backend {
 public:
  struct Sent {
    std::string header;
    std::string frame;
  };

  Moved sendmsg(const MessageControl& control) noexcept override {
    Moved moved{.frames = 0, .syscalls = 1};
    messages.push_back(control.num);
    types.push_back(control.type);
    for (XdpBuff& frame : std::span(control.ptr, control.num)) {
      if (room == 0) {
        break;
      }
      --room;
      const auto refused = refuse.find(sent.size() + refused_count);
      frame.error = 0;
      if (refused != refuse.end()) {
        frame.error = static_cast<std::uint16_t>(refused->second);
        ++refused_count;
      } else {
        sent.push_back(read(frame));
      }
      ++moved.frames;
    }
    return moved;
  }

  Moved recvmmsg(std::span<ReceiveRoom> rooms) noexcept override {
    Moved moved{.frames = 0, .syscalls = 1};
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      rooms[i].result = -EAGAIN;
      if (incoming.empty() || holes.erase(i) != 0) {
        continue;
      }
      const std::string message = incoming.front();
      incoming.pop_front();
      std::size_t done = 0;
      for (const iovec& part : rooms[i].iov) {
        const std::size_t bytes = std::min(part.iov_len, message.size() - done);
        std::memcpy(part.iov_base, message.data() + done, bytes);
        done += bytes;
      }
      rooms[i].result = static_cast<std::int32_t>(done);
      moved.frames = i + 1;
    }
    return moved;
  }

  [[nodiscard]] int event_fd() const noexcept override { return event.get(); }
  [[nodiscard]] bool send_limited() const noexcept override { return limited; }
  void use_send_memory(std::shared_ptr<const GuestMemory> /*memory*/) override {}
  void use_receive_memory(std::shared_ptr<const GuestMemory> /*memory*/) override {}
  void use_header_bytes(std::uint32_t bytes) noexcept override { header_bytes = bytes; }
  [[nodiscard]] const char* method() const noexcept override { return "fake"; }
  [[nodiscard]] std::string method_reason() const override { return "a test"; }

  std::vector<Sent> sent;
  std::vector<std::size_t> messages;  // frames in each sendmsg()
  std::vector<MessageType> types;
  std::size_t room = SIZE_MAX;        // frames that still fit
  std::map<std::size_t, int> refuse;  // position of a frame in the stream -> errno
  std::size_t refused_count = 0;
  std::deque<std::string> incoming;   // messages for the guest, header included
  std::map<std::size_t, bool> holes;  // room index left empty once
  bool limited = false;
  bool driver_rewrites = false;  // buffers may change after they were judged, as a hostile guest's do
  std::uint32_t header_bytes = 12;
  Fd event;

 private:
  /// The frame both ways a backend may take it; they must agree.
  Sent read(const XdpBuff& frame) const {
    Sent result;
    result.header.assign(static_cast<const char*>(frame.iov[0].iov_base), frame.iov[0].iov_len);
    for (std::uint16_t i = 1; i < frame.iov_count; ++i) {
      result.frame.append(static_cast<const char*>(frame.iov[i].iov_base), frame.iov[i].iov_len);
    }
    const std::string linear(reinterpret_cast<const char*>(frame.data), frame.linear_bytes());
    if (result.frame.size() != frame.frame_bytes || result.frame.compare(0, linear.size(), linear) != 0) {
      std::abort();
    }
    if (frame.header_in_front && !driver_rewrites &&
        std::memcmp(frame.data - header_bytes, result.header.data(), header_bytes) != 0) {
      std::abort();
    }
    return result;
  }
};

}  // namespace vxdp::testing
