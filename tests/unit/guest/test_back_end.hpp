// SPDX-License-Identifier: Apache-2.0
// A small vhost-user back end on a thread: answers the messages, notes them, and sends every frame of a from_guest
// ring back into the to_guest ring beside it, unless told to misbehave.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "unit/guest/test_device.hpp"
#include "vxdp/base/fd.hpp"
#include "vxdp/vhost_user/message.hpp"

namespace vxdp::testing {

class TestBackEnd {
 public:
  struct Behaviour {
    std::uint64_t features = feature_bit(VIRTIO_F_VERSION_1) | feature_bit(VIRTIO_NET_F_MRG_RXBUF) |
                             feature_bit(VIRTIO_RING_F_EVENT_IDX) | feature_bit(VIRTIO_RING_F_INDIRECT_DESC) |
                             feature_bit(VIRTIO_NET_F_CSUM) | feature_bit(VIRTIO_NET_F_MQ) |
                             feature_bit(kVhostUserFProtocolFeatures);
    std::uint64_t protocol_features = feature_bit(kVhostUserProtocolMq) | feature_bit(kVhostUserProtocolReplyAck);
    std::uint64_t queue_pairs = 4;
    std::optional<VhostUserRequest> refuse;    // answers 1
    std::optional<VhostUserRequest> ignore;    // answers nothing
    std::optional<VhostUserRequest> close_at;  // closes the connection instead of reading further
    bool wrong_reply = false;                  // answers GET_FEATURES with another request's number
    bool echo = true;                          // false: rings are not served
    // What becomes of frame number n (from 1): the frames to give back instead of it.
    std::function<std::vector<std::vector<std::byte>>(unsigned n, std::vector<std::byte> frame)> change;
  };
  struct Seen {
    std::uint32_t request;
    std::uint32_t flags;
    std::vector<std::byte> payload;
    std::size_t fds;
  };

  TestBackEnd(Fd socket, Behaviour behaviour) : behaviour_(std::move(behaviour)), socket_(std::move(socket)) {
    thread_ = std::thread([this] { run(); });
  }
  ~TestBackEnd() { join(); }
  void join() {
    stop_ = true;
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  /// After join().
  const std::vector<Seen>& seen() const { return seen_; }
  std::uint64_t set_features() const { return features_; }
  /// Not empty if the guest side broke the rules.
  const std::string& complaint() const { return complaint_; }

 private:
  struct VringState {
    std::uint16_t size = 0, base = 0;
    VhostUserVringAddr addresses{};
    Fd kick, call;
    bool enabled = false;
    std::unique_ptr<TestDevice> device;
  };

  void run() {
    try {
      while (!stop_ && serve_message()) {
        echo_all();
      }
    } catch (const std::exception& e) {
      complaint_ = e.what();
    }
    socket_.reset();
  }

  bool serve_message() {
    pollfd waited{socket_.get(), POLLIN, 0};
    if (::poll(&waited, 1, 0) == 0) {
      return true;
    }
    Seen message{};
    VhostUserHeader header{};
    std::vector<Fd> fds;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 8)];
    iovec part{&header, sizeof header};
    msghdr received{};
    received.msg_iov = &part;
    received.msg_iovlen = 1;
    received.msg_control = control;
    received.msg_controllen = sizeof control;
    if (::recvmsg(socket_.get(), &received, MSG_CMSG_CLOEXEC | MSG_WAITALL) != sizeof header) {
      return false;
    }
    for (cmsghdr* c = CMSG_FIRSTHDR(&received); c != nullptr; c = CMSG_NXTHDR(&received, c)) {
      for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        fds.emplace_back(fd);
      }
    }
    message = {header.request, header.flags, std::vector<std::byte>(header.payload_bytes), fds.size()};
    if (header.payload_bytes > 0 &&
        ::recv(socket_.get(), message.payload.data(), header.payload_bytes, MSG_WAITALL) != header.payload_bytes) {
      return false;
    }
    seen_.push_back(message);
    const auto request = static_cast<VhostUserRequest>(header.request);
    if (behaviour_.close_at == request) {
      return false;
    }
    if (behaviour_.ignore != request) {
      handle(request, message, std::move(fds));
    }
    return true;
  }

  template <typename T>
  static T payload_as(const Seen& message) {
    T value{};
    if (message.payload.size() >= sizeof value) {
      std::memcpy(&value, message.payload.data(), sizeof value);
    }
    return value;
  }

  template <typename T>
  void reply(std::uint32_t request, const T& value) {
    struct {
      VhostUserHeader header;
      std::byte payload[sizeof(T)];
    } answer{{request, kVhostUserVersion | kVhostUserReply, sizeof(T)}, {}};
    std::memcpy(answer.payload, &value, sizeof value);
    // In two parts, as a stream may deliver it.
    [[maybe_unused]] ssize_t n = ::send(socket_.get(), &answer, 5, MSG_NOSIGNAL);
    n = ::send(socket_.get(), reinterpret_cast<const char*>(&answer) + 5, sizeof answer.header + sizeof(T) - 5,
               MSG_NOSIGNAL);
  }

  void handle(VhostUserRequest request, const Seen& message, std::vector<Fd> fds) {
    const auto state = payload_as<VhostUserVringState>(message);
    const auto number = payload_as<std::uint64_t>(message);
    switch (request) {
      case VhostUserRequest::kGetFeatures:
        reply(behaviour_.wrong_reply ? 77 : message.request, behaviour_.features);
        return;
      case VhostUserRequest::kGetProtocolFeatures:
        reply(message.request, behaviour_.protocol_features);
        return;
      case VhostUserRequest::kGetQueueNum:
        reply(message.request, behaviour_.queue_pairs);
        return;
      case VhostUserRequest::kGetVringBase: {
        VringState& vring = vrings_[state.index];
        reply(message.request, VhostUserVringState{state.index, vring.device ? vring.device->next() : 0U});
        vring.device.reset();
        return;
      }
      case VhostUserRequest::kSetFeatures:
        features_ = number;
        break;
      case VhostUserRequest::kSetMemTable: {
        std::vector<DeviceMemory::Region> regions;
        for (std::size_t i = 0; i < fds.size(); ++i) {
          VhostUserMemoryRegion region{};
          std::memcpy(&region, message.payload.data() + sizeof(VhostUserMemoryTable) + i * sizeof region,
                      sizeof region);
          regions.push_back({region.gpa, region.bytes, region.fva, region.mmap_offset});
        }
        memory_ = DeviceMemory(fds.at(0).get(), regions);
        break;
      }
      case VhostUserRequest::kSetVringNum:
        vrings_[state.index].size = static_cast<std::uint16_t>(state.num);
        break;
      case VhostUserRequest::kSetVringBase:
        vrings_[state.index].base = static_cast<std::uint16_t>(state.num);
        break;
      case VhostUserRequest::kSetVringAddr:
        vrings_[state.index].addresses = payload_as<VhostUserVringAddr>(message);
        break;
      case VhostUserRequest::kSetVringCall:
        vrings_[static_cast<std::uint32_t>(number & 0xff)].call = fds.empty() ? Fd() : std::move(fds[0]);
        break;
      case VhostUserRequest::kSetVringKick:
        vrings_[static_cast<std::uint32_t>(number & 0xff)].kick = fds.empty() ? Fd() : std::move(fds[0]);
        break;
      case VhostUserRequest::kSetVringEnable: {
        VringState& vring = vrings_[state.index];
        vring.enabled = state.num == 1;
        vring.device = std::make_unique<TestDevice>(memory_, vring.size, vring.addresses.desc_fva,
                                                    vring.addresses.avail_fva, vring.addresses.used_fva, vring.base,
                                                    (features_ & feature_bit(VIRTIO_RING_F_EVENT_IDX)) != 0);
        break;
      }
      default:
        break;
    }
    if ((message.flags & kVhostUserNeedReply) != 0) {
      reply(message.request, std::uint64_t{behaviour_.refuse == request ? 1U : 0U});
    }
  }

  void echo_all() {
    bool worked = false;
    for (auto& [index, vring] : vrings_) {
      if (index % 2 == 1 && vring.device && behaviour_.echo) {
        worked = echo(vring, vrings_[index - 1]) || worked;
      }
    }
    if (!worked) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  bool echo(VringState& from_guest, VringState& to_guest) {
    unsigned done = 0;
    for (; from_guest.device->available() > 0 && done < 16; ++done) {
      const TestDevice::Chain chain = from_guest.device->pop();
      std::vector<std::byte> frame = chain.read();
      frame.erase(frame.begin(), frame.begin() + sizeof(VnetHeader));
      from_guest.device->push(chain.head, 0);
      ++frames_;
      if (!behaviour_.change) {
        give(to_guest, frame);
        continue;
      }
      for (const std::vector<std::byte>& changed : behaviour_.change(frames_, std::move(frame))) {
        give(to_guest, changed);
      }
    }
    if (done > 0) {
      finish(from_guest);
      if (to_guest.device) {
        finish(to_guest);
      }
    }
    return done > 0;
  }

  static void finish(VringState& vring) {
    if (vring.device->publish() && vring.call) {
      const std::uint64_t one = 1;
      [[maybe_unused]] const ssize_t n = ::write(vring.call.get(), &one, sizeof one);
    }
    vring.device->set_avail_event(vring.device->next());
  }

  /// Into as many buffers as it takes; lost if the guest has not posted enough.
  void give(VringState& to_guest, const std::vector<std::byte>& frame) {
    const bool posts_buffers =
        to_guest.device && (to_guest.device->next() != to_guest.base || to_guest.device->available() > 0);
    if (!posts_buffers) {
      return;
    }
    std::vector<TestDevice::Chain> chains;
    std::vector<std::byte> bytes(sizeof(VnetHeader));
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    std::size_t room = 0;
    // A guest that has nothing posted now gets a moment: the echo test wants no loss.
    for (unsigned waits = 0; room < bytes.size();) {
      if (to_guest.device->available() > 0) {
        chains.push_back(to_guest.device->pop());
        room += chains.back().bytes();
      } else if (++waits > 2000) {
        return;
      } else {
        finish(to_guest);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    VnetHeader header{};
    header.num_buffers = static_cast<std::uint16_t>(chains.size());
    std::memcpy(bytes.data(), &header, sizeof header);
    std::span<const std::byte> rest(bytes);
    for (const TestDevice::Chain& chain : chains) {
      const std::size_t written = chain.write(rest);
      rest = rest.subspan(written);
      to_guest.device->push(chain.head, static_cast<std::uint32_t>(written));
    }
  }

  Behaviour behaviour_;
  Fd socket_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::vector<Seen> seen_;
  std::string complaint_;
  std::uint64_t features_ = 0;
  DeviceMemory memory_;
  std::map<std::uint32_t, VringState> vrings_;
  unsigned frames_ = 0;
};

}  // namespace vxdp::testing
