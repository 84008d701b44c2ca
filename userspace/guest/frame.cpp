// SPDX-License-Identifier: Apache-2.0
#include "guest/frame.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace vxdp {
namespace {

constexpr std::uint32_t kEthernetBytes = 14;
constexpr std::uint32_t kIpBytes = 20;
constexpr std::uint32_t kTransportOffset = kEthernetBytes + kIpBytes;
constexpr std::uint16_t kEthertypeIpv4 = 0x0800;

template <typename T>
T read_as(std::span<const std::byte> bytes, std::size_t offset) noexcept {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
void write_as(std::span<std::byte> bytes, std::size_t offset, const T& value) noexcept {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

/// The sum of the IPv4 pseudo-header of UDP or TCP; addresses as they lie in the frame.
std::uint32_t pseudo_sum(std::span<const std::byte> frame, std::uint8_t protocol,
                         std::size_t transport_bytes) noexcept {
  const std::uint32_t addresses = internet_sum(frame.subspan(kEthernetBytes + 12, 8));
  return addresses + htons(protocol) + htons(static_cast<std::uint16_t>(transport_bytes));
}

using PatternTable = std::array<std::byte, 65535 + 256>;

PatternTable make_pattern() noexcept {
  PatternTable table;
  std::uint32_t state = 1;
  for (std::byte& b : table) {
    state = state * 1664525U + 1013904223U;  // a linear congruential generator: no short period
    b = static_cast<std::byte>(state >> 24);
  }
  return table;
}

}  // namespace

Result<std::uint32_t> parse_ipv4(const std::string& text) {
  in_addr address{};
  if (::inet_pton(AF_INET, text.c_str(), &address) != 1) {
    return invalid(fmt::format("\"{}\" is not an IPv4 address like 10.0.0.1", text));
  }
  return ntohl(address.s_addr);
}

std::uint32_t internet_sum(std::span<const std::byte> bytes, std::uint32_t sum) noexcept {
  std::uint64_t wide = sum;
  std::size_t i = 0;
  for (; i + 4 <= bytes.size(); i += 4) {
    wide += read_as<std::uint32_t>(bytes, i);  // RFC 1071: wider words give the same folded sum
  }
  if (i + 2 <= bytes.size()) {
    wide += read_as<std::uint16_t>(bytes, i);
    i += 2;
  }
  if (i < bytes.size()) {
    wide += static_cast<std::uint8_t>(bytes[i]);
  }
  wide = (wide & 0xffffffff) + (wide >> 32);
  wide = (wide & 0xffff) + (wide >> 16);
  return static_cast<std::uint32_t>(wide);
}

std::uint16_t internet_fold(std::uint32_t sum) noexcept {
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum + (sum >> 16));
}

std::uint16_t frame_tail(std::uint64_t sequence) noexcept {
  const std::uint64_t sum =
      (sequence & 0xffff) + (sequence >> 16 & 0xffff) + (sequence >> 32 & 0xffff) + (sequence >> 48);
  return static_cast<std::uint16_t>(~internet_fold(static_cast<std::uint32_t>(sum)));
}

std::span<const std::byte> frame_pattern(std::uint8_t key, std::size_t bytes) noexcept {
  static const PatternTable kTable = make_pattern();
  return std::span(kTable).subspan(key, bytes);
}

Result<FrameTemplate> FrameTemplate::create(const FrameSpec& spec) {
  FrameTemplate result;
  result.spec_ = spec;
  const std::uint32_t transport_bytes = spec.kind == FrameKind::kUdp ? sizeof(udphdr) : sizeof(tcphdr);
  result.payload_offset_ = spec.kind == FrameKind::kRaw ? kEthernetBytes : kTransportOffset + transport_bytes;
  if (spec.bytes < result.payload_offset_ || spec.bytes > 65535) {
    return invalid(
        fmt::format("a frame of {} bytes is not possible: use {} to 65535", spec.bytes, result.payload_offset_));
  }
  if (spec.kind == FrameKind::kRaw && spec.partial_checksum) {
    return invalid("a raw frame has no checksum to leave unfinished: use UDP or TCP frames");
  }
  if (spec.kind != FrameKind::kTcp && spec.segment_bytes != 0) {
    return invalid("only TCP frames can be sent as super-frames");
  }
  const std::uint32_t stamp_end = result.payload_offset_ + sizeof(FrameStamp);
  if (spec.bytes >= stamp_end + kFrameTailBytes + 1) {  // + 1: the tail's place may move down to an even offset
    result.sequence_offset_ = result.payload_offset_ + offsetof(FrameStamp, sequence);
    result.tail_offset_ = spec.segment_bytes == 0 ? (spec.bytes - kFrameTailBytes) & ~1U : 0;
  }
  if (spec.partial_checksum || spec.segment_bytes != 0) {
    result.header_.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    result.header_.hdr.csum_start = kTransportOffset;
    result.header_.hdr.csum_offset = spec.kind == FrameKind::kUdp ? offsetof(udphdr, uh_sum) : offsetof(tcphdr, th_sum);
  }
  if (spec.segment_bytes != 0) {
    result.header_.hdr.gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
    result.header_.hdr.gso_size = spec.segment_bytes;
    result.header_.hdr.hdr_len = static_cast<std::uint16_t>(result.payload_offset_);
  }
  return result;
}

std::vector<std::byte> FrameTemplate::frame(std::uint16_t queue, std::uint8_t key) const {
  std::vector<std::byte> bytes(spec_.bytes);
  const std::span<std::byte> frame(bytes);
  write_as(frame, 0, spec_.destination_mac);
  write_as(frame, 6, spec_.source_mac);
  write_as(frame, 12, htons(spec_.kind == FrameKind::kRaw ? spec_.ethertype : kEthertypeIpv4));

  const std::span<std::byte> payload = frame.subspan(payload_offset_);
  const std::span<const std::byte> pattern = frame_pattern(key, payload.size());
  std::copy(pattern.begin(), pattern.end(), payload.begin());
  FrameStamp stamp;
  stamp.queue = queue;
  stamp.key = key;
  stamp.flags = tail_offset_ == 0 ? FrameStamp::kNoTail : std::uint8_t{0};
  // A frame too short for the whole stamp gets its beginning.
  std::memcpy(payload.data(), &stamp, std::min(payload.size(), sizeof stamp));
  if (tail_offset_ != 0) {
    write_as(frame, tail_offset_, frame_tail(0));
  }
  if (spec_.kind == FrameKind::kRaw) {
    return bytes;
  }

  const auto protocol = static_cast<std::uint8_t>(spec_.kind == FrameKind::kUdp ? IPPROTO_UDP : IPPROTO_TCP);
  const std::size_t transport_bytes = spec_.bytes - kTransportOffset;
  iphdr ip{};
  ip.version = 4;
  ip.ihl = 5;
  ip.tot_len = htons(static_cast<std::uint16_t>(spec_.bytes - kEthernetBytes));
  ip.frag_off = htons(IP_DF);
  ip.ttl = 64;
  ip.protocol = protocol;
  ip.saddr = htonl(spec_.source_ip);
  ip.daddr = htonl(spec_.destination_ip);
  ip.check = static_cast<std::uint16_t>(~internet_fold(internet_sum(std::as_bytes(std::span(&ip, 1)))));
  write_as(frame, kEthernetBytes, ip);

  std::size_t checksum_offset = kTransportOffset;
  if (spec_.kind == FrameKind::kUdp) {
    udphdr udp{};
    udp.uh_sport = htons(spec_.source_port);
    udp.uh_dport = htons(spec_.destination_port);
    udp.uh_ulen = htons(static_cast<std::uint16_t>(transport_bytes));
    write_as(frame, kTransportOffset, udp);
    checksum_offset += offsetof(udphdr, uh_sum);
  } else {
    tcphdr tcp{};
    tcp.th_sport = htons(spec_.source_port);
    tcp.th_dport = htons(spec_.destination_port);
    tcp.th_seq = tcp.th_ack = htonl(1);
    tcp.th_off = sizeof(tcphdr) / 4;
    tcp.th_flags = TH_ACK | TH_PUSH;
    tcp.th_win = htons(65535);
    write_as(frame, kTransportOffset, tcp);
    checksum_offset += offsetof(tcphdr, th_sum);
  }
  const std::uint32_t pseudo = pseudo_sum(frame, protocol, transport_bytes);
  if (header_.hdr.flags != 0) {
    write_as(frame, checksum_offset, internet_fold(pseudo));  // virtio 1.2, 5.1.6.2: the device adds the rest
  } else {
    const auto sum = static_cast<std::uint16_t>(~internet_fold(internet_sum(frame.subspan(kTransportOffset), pseudo)));
    write_as(frame, checksum_offset, sum == 0 ? std::uint16_t{0xffff} : sum);
  }
  return bytes;
}

FrameVerdict judge_frame(std::span<const std::byte> frame, bool checksum_unfinished) noexcept {
  const auto stamp_at = [&](std::size_t offset) -> std::optional<FrameStamp> {
    if (frame.size() < offset + sizeof(FrameStamp)) {
      return std::nullopt;
    }
    const auto stamp = read_as<FrameStamp>(frame, offset);
    return stamp.magic == FrameStamp::kMagic ? std::optional(stamp) : std::nullopt;
  };
  std::size_t payload = kEthernetBytes;
  std::optional<FrameStamp> stamp = stamp_at(payload);
  bool checksum_good = true;
  if (!stamp && frame.size() >= kTransportOffset + sizeof(udphdr) &&
      read_as<std::uint16_t>(frame, 12) == htons(kEthertypeIpv4)) {
    const auto ip = read_as<iphdr>(frame, kEthernetBytes);
    const std::size_t total = kEthernetBytes + ntohs(ip.tot_len);
    if (ip.ihl != 5 || (ip.protocol != IPPROTO_UDP && ip.protocol != IPPROTO_TCP) || total < kTransportOffset) {
      return {};
    }
    payload = kTransportOffset + (ip.protocol == IPPROTO_UDP ? sizeof(udphdr) : sizeof(tcphdr));
    stamp = stamp_at(payload);
    if (!stamp) {
      return {};
    }
    if (total > frame.size()) {
      return {FrameVerdict::kCorrupted, stamp->queue, 0};
    }
    frame = frame.first(total);  // what follows is padding
    const std::span<const std::byte> transport = frame.subspan(kTransportOffset);
    const bool none = ip.protocol == IPPROTO_UDP && read_as<std::uint16_t>(transport, offsetof(udphdr, uh_sum)) == 0;
    checksum_good = checksum_unfinished || none ||
                    internet_fold(internet_sum(transport, pseudo_sum(frame, ip.protocol, transport.size()))) == 0xffff;
  }
  if (!stamp) {
    return {};
  }
  if (!checksum_good) {
    return {FrameVerdict::kBadChecksum, stamp->queue, 0};
  }
  if ((stamp->flags & FrameStamp::kNoTail) == 0) {
    const std::size_t begin = payload + sizeof(FrameStamp);
    const std::size_t tail = (frame.size() - kFrameTailBytes) & ~std::size_t{1};
    if (tail < begin) {
      return {FrameVerdict::kCorrupted, stamp->queue, 0};
    }
    const auto pattern = frame_pattern(stamp->key, frame.size() - payload).subspan(sizeof(FrameStamp));
    if (read_as<std::uint16_t>(frame, tail) != frame_tail(stamp->sequence) ||
        std::memcmp(frame.data() + begin, pattern.data(), tail - begin) != 0) {
      return {FrameVerdict::kCorrupted, stamp->queue, 0};
    }
  }
  return {FrameVerdict::kGood, stamp->queue, stamp->sequence};
}

}  // namespace vxdp
