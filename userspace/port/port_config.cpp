// SPDX-License-Identifier: Apache-2.0
#include "vxdp/port/port_config.hpp"

#include <fmt/core.h>
#include <net/if.h>
#include <sys/un.h>

#include <algorithm>

#include "vxdp/base/mac.hpp"
#include "vxdp/packet/batch.hpp"
#include "vxdp/port/port_manager.hpp"

namespace vxdp {
namespace {

constexpr std::size_t kNameBytes = 32;
constexpr std::size_t kSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;
constexpr unsigned kMaxQueuePairs = 16;
constexpr unsigned kMaxBusyPollUs = 1'000'000;

bool name_like(const std::string& text, std::size_t limit) {
  return !text.empty() && text.size() <= limit && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
                  c == '-';
         });
}

}  // namespace

Result<> check(const PortConfig& config) {
  if (!name_like(config.name, kNameBytes)) {
    return invalid(
        fmt::format("name \"{}\" must have 1 to {} of the characters A-Z a-z 0-9 . _ -", config.name, kNameBytes));
  }
  const auto in_port = [&config](std::string what) { return invalid(fmt::format("port {}: {}", config.name, what)); };
  if (config.socket.empty()) {
    return in_port("socket is missing");
  }
  if (config.socket.size() > kSocketPathBytes) {
    return in_port(
        fmt::format("socket path has {} bytes, the kernel allows {}", config.socket.size(), kSocketPathBytes));
  }
  if (!config.tap.empty() && !config.tap_fds.empty()) {
    return in_port("tap and tap-fd exclude each other");
  }
  if (config.tap_fds.empty() && !name_like(config.tap, IFNAMSIZ - 1)) {
    return in_port(
        fmt::format("tap \"{}\" must have 1 to {} of the characters A-Z a-z 0-9 . _ -", config.tap, IFNAMSIZ - 1));
  }
  if (config.queues < 1 || config.queues > kMaxQueuePairs) {
    return in_port(fmt::format("queues={} is not within 1 to {}", config.queues, kMaxQueuePairs));
  }
  if (!config.tap_fds.empty() && config.tap_fds.size() != config.queues) {
    return in_port(
        fmt::format("tap-fd names {} descriptor(s) for {} queue pair(s)", config.tap_fds.size(), config.queues));
  }
  if (config.batch < 1 || config.batch > Batch::kFrames) {
    return in_port(fmt::format("batch={} is not within 1 to {}", config.batch, Batch::kFrames));
  }
  constexpr unsigned kSmallestMtu = 68;  // RFC 791
  if (config.mtu && *config.mtu < kSmallestMtu) {
    return in_port(fmt::format("mtu={} is not within {} to 65535", *config.mtu, kSmallestMtu));
  }
  if (config.busy_poll_us > kMaxBusyPollUs) {
    return in_port(fmt::format("busy-poll-us={} is not within 0 to {}", config.busy_poll_us, kMaxBusyPollUs));
  }
  if (!config.mac.empty()) {
    const auto mac = parse_mac(config.mac);
    if (!mac) {
      return in_port("mac " + mac.error().what);
    }
    if (((*mac)[0] & 1) != 0) {
      return in_port(fmt::format("mac {} is a group address", config.mac));
    }
  }
  if (config.xdp == "redirect" && config.redirect_to.empty()) {
    return in_port("xdp=redirect needs redirect-to=PORT or redirect-to=INTERFACE");
  }
  return Ok{};
}

}  // namespace vxdp
