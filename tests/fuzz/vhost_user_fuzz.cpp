// SPDX-License-Identifier: Apache-2.0
// A front-end made of fuzz bytes: messages that are mostly plausible, whole, cut or glued, with any number of
// descriptors, against a real Session. The device checks that the session keeps its contract.
#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "unit/vhost_user/front_end.hpp"
#include "vxdp/base/log.hpp"
#include "vxdp/base/virtio_uapi.hpp"
#include "vxdp/vhost_user/session.hpp"

namespace vxdp::testing {
namespace {

constexpr std::uint64_t kFva = 0x7f0000000000;
constexpr std::uint64_t kGuestBytes = 0x10000;
constexpr unsigned kVrings = 4;
constexpr int kMaxMessages = 200;

void check(bool held) {
  if (!held) {
    std::abort();
  }
}

class CheckingDevice : public DeviceListener {
 public:
  explicit CheckingDevice(FuzzedDataProvider& data) : data_(data) {}
  ~CheckingDevice() override { check(running_.empty()); }

  [[nodiscard]] std::uint64_t features() const override {
    return feature_bit(VIRTIO_F_VERSION_1) | feature_bit(VIRTIO_NET_F_MQ) | feature_bit(kVhostUserFProtocolFeatures);
  }
  [[nodiscard]] unsigned vring_limit() const override { return kVrings; }
  [[nodiscard]] std::uint16_t mtu() const override { return 0; }
  Result<> set_features(std::uint64_t acknowledged) override {
    check(running_.empty());
    check((acknowledged & ~features()) == 0);
    acknowledged_ = acknowledged;
    return sometimes_refused();
  }
  Result<> set_memory(std::shared_ptr<const GuestMemory> memory) override {
    check(running_.empty());
    check(memory != nullptr && !memory->regions().empty());
    memory_ = std::move(memory);
    return sometimes_refused();
  }
  Result<> start_vring(unsigned index, VringConfig config) override {
    check(index < kVrings && !running_.contains(index));
    check(index < 2 || (acknowledged_ & feature_bit(VIRTIO_NET_F_MQ)) != 0);
    check(config.memory == memory_ && config.features == acknowledged_);
    check(config.size != 0 && config.size <= 32768 && (config.size & (config.size - 1)) == 0);
    touch(*memory_, config.desc_fva, config.size * 16UL, 16);
    touch(*memory_, config.avail_fva, config.size * 2UL + 6, 2);
    touch(*memory_, config.used_fva, config.size * 8UL + 6, 4);
    if (stopped_at_.contains(index)) {
      check(config.next_avail == stopped_at_[index] || base_may_change_);
    }
    if (auto refused = sometimes_refused(); !refused) {
      return refused;
    }
    running_[index] = std::move(config);
    return Ok{};
  }
  std::uint16_t stop_vring(unsigned index) override {
    check(running_.contains(index));
    stopped_at_[index] = static_cast<std::uint16_t>(running_[index].next_avail + 3);
    running_.erase(index);
    return stopped_at_[index];
  }
  Result<> set_mtu(std::uint16_t mtu) override {
    check(mtu >= 68);
    return sometimes_refused();
  }
  void send_rarp(const std::uint8_t* mac) override { rarp_sum_ = rarp_sum_ + mac[0] + mac[5]; }

  void base_may_change() { base_may_change_ = true; }

 private:
  // Reads both ends: the sanitizer sees an address that is not the guest's.
  void touch(const GuestMemory& memory, std::uint64_t fva, std::uint64_t bytes, std::uintptr_t alignment) {
    const auto* part = memory.translate_fva(fva, bytes);
    check(part != nullptr && reinterpret_cast<std::uintptr_t>(part) % alignment == 0);
    touched_ = static_cast<unsigned char>(part[0]) + static_cast<unsigned char>(part[bytes - 1]);
  }
  Result<> sometimes_refused() {
    return data_.ConsumeIntegral<std::uint8_t>() == 255 ? Result<>(invalid("refused")) : Result<>(Ok{});
  }

  FuzzedDataProvider& data_;
  std::map<unsigned, VringConfig> running_;
  std::map<unsigned, std::uint16_t> stopped_at_;
  std::shared_ptr<const GuestMemory> memory_;
  std::uint64_t acknowledged_ = 0;
  bool base_may_change_ = false;
  volatile unsigned rarp_sum_ = 0;
  volatile unsigned touched_ = 0;
};

class FuzzedFrontEnd {
 public:
  FuzzedFrontEnd(FuzzedDataProvider& data, FrontEnd& socket, CheckingDevice& device, EventLoop& loop, int guest,
                 int event)
      : data_(data), socket_(socket), device_(device), loop_(loop), guest_(guest), event_(event) {}

  /// Begins with some vrings that run, because few byte strings say all that this takes.
  void begin() {
    const auto vrings = data_.ConsumeIntegralInRange<unsigned>(0, kVrings);
    if (vrings != 0) {
      send(VhostUserRequest::kSetFeatures, {bytes_of(device_.features()), {}});
      send(VhostUserRequest::kSetProtocolFeatures, {bytes_of(feature_bit(kVhostUserProtocolReplyAck)), {}});
      send(VhostUserRequest::kSetMemTable,
           {bytes_of(VhostUserMemoryTable{1, 0}, VhostUserMemoryRegion{0, kGuestBytes, kFva, 0}), {guest_}});
    }
    for (unsigned vring = 0; vring < vrings; ++vring) {
      const std::uint64_t at = kFva + vring * 0x4000;
      send(VhostUserRequest::kSetVringNum, {bytes_of(VhostUserVringState{vring, 256}), {}});
      send(VhostUserRequest::kSetVringAddr,
           {bytes_of(VhostUserVringAddr{vring, 0, at, at + 0x2000, at + 0x1000, 0}), {}});
      send(VhostUserRequest::kSetVringKick, {bytes_of(std::uint64_t{vring}), {event_}});
      send(VhostUserRequest::kSetVringEnable, {bytes_of(VhostUserVringState{vring, 1}), {}});
    }
    turn();
  }

 private:
  /// One turn: a few messages, or a part of one; then again in the loop's next turn, until the bytes are used up.
  void turn() {
    if (data_.remaining_bytes() == 0 || messages_ >= kMaxMessages) {
      socket_.close();
      return;
    }
    do {
      send_message();
    } while (data_.remaining_bytes() != 0 && data_.ConsumeBool());
    loop_.post([this] { turn(); });
  }

  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[data_.ConsumeIntegralInRange<std::size_t>(0, values.size() - 1)];
  }
  std::uint32_t index() {
    return data_.ConsumeIntegral<std::uint8_t>() < 250 ? data_.ConsumeIntegralInRange<std::uint32_t>(0, kVrings - 1)
                                                       : data_.ConsumeIntegral<std::uint32_t>();
  }
  std::uint64_t address() {
    return data_.ConsumeIntegral<std::uint8_t>() < 240
               ? kFva + 16 * data_.ConsumeIntegralInRange<std::uint64_t>(0, kGuestBytes / 16)
               : data_.ConsumeIntegral<std::uint64_t>();
  }

  struct Plausible {
    Bytes payload;
    std::vector<int> fds;
  };
  void send(VhostUserRequest request, const Plausible& message) { socket_.send(request, message.payload, message.fds); }
  Plausible plausible(VhostUserRequest request) {
    switch (request) {
      case VhostUserRequest::kSetFeatures:
        return {bytes_of(one_of<std::uint64_t>({0, feature_bit(VIRTIO_F_VERSION_1), device_.features(),
                                                device_.features() & ~feature_bit(kVhostUserFProtocolFeatures),
                                                feature_bit(VIRTIO_F_RING_PACKED)})),
                {}};
      case VhostUserRequest::kSetProtocolFeatures:
        return {bytes_of(one_of<std::uint64_t>({8, 8, 8, 0x1d, 0x1d, 0x1d, 0, 0xff})), {}};
      case VhostUserRequest::kSetMemTable:
        return memory_table();
      case VhostUserRequest::kSetVringNum:
        return {bytes_of(VhostUserVringState{index(), one_of<std::uint32_t>({1, 4, 4, 16, 64, 64, 128, 256, 256, 256,
                                                                             1024, 2048, 32768, 3, 0, 65536})}),
                {}};
      case VhostUserRequest::kSetVringBase:
        device_.base_may_change();
        return {
            bytes_of(VhostUserVringState{index(), data_.ConsumeIntegral<std::uint16_t>() +
                                                      (data_.ConsumeIntegral<std::uint8_t>() == 255 ? 65536U : 0U)}),
            {}};
      case VhostUserRequest::kGetVringBase:
        return {bytes_of(VhostUserVringState{index(), 0}), {}};
      case VhostUserRequest::kSetVringEnable:
        return {bytes_of(VhostUserVringState{index(), one_of<std::uint32_t>({1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2})}),
                {}};
      case VhostUserRequest::kSetVringAddr: {
        const auto desc = address();
        const auto avail = address();
        const auto used = address();
        return {bytes_of(VhostUserVringAddr{index(), 0, desc, used, avail, 0}), {}};
      }
      case VhostUserRequest::kSetVringKick:
      case VhostUserRequest::kSetVringCall:
      case VhostUserRequest::kSetVringErr:
        return data_.ConsumeBool() ? Plausible{bytes_of(std::uint64_t{index()}), {event_}}
                                   : Plausible{bytes_of(index() | kVhostUserVringNoFd), {}};
      case VhostUserRequest::kSendRarp:
      case VhostUserRequest::kNetSetMtu:
        return {bytes_of(data_.ConsumeIntegralInRange<std::uint64_t>(0, 70'000)), {}};
      default:
        return {};
    }
  }
  Plausible memory_table() {
    Plausible table;
    const auto regions = data_.ConsumeIntegralInRange<std::uint32_t>(1, 4);
    table.payload = bytes_of(VhostUserMemoryTable{regions, 0});
    const std::uint64_t bytes = kGuestBytes / regions;
    for (std::uint64_t i = 0; i < regions; ++i) {
      const std::uint64_t skew =
          data_.ConsumeIntegral<std::uint8_t>() < 230 ? 0 : data_.ConsumeIntegral<std::uint8_t>();
      const auto region = bytes_of(VhostUserMemoryRegion{i * bytes, bytes - skew, kFva + i * bytes, i * bytes + skew});
      table.payload.insert(table.payload.end(), region.begin(), region.end());
      table.fds.push_back(guest_);
    }
    return table;
  }

  void send_message() {
    ++messages_;
    const auto request = data_.ConsumeIntegralInRange<std::uint32_t>(0, 24);
    auto [payload, fds] = plausible(static_cast<VhostUserRequest>(request));
    std::uint32_t flags = kVhostUserVersion | (data_.ConsumeBool() ? kVhostUserNeedReply : 0);
    auto payload_bytes = static_cast<std::uint32_t>(payload.size());
    const auto spoil = data_.ConsumeIntegral<std::uint8_t>();
    if (spoil >= 250) {
      device_.base_may_change();  // bytes may be taken for any other message
    }
    switch (spoil) {
      case 250:
        payload = bytes_from(data_.ConsumeIntegralInRange<std::size_t>(0, 4097));
        payload_bytes = static_cast<std::uint32_t>(payload.size());
        break;
      case 251:
        fds.assign(data_.ConsumeIntegralInRange<std::size_t>(0, 12), data_.ConsumeBool() ? guest_ : event_);
        break;
      case 252:
        flags = data_.ConsumeIntegral<std::uint32_t>();
        break;
      case 253:
        payload_bytes = data_.ConsumeIntegral<std::uint32_t>();
        break;
      case 254:
        for (auto& byte : payload) {
          byte ^= std::byte{data_.ConsumeIntegral<std::uint8_t>()};
        }
        break;
      default:
        break;
    }
    Bytes message = bytes_of(VhostUserHeader{request, flags, payload_bytes});
    message.insert(message.end(), payload.begin(), payload.end());
    if (data_.ConsumeIntegral<std::uint8_t>() < 240) {
      socket_.send_raw(message, fds);
      return;
    }
    device_.base_may_change();
    // Cut in two; the rest comes in a later turn, or is glued to the next message.
    const auto cut = data_.ConsumeIntegralInRange<std::size_t>(1, message.size() - 1);
    socket_.send_raw(std::span(message).first(cut), fds);
    loop_.post([this, rest = Bytes(message.begin() + static_cast<std::ptrdiff_t>(cut), message.end())] {
      if (socket_.fd() >= 0) {
        socket_.send_raw(rest);
      }
    });
  }
  Bytes bytes_from(std::size_t count) {
    const auto raw = data_.ConsumeBytes<std::uint8_t>(count);
    Bytes bytes(raw.size());
    std::transform(raw.begin(), raw.end(), bytes.begin(), [](std::uint8_t byte) { return std::byte{byte}; });
    return bytes;
  }

  FuzzedDataProvider& data_;
  FrontEnd& socket_;
  CheckingDevice& device_;
  EventLoop& loop_;
  const int guest_;
  const int event_;
  int messages_ = 0;
};

/// Of the first 64; a run needs about 30.
int open_descriptors() {
  int open = 0;
  for (int fd = 0; fd < 64; ++fd) {
    open += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  }
  return open;
}

void run(FuzzedDataProvider& data, int guest, int event) {
  auto loop = EventLoop::create();
  std::array<int, 2> ends{};
  check(loop && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  FrontEnd socket{Fd(ends[0])};
  CheckingDevice device(data);
  SessionCounters counters;
  int closed = 0;
  auto session = Session::create("fuzz", Fd(ends[1]), **loop, device, counters, [&](const std::string& /*reason*/) {
    ++closed;
    (*loop)->stop();
  });
  check(static_cast<bool>(session));
  FuzzedFrontEnd front_end(data, socket, device, **loop, guest, event);
  (*loop)->post([&] { front_end.begin(); });
  (*loop)->run();
  check(closed == 1);
  check(counters.state.load() == static_cast<int>(SessionState::kConnected));
}

}  // namespace
}  // namespace vxdp::testing

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  return vxdp::configure_log("error", "text") ? 0 : 1;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace vxdp::testing;
  static const vxdp::Fd guest = make_memfd(kGuestBytes);
  static const vxdp::Fd event = make_eventfd();
  const auto before = open_descriptors();
  {
    FuzzedDataProvider data(bytes, size);
    run(data, guest.get(), event.get());
  }
  check(open_descriptors() == before);
  return 0;
}
