// SPDX-License-Identifier: Apache-2.0
// What a session knows of its connection and vrings. session.cpp reads messages and runs vrings;
// requests.cpp has the table of requests and one handler for each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vring.hpp"
#include "vxdp/vhost_user/session.hpp"
#include "vxdp/vhost_user/socket.hpp"

namespace vxdp {

/// Why a request is not carried out although the connection can go on.
struct Refusal {
  std::string why;
};
/// Nothing: done. A Refusal: answered with a non-zero acknowledgement. An Error: the connection ends.
using Handled = Result<std::optional<Refusal>>;
inline const std::optional<Refusal> kDone;

class Session::Impl {
 public:
  Impl(std::string port, Fd socket, EventLoop& loop, DeviceListener& device, SessionCounters& counters, Closed closed)
      : port_(std::move(port)),
        socket_(std::move(socket)),
        loop_(loop),
        device_(device),
        counters_(counters),
        closed_(std::move(closed)),
        vrings_(device.vring_limit()) {}
  ~Impl() {
    if (!ended_) {
      release();
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<> begin();

 private:
  struct Rule {
    VhostUserRequest request;
    std::string_view name;
    std::size_t min_bytes, max_bytes;  // of the payload
    std::size_t max_fds;
    bool replies;  // has a reply of its own, so it is never acknowledged
    Handled (Impl::*handler)(VhostUserMessage&);
  };
  static const std::array<Rule, 20> kRules;

  void on_readable();
  Result<> handle(VhostUserMessage& message);
  Handled apply(const Rule& rule, VhostUserMessage& message);
  void end(const Error& error);
  void release();

  Handled get_features(VhostUserMessage& message);
  Handled set_features(VhostUserMessage& message);
  Handled set_owner(VhostUserMessage& message);
  Handled reset_owner(VhostUserMessage& message);
  Handled set_mem_table(VhostUserMessage& message);
  Handled refuse_log(VhostUserMessage& message);
  Handled set_vring_num(VhostUserMessage& message);
  Handled set_vring_addr(VhostUserMessage& message);
  Handled set_vring_base(VhostUserMessage& message);
  Handled get_vring_base(VhostUserMessage& message);
  Handled set_vring_kick(VhostUserMessage& message);
  Handled set_vring_call(VhostUserMessage& message);
  Handled set_vring_err(VhostUserMessage& message);
  Handled get_protocol_features(VhostUserMessage& message);
  Handled set_protocol_features(VhostUserMessage& message);
  Handled get_queue_num(VhostUserMessage& message);
  Handled set_vring_enable(VhostUserMessage& message);
  Handled send_rarp(VhostUserMessage& message);
  Handled net_set_mtu(VhostUserMessage& message);

  template <typename T>
  Handled reply(const VhostUserMessage& message, const T& payload) {
    if (auto sent = socket_.reply(message.header, payload); !sent) {
      return sent.error();
    }
    return kDone;
  }
  Result<unsigned> checked_index(std::uint64_t index) const;
  /// Takes the one descriptor, or none, of a KICK, CALL or ERR message into `event`; returns the vring's index.
  Result<unsigned> take_event(VhostUserMessage& message, Fd Vring::*event);

  [[nodiscard]] bool should_run(unsigned index) const;
  [[nodiscard]] bool discards(unsigned index) const;
  Result<> settle();
  Result<> start(unsigned index);
  void pause(unsigned index);
  void pause_all();
  void publish_state();

  const std::string port_;
  VhostUserSocket socket_;
  EventLoop& loop_;
  DeviceListener& device_;
  SessionCounters& counters_;
  Closed closed_;

  std::optional<std::uint64_t> features_;  // acknowledged; nothing runs before SET_FEATURES
  std::uint64_t protocol_features_ = 0;    // acknowledged
  std::shared_ptr<const GuestMemory> memory_;
  std::vector<Vring> vrings_;
  SessionState state_ = SessionState::kConnected;
  bool refusal_logged_ = false;  // a front-end must not be able to fill the log
  bool ended_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // work posted to the loop looks whether we still are
};

}  // namespace vxdp
