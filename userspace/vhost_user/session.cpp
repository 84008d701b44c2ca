// SPDX-License-Identifier: Apache-2.0
// A message changes what is known about the vrings; settle() then makes the device run exactly those that are
// complete. Handlers therefore never start anything: they pause what they change.
#include <fmt/core.h>
#include <sys/epoll.h>

#include <algorithm>

#include "session_impl.hpp"
#include "vxdp/base/log.hpp"
#include "vxdp/base/virtio_uapi.hpp"

namespace vxdp {
namespace {

constexpr int kMessagesPerTurn = 32;  // then other ports' sessions have theirs

}  // namespace

// --- the connection

Result<> Session::Impl::begin() {
  if (auto added = loop_.add(socket_.fd(), EPOLLIN, [this](std::uint32_t /*events*/) { on_readable(); }); !added) {
    ended_ = true;
    return added.error();
  }
  counters_.state.store(static_cast<int>(state_), std::memory_order_relaxed);
  log_info("port {}: front-end connected", port_);
  return Ok{};
}

void Session::Impl::on_readable() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    auto message = socket_.receive();
    if (!message) {
      if (message.error().code == std::errc::invalid_argument) {
        counters_.bad_messages.add();
      }
      end(message.error());
      return;
    }
    if (!*message) {
      return;
    }
    counters_.messages.add();
    if (auto handled = handle(**message); !handled) {
      end(handled.error());
      return;
    }
  }
}

Result<> Session::Impl::handle(VhostUserMessage& message) {
  const auto rule = std::ranges::find(kRules, message.header.request,
                                      [](const Rule& r) { return static_cast<std::uint32_t>(r.request); });
  const bool known = rule != kRules.end();
  const std::string name = known ? std::string(rule->name) : fmt::format("request {}", message.header.request);
  Handled handled = known ? apply(*rule, message) : Handled(Refusal{"not known"});
  if (handled && !*handled) {
    if (auto settled = settle(); !settled) {
      handled = settled.error();
    }
  }

  const bool done = handled && !*handled;
  if (!done) {
    counters_.bad_messages.add();
  }
  const bool ack_wanted = (message.header.flags & kVhostUserNeedReply) != 0 &&
                          (protocol_features_ & feature_bit(kVhostUserProtocolReplyAck)) != 0 &&
                          !(known && rule->replies);
  Result<> acked = ack_wanted ? socket_.reply(message.header, std::uint64_t{done ? 0U : 1U}) : Result<>(Ok{});
  if (!handled) {
    return Error{handled.error().code, fmt::format("{}: {}", name, handled.error().what)};
  }
  if (*handled && !std::exchange(refusal_logged_, true)) {
    log_warn("port {}: {} refused: {}", port_, name, (*handled)->why);
  }
  return acked;
}

Handled Session::Impl::apply(const Rule& rule, VhostUserMessage& message) {
  if (message.payload.size() < rule.min_bytes || message.payload.size() > rule.max_bytes) {
    return invalid(fmt::format("{} bytes of payload", message.payload.size()));
  }
  if (message.fds.size() > rule.max_fds) {
    return invalid(fmt::format("{} descriptors, at most {} belong there", message.fds.size(), rule.max_fds));
  }
  return (this->*rule.handler)(message);
}

void Session::Impl::end(const Error& error) {
  ended_ = true;
  release();
  publish_state();
  const bool hung_up = error.code == std::errc::connection_reset;
  log_line(hung_up ? LogLevel::kInfo : LogLevel::kWarn,
           fmt::format("port {}: connection ended: {}", port_, error.what));
  loop_.post([this, alive = std::weak_ptr<bool>(alive_), reason = error.what] {
    if (!alive.expired()) {
      const auto closed = std::move(closed_);  // it may destroy us
      closed(reason);
    }
  });
}

void Session::Impl::release() {
  loop_.remove(socket_.fd());
  pause_all();
  socket_.close();
  vrings_.clear();
  memory_.reset();
}

// --- vrings

bool Session::Impl::should_run(unsigned index) const {
  const Vring& vring = vrings_[index];
  // Without MQ the driver knows of one pair only (virtio 1.2, 5.1.2).
  const bool negotiated = features_ && (index < 2 || (*features_ & feature_bit(VIRTIO_NET_F_MQ)) != 0);
  return negotiated && memory_ != nullptr && vring.size != 0 && vring.addresses && vring.started &&
         (vring.enabled || discards(index));
}

/// A from_guest vring that was switched off goes on giving frames back, unsent: a driver may wait for them (the
/// specification, "Ring states"). One that was never on keeps what lies in it for the moment it is.
bool Session::Impl::discards(unsigned index) const {
  const Vring& vring = vrings_[index];
  return index % 2 == 1 && !vring.enabled && vring.was_enabled;
}

Result<> Session::Impl::settle() {
  for (unsigned index = 0; index < vrings_.size(); ++index) {
    if (!should_run(index)) {
      pause(index);
    } else if (!vrings_[index].running) {
      if (auto started = start(index); !started) {
        return Error{started.error().code, fmt::format("vring {}: {}", index, started.error().what)};
      }
    }
  }
  publish_state();
  return Ok{};
}

Result<> Session::Impl::start(unsigned index) {
  Vring& vring = vrings_[index];
  const auto used_index = check_layout(*memory_, vring);
  if (!used_index) {
    return used_index.error();
  }
  if (!std::exchange(vring.next_avail_known, true)) {
    vring.next_avail = *used_index;  // frames are used in order, so an earlier back end got this far
  }
  VringConfig config;
  config.memory = memory_;
  config.features = *features_;
  config.size = vring.size;
  config.desc_fva = vring.addresses->desc_fva;
  config.avail_fva = vring.addresses->avail_fva;
  config.used_fva = vring.addresses->used_fva;
  config.next_avail = vring.next_avail;
  config.discard = discards(index);
  for (auto [from, to] : {std::pair(&vring.kick, &config.kick), std::pair(&vring.call, &config.call),
                          std::pair(&vring.err, &config.err)}) {
    *to = from->duplicate();
    if (*from && !*to) {
      return errno_error("duplicate", "an eventfd");
    }
  }
  if (auto started = device_.start_vring(index, std::move(config)); !started) {
    return started.error();
  }
  vring.running = true;
  log_debug("port {}: vring {} runs from index {}", port_, index, vring.next_avail);
  return Ok{};
}

void Session::Impl::pause(unsigned index) {
  Vring& vring = vrings_[index];
  if (vring.running) {
    vring.next_avail = device_.stop_vring(index);
    vring.running = false;
    log_debug("port {}: vring {} stopped at index {}", port_, index, vring.next_avail);
  }
}

void Session::Impl::pause_all() {
  for (unsigned index = 0; index < vrings_.size(); ++index) {
    pause(index);
  }
}

void Session::Impl::publish_state() {
  const bool running = std::ranges::any_of(vrings_, [](const Vring& vring) { return vring.running && vring.enabled; });
  const auto state = running ? SessionState::kRunning : SessionState::kConnected;
  if (state != std::exchange(state_, state)) {
    counters_.state.store(static_cast<int>(state), std::memory_order_relaxed);
    log_info("port {}: {}", port_, running ? "running" : "no vring runs");
  }
}

Result<unsigned> Session::Impl::checked_index(std::uint64_t index) const {
  if (index >= vrings_.size()) {
    return invalid(fmt::format("vring {} does not exist, this port has {}", index, vrings_.size()));
  }
  return static_cast<unsigned>(index);
}

// --- what others see

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::create(std::string port, Fd socket, EventLoop& loop, DeviceListener& device,
                                                 SessionCounters& counters, Closed closed) {
  auto impl = std::make_unique<Impl>(std::move(port), std::move(socket), loop, device, counters, std::move(closed));
  if (auto begun = impl->begin(); !begun) {
    return begun.error();
  }
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

}  // namespace vxdp
