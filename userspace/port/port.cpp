// SPDX-License-Identifier: Apache-2.0
#include "port/port.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "vxdp/backend/tap_uring.hpp"
#include "vxdp/base/log.hpp"
#include "vxdp/packet/vnet_header.hpp"

namespace vxdp {
namespace {

constexpr unsigned kToGuest = 0;  // an even vring; virtio calls it receiveq
constexpr unsigned kFromGuest = 1;

bool asks_for_program(const ProgramChoice& choice) {
  return !choice.program.empty() && choice.program != "none";
}

}  // namespace

Port::Port(PortConfig config, EventLoop& loop, TapDevice tap)
    : config_(std::move(config)),
      loop_(loop),
      tap_(std::move(tap)),
      metrics_(std::make_shared<PortMetrics>(config_.name, config_.queues)),
      program_(ProgramManager::create()) {
  metrics_->programs = program_;
}

Result<std::unique_ptr<Port>> Port::create(PortConfig config, const ProgramChoice& choice, EventLoop& loop,
                                           const std::vector<std::unique_ptr<Worker>>& workers) {
  auto tap = config.tap_fds.empty() ? TapDevice::open(config.tap, config.queues) : TapDevice::adopt(config.tap_fds);
  if (!tap) {
    return tap.error();
  }
  std::unique_ptr<Port> port(new Port(std::move(config), loop, std::move(*tap)));
  if (port->config_.mtu) {
    if (auto set = port->tap_.set_mtu(*port->config_.mtu); !set) {
      return set.error();
    }
  }
  if (!port->tap_.up()) {
    log_warn("port {}: TAP {} is down; frames are dropped until it is set up", port->config_.name, port->tap_name());
  }
  if (auto added = port->add_lanes(workers); !added) {
    return added.error();
  }
  if (asks_for_program(choice)) {
    auto attached = port->attach_program(choice);
    if (!attached) {
      return attached.error();
    }
    port->redirects_at_start_ = attached->may_redirect;
  }
  port->update_link();
  auto socket = PortSocket::create(loop, port->config_.socket, port->config_.mode,
                                   [raw = port.get()](Fd fd) { raw->connected(std::move(fd)); });
  if (!socket) {
    return socket.error();
  }
  port->socket_ = std::move(*socket);
  log_info("port {}: TAP {}, {} queue pair(s), {} {}, submit {}", port->config_.name, port->tap_name(),
           port->config_.queues, port->config_.mode == SocketMode::kServer ? "listening on" : "connecting to",
           port->config_.socket, port->lanes_[0].pair->backend().method());
  return port;
}

Port::~Port() {
  session_.reset();
  socket_.reset();
  for (Lane& lane : lanes_) {
    lane.worker->detach(*lane.pair);
  }
}

Result<std::unique_ptr<Backend>> Port::make_backend(unsigned queue) const {
  return make_tap_queue(tap_.queue(queue), config_.submit == SubmitChoice::kUring,
                        config_.submit == SubmitChoice::kWritev);
}

Result<> Port::add_lanes(const std::vector<std::unique_ptr<Worker>>& workers) {
  for (unsigned queue = 0; queue < config_.queues; ++queue) {
    auto backend = make_backend(queue);
    if (!backend) {
      return invalid(fmt::format("port {}: submit=uring: {}", config_.name, backend.error().what));
    }
    Lane lane;
    lane.pair = std::make_unique<QueuePair>(std::move(*backend), metrics_->queues[queue], path_, config_.batch,
                                            config_.busy_poll_us);
    const auto least = std::min_element(workers.begin(), workers.end(),
                                        [](const auto& a, const auto& b) { return a->pairs() < b->pairs(); });
    lane.worker = least->get();
    if (auto attached = lane.worker->attach(*lane.pair); !attached) {
      return attached;
    }
    lanes_.push_back(std::move(lane));
  }
  remember_submit();
  return Ok{};
}

void Port::remember_submit() {
  metrics_->submit.store(lanes_[0].pair->backend().method(), std::memory_order_relaxed);
}

// ---- XDP ----

Result<ProgramInfo> Port::attach_program(const ProgramChoice& choice) {
  const auto redirects = ProgramManager::may_redirect(choice);
  if (!redirects) {
    return redirects.error();
  }
  // No frame with an unfinished checksum may meet a program that redirects, so the rule changes first.
  if (*redirects) {
    path_.may_redirect.store(true, std::memory_order_relaxed);
    synchronize_workers();
  }
  auto info = program_->attach(tap_.ifindex(), choice);
  publish_program(program_->current());
  if (info) {
    choice_ = choice;
  }
  return info;
}

void Port::publish_program(const std::optional<ProgramInfo>& info) {
  path_.attached.store(info.has_value(), std::memory_order_relaxed);
  path_.native.store(info && info->native, std::memory_order_relaxed);
  path_.may_redirect.store(info && info->may_redirect, std::memory_order_relaxed);
}

void Port::synchronize_workers() {
  for (const Lane& lane : lanes_) {
    lane.worker->synchronize();
  }
}

Result<ProgramInfo> Port::swap_program(const std::string& program, const std::string& redirect_to,
                                       const ProgramChoice& choice) {
  if (!asks_for_program(choice)) {
    program_->detach();
    publish_program(std::nullopt);
    choice_ = {};
    config_.xdp = "none";
    config_.redirect_to.clear();
    ProgramInfo none;
    none.name = "none";
    return none;
  }
  auto info = attach_program(choice);
  if (!info) {
    return info;
  }
  config_.xdp = program;
  config_.redirect_to = redirect_to;
  log_info("port {}: program {} ({}) runs now, id {}, tag {}, {}", config_.name, info->name, info->origin, info->id,
           info->tag, info->native ? "native" : "generic: " + info->generic_reason);
  constexpr std::uint64_t kSegmentation =
      feature_bit(VIRTIO_NET_F_HOST_TSO4) | feature_bit(VIRTIO_NET_F_HOST_TSO6) | feature_bit(VIRTIO_NET_F_HOST_USO);
  if (info->may_redirect && (acknowledged_ & kSegmentation) != 0) {
    log_warn(
        "port {}: its guest sends segmentation offload frames, which cannot be redirected and are dropped "
        "(gso_redirect) until the guest negotiates again",
        config_.name);
  }
  return info;
}

// ---- front-end ----

void Port::connected(Fd socket) {
  metrics_->session.connects.add();
  auto session = Session::create(config_.name, std::move(socket), loop_, *this, metrics_->session,
                                 [this](const std::string& /*reason*/) { disconnected(); });
  if (!session) {
    log_warn("port {}: {}", config_.name, session.error().what);
    disconnected();
    return;
  }
  session_ = std::move(*session);
}

void Port::disconnected() {
  session_.reset();
  metrics_->session.disconnects.add();
  metrics_->session.state.store(static_cast<int>(SessionState::kWaiting), std::memory_order_relaxed);
  (void)set_memory(nullptr);
  acknowledged_ = 0;
  update_link();
  socket_->release();
}

std::uint64_t Port::features() const {
  std::uint64_t features = feature_bit(VIRTIO_F_VERSION_1) | feature_bit(VIRTIO_F_ANY_LAYOUT) |
                           feature_bit(VIRTIO_F_IN_ORDER) | feature_bit(VIRTIO_RING_F_INDIRECT_DESC) |
                           feature_bit(VIRTIO_RING_F_EVENT_IDX) | feature_bit(kVhostUserFProtocolFeatures) |
                           feature_bit(VIRTIO_NET_F_MRG_RXBUF) | feature_bit(VIRTIO_NET_F_CSUM) |
                           feature_bit(VIRTIO_NET_F_GUEST_CSUM) | feature_bit(VIRTIO_NET_F_GUEST_TSO4) |
                           feature_bit(VIRTIO_NET_F_GUEST_TSO6) | feature_bit(VIRTIO_NET_F_GUEST_ECN);
  if (!redirects_at_start_ && !path_.may_redirect.load(std::memory_order_relaxed)) {
    features |=
        feature_bit(VIRTIO_NET_F_HOST_TSO4) | feature_bit(VIRTIO_NET_F_HOST_TSO6) | feature_bit(VIRTIO_NET_F_HOST_ECN);
    features |= tap_.has_uso() ? feature_bit(VIRTIO_NET_F_HOST_USO) : 0;
  }
  if (tap_.has_uso()) {
    features |= feature_bit(VIRTIO_NET_F_GUEST_USO4) | feature_bit(VIRTIO_NET_F_GUEST_USO6);
  }
  features |= config_.queues > 1 ? feature_bit(VIRTIO_NET_F_MQ) : 0;
  features |= config_.mtu ? feature_bit(VIRTIO_NET_F_MTU) : 0;
  return features;
}

Result<> Port::set_features(std::uint64_t acknowledged) {
  acknowledged_ = acknowledged;
  for (const Lane& lane : lanes_) {
    lane.pair->backend().use_header_bytes(vnet_header_bytes(acknowledged));
  }
  tell_interface();
  return Ok{};
}

/// Header size and offloads as the guest acknowledged them.
void Port::tell_interface() {
  // A deleted interface answers errors; it must not cost the guest its session.
  for (const auto& set : {tap_.set_header_bytes(vnet_header_bytes(acknowledged_)), tap_.set_offloads(acknowledged_)}) {
    if (!set) {
      log_warn("port {}: {}", config_.name, set.error().what);
    }
  }
}

Result<> Port::set_memory(std::shared_ptr<const GuestMemory> memory) {
  // Rings that do not start again must not keep the old pages; those that do register the new ones then.
  for (Lane& lane : lanes_) {
    if (lane.memory != memory) {
      lane.memory.reset();
      lane.pair->backend().use_send_memory(nullptr);
      lane.pair->backend().use_receive_memory(nullptr);
    }
  }
  return Ok{};
}

Result<> Port::start_vring(unsigned index, VringConfig config) {
  Lane& lane = lanes_[index / 2];
  const unsigned direction = index % 2;
  const std::uint64_t features = config.features;
  const auto memory = config.memory;
  const std::uint16_t size = config.size;
  const bool discard = config.discard;
  auto queue = SplitQueue::create(std::move(config));
  if (!queue) {
    return queue.error();
  }
  lane.memory = memory;
  if (direction == kFromGuest) {
    lane.discards = discard;
    lane.pair->backend().use_send_memory(memory);
    remember_submit();
  } else {
    lane.pair->backend().use_receive_memory(memory);
  }
  auto started = direction == kFromGuest
                     ? lane.worker->start_from_guest(*lane.pair, std::move(*queue))
                     : lane.worker->start_to_guest(*lane.pair, std::move(*queue), largest_frame_to_guest(features));
  if (!started) {
    return started;
  }
  lane.ring_size[direction] = size;
  update_link();
  return Ok{};
}

std::uint16_t Port::stop_vring(unsigned index) {
  Lane& lane = lanes_[index / 2];
  const unsigned direction = index % 2;
  const std::uint16_t next_avail =
      direction == kFromGuest ? lane.worker->stop_from_guest(*lane.pair) : lane.worker->stop_to_guest(*lane.pair);
  lane.ring_size[direction] = 0;
  lane.broken_logged[direction] = false;
  update_link();
  return next_avail;
}

std::uint32_t Port::largest_frame_to_guest(std::uint64_t features) const {
  constexpr std::uint64_t kSegmentation = feature_bit(VIRTIO_NET_F_GUEST_TSO4) | feature_bit(VIRTIO_NET_F_GUEST_TSO6) |
                                          feature_bit(VIRTIO_NET_F_GUEST_USO4) | feature_bit(VIRTIO_NET_F_GUEST_USO6);
  constexpr std::uint32_t kLinkHeaderBytes = kEthernetHeaderBytes + 4;  // one VLAN tag
  constexpr std::uint32_t kLargestSegmented = 65536;
  return ((features & kSegmentation) != 0 ? kLargestSegmented : tap_.mtu()) + kLinkHeaderBytes;
}

/// The host may send where a guest listens: carrier and queues follow the rings.
void Port::update_link() {
  bool any = false;
  for (unsigned queue = 0; queue < lanes_.size(); ++queue) {
    any |= lanes_[queue].running();
    tap_.set_queue_attached(queue, queue == 0 || lanes_[queue].running());  // the kernel wants one at least
  }
  tap_.set_carrier(any);
}

Result<> Port::set_mtu(std::uint16_t mtu) {
  return tap_.set_mtu(mtu);
}

/// RFC 903 request in the guest's name, so that switches learn where it is now.
void Port::send_rarp(const std::uint8_t* mac) {
  constexpr std::size_t kFrameBytes = 60;
  const std::uint32_t header_bytes = vnet_header_bytes(acknowledged_);
  std::array<std::uint8_t, sizeof(VnetHeader) + kFrameBytes> message{};
  std::uint8_t* frame = message.data() + header_bytes;
  constexpr std::array<std::uint8_t, 10> kRarp = {0x80, 0x35, 0, 1, 0x08, 0, 6, 4, 0, 3};
  std::memset(frame, 0xff, 6);
  std::memcpy(frame + 6, mac, 6);
  std::memcpy(frame + 12, kRarp.data(), kRarp.size());
  std::memcpy(frame + 22, mac, 6);
  std::memcpy(frame + 32, mac, 6);
  if (::write(tap_.queue(0).get(), message.data(), header_bytes + kFrameBytes) < 0) {
    log_warn("port {}: {}", config_.name, errno_error("announce the guest on", tap_name()).what);
  }
}

// ---- once a second ----

void Port::tick(double seconds) {
  for (unsigned queue = 0; queue < lanes_.size(); ++queue) {
    update_rates(lanes_[queue], seconds);
    report_broken(lanes_[queue], queue);
  }
  revive_interface();
}

void Port::update_rates(Lane& lane, double seconds) {
  auto& metrics = lane.pair->metrics();
  const auto update = [&](const QueueCounters& counters, std::uint64_t& before, std::atomic<double>& rate) {
    const std::uint64_t now = counters.frames.read();
    rate.store(static_cast<double>(now - before) / seconds, std::memory_order_relaxed);
    before = now;
  };
  update(metrics.to_guest, lane.frames_before[kToGuest], metrics.to_guest_fps);
  update(metrics.from_guest, lane.frames_before[kFromGuest], metrics.from_guest_fps);
}

void Port::report_broken(Lane& lane, unsigned queue) {
  const std::array<bool, 2> broken = {lane.pair->to_guest_broken(), lane.pair->from_guest_broken()};
  for (unsigned direction : {kToGuest, kFromGuest}) {
    if (broken[direction] && lane.ring_size[direction] != 0 && !lane.broken_logged[direction]) {
      lane.broken_logged[direction] = true;
      log_warn("port {}: queue {} {}: the guest's ring is impossible; it stands still until the guest resets it",
               config_.name, queue, direction == kFromGuest ? "from_guest" : "to_guest");
    }
  }
}

void Port::revive_interface() {
  const bool gone =
      std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.pair->backend_gone(); });
  if (!gone && tap_.exists()) {
    interface_lost_logged_ = false;
    return;
  }
  if (!interface_lost_logged_) {
    log_warn("port {}: interface {} is gone", config_.name, tap_name());
  }
  if (!config_.tap_fds.empty()) {
    interface_lost_logged_ = true;  // it came as a descriptor: only its giver can make it again
    return;
  }
  if (auto rebuilt = rebuild_interface(); !rebuilt) {
    if (!interface_lost_logged_) {
      log_warn("port {}: {}; trying again every second", config_.name, rebuilt.error().what);
    }
    interface_lost_logged_ = true;
    return;
  }
  interface_lost_logged_ = false;
  log_info("port {}: interface {} is back", config_.name, tap_name());
}

Result<> Port::rebuild_interface() {
  auto tap = TapDevice::open(config_.tap, config_.queues);
  if (!tap) {
    return tap.error();
  }
  tap_ = std::move(*tap);
  if (config_.mtu) {
    (void)tap_.set_mtu(*config_.mtu);
  }
  tell_interface();
  for (unsigned queue = 0; queue < lanes_.size(); ++queue) {
    Lane& lane = lanes_[queue];
    auto backend = make_backend(queue);
    if (!backend) {
      return backend.error();
    }
    (*backend)->use_header_bytes(vnet_header_bytes(acknowledged_));
    (*backend)->use_send_memory(lane.memory);
    (*backend)->use_receive_memory(lane.memory);
    if (auto before = lane.worker->replace_backend(*lane.pair, std::move(*backend)); !before) {
      return before.error();
    }
  }
  update_link();
  remember_submit();
  if (asks_for_program(choice_)) {
    if (auto attached = attach_program(choice_); !attached) {
      return attached.error();
    }
  }
  return Ok{};
}

// ---- status ----

PortStatus Port::status() const {
  PortStatus status;
  status.config = config_;
  constexpr std::array<const char*, 3> kStates = {"waiting", "connected", "running"};
  status.state = kStates[static_cast<std::size_t>(metrics_->session.state.load(std::memory_order_relaxed))];
  status.tap = tap_.name();
  status.ifindex = tap_.ifindex();
  status.link_up = tap_.up();
  status.features = acknowledged_;
  status.submit = lanes_[0].pair->backend().method();
  status.submit_reason = lanes_[0].pair->backend().method_reason();
  status.program = program_->current();
  status.program_stats = program_->program_stats();
  for (unsigned queue = 0; queue < lanes_.size(); ++queue) {
    const Lane& lane = lanes_[queue];
    const auto& metrics = metrics_->queues[queue];
    for (const unsigned direction : {kFromGuest, kToGuest}) {
      const auto& counters = direction == kFromGuest ? metrics.from_guest : metrics.to_guest;
      QueueStatus entry;
      entry.queue = queue;
      entry.direction = direction == kFromGuest ? "from_guest" : "to_guest";
      entry.running = lane.ring_size[direction] != 0 && !(direction == kFromGuest && lane.discards);
      entry.broken = direction == kFromGuest ? lane.pair->from_guest_broken() : lane.pair->to_guest_broken();
      entry.ring_size = lane.ring_size[direction];
      entry.worker = lane.worker->index();
      entry.frames_per_second = (direction == kFromGuest ? metrics.from_guest_fps : metrics.to_guest_fps).load();
      entry.frames = counters.frames.read();
      entry.bytes = counters.bytes.read();
      entry.batches = counters.batches.read();
      entry.kicks = counters.kicks.read();
      entry.calls = counters.calls.read();
      entry.calls_suppressed = counters.calls_suppressed.read();
      entry.syscalls = counters.syscalls.read();
      entry.ring_full = counters.ring_full.read();
      entry.native = counters.native.read();
      entry.generic = counters.generic.read();
      for (const Counter& drops : counters.drops) {
        entry.drops.push_back(drops.read());
      }
      status.queues.push_back(std::move(entry));
    }
  }
  return status;
}

}  // namespace vxdp
