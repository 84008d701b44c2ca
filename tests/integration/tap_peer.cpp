// SPDX-License-Identifier: Apache-2.0
// The host's end of a TAP in tests: sends numbered frames into it, and follows the numbers of those that come back.
//   tap_peer INTERFACE --send N [--flows F] [--rate R] [--bytes B] [--receive M] [--seconds T]
// Sends N frames in all, spread over F UDP flows, each with its own sequence, and receives until M frames came or
// nothing has come for T seconds. Prints one line; exit status 0 only if M good frames and no fault were seen.
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "guest/checker.hpp"
#include "guest/frame.hpp"
#include "vxdp/base/fd.hpp"

namespace vxdp {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string interface;
  std::uint64_t send = 0;
  std::uint64_t receive = 0;
  unsigned flows = 1;
  double rate = 50'000;
  std::uint32_t bytes = 64;
  double seconds = 3;
};

Fd open_socket(const std::string& interface) {
  Fd socket(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  constexpr int kReceiveBytes = 512 << 20;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kReceiveBytes, sizeof kReceiveBytes);
  constexpr int kOn = 1;
  (void)::setsockopt(socket.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &kOn, sizeof kOn);
  if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    std::perror(interface.c_str());
    std::exit(2);
  }
  return socket;
}

std::uint64_t send_frames(const Options& options, int socket) {
  std::vector<FrameTemplate> templates;
  std::vector<std::vector<std::byte>> frames;
  for (unsigned flow = 0; flow < options.flows; ++flow) {
    FrameSpec spec;
    spec.kind = FrameKind::kUdp;
    spec.bytes = options.bytes;
    spec.source_port = static_cast<std::uint16_t>(5000 + flow * 7);
    templates.push_back(*FrameTemplate::create(spec));
    frames.push_back(templates.back().frame(static_cast<std::uint16_t>(flow), static_cast<std::uint8_t>(flow)));
  }
  const auto begin = Clock::now();
  std::uint64_t sent = 0;
  while (sent < options.send) {
    const double due = std::chrono::duration<double>(Clock::now() - begin).count() * options.rate;
    if (static_cast<double>(sent) >= due) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      continue;
    }
    const std::uint64_t sequence = sent / options.flows;
    const unsigned flow = static_cast<unsigned>(sent % options.flows);
    auto& frame = frames[flow];
    const std::uint16_t tail = frame_tail(sequence);
    std::memcpy(&frame[templates[flow].sequence_offset()], &sequence, sizeof sequence);
    std::memcpy(&frame[templates[flow].tail_offset()], &tail, sizeof tail);
    if (::send(socket, frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size())) {
      ++sent;
    } else if (errno != ENOBUFS && errno != EINTR) {
      std::perror("send");
      break;
    }
  }
  return sent;
}

CheckCounts receive_frames(const Options& options, int socket) {
  SequenceLog log;
  FrameChecker checker(log);
  std::vector<std::byte> buffer(70'000);
  auto last = Clock::now();
  while (log.good() < options.receive && Clock::now() - last < std::chrono::duration<double>(options.seconds)) {
    pollfd poll{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&poll, 1, 50) <= 0) {
      continue;
    }
    last = Clock::now();
    for (ssize_t got = 1; got > 0;) {
      got = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got > 0) {
        const std::span<const std::byte> frame(buffer.data(), static_cast<std::size_t>(got));
        checker.check({&frame, 1}, false);
      }
    }
    checker.flush();
  }
  CheckCounts counts = checker.counts();
  counts.add(log.counts());
  return counts;
}

int run(const Options& options) {
  const Fd socket = open_socket(options.interface);
  std::uint64_t sent = 0;
  std::thread sender([&] { sent = send_frames(options, socket.get()); });
  const CheckCounts counts = receive_frames(options, socket.get());
  sender.join();
  std::printf("sent %lu good %lu lost %lu duplicated %lu reordered %lu corrupted %lu bad_checksum %lu foreign %lu\n",
              sent, counts.good, counts.lost, counts.duplicated, counts.reordered, counts.corrupted,
              counts.bad_checksum, counts.foreign);
  return sent == options.send && counts.good == options.receive && !counts.fault() ? 0 : 1;
}

}  // namespace
}  // namespace vxdp

int main(int argc, char** argv) {
  vxdp::Options options;
  CLI::App app("The host's end of a TAP");
  app.add_option("interface", options.interface)->required();
  app.add_option("--send", options.send);
  app.add_option("--receive", options.receive);
  app.add_option("--flows", options.flows);
  app.add_option("--rate", options.rate, "frames a second");
  app.add_option("--bytes", options.bytes);
  app.add_option("--seconds", options.seconds, "without a frame, then give up");
  CLI11_PARSE(app, argc, argv);
  return vxdp::run(options);
}
