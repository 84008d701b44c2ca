// SPDX-License-Identifier: Apache-2.0
#include "guest/guest_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "guest/run.hpp"

namespace vxdp {
namespace {

/// What the command line says, before it is made sense of.
struct CommandLine {
  GuestOptions guest;
  std::uint64_t send_frames = 0;
  unsigned ring_size = 256;
  int mergeable = 0;  // -1 no, 0 as offered, 1 yes
  int event_idx = 0;
  double timeout_seconds = 5;
  std::string source_mac, destination_mac, source_ip, destination_ip;
  bool gso = false;
  std::uint16_t segment_bytes = 1448;
  bool json = false;
  const CLI::Option* send = nullptr;
  const CLI::Option* seconds = nullptr;
  const CLI::Option* rate = nullptr;
};

double millions_a_second(std::uint64_t frames, double seconds) {
  return seconds > 0 ? static_cast<double>(frames) / seconds / 1e6 : 0;
}

void print_json(const GuestReport& report) {
  const CheckCounts& checked = report.checked;
  nlohmann::ordered_json json = {
      {"sent", report.sent},
      {"acknowledged", report.acknowledged},
      {"sent_bytes", report.sent_bytes},
      {"send_seconds", report.send_seconds},
      {"send_mpps", millions_a_second(report.acknowledged, report.send_seconds)},
      {"received", report.received},
      {"received_bytes", report.received_bytes},
      {"receive_seconds", report.receive_seconds},
      {"receive_mpps", millions_a_second(report.received, report.receive_seconds)},
      {"kicks", report.kicks},
      {"wakeups", report.wakeups},
      {"features", fmt::format("{:#x}", report.features)},
      {"verify",
       {{"good", checked.good},
        {"lost", checked.lost},
        {"duplicated", checked.duplicated},
        {"reordered", checked.reordered},
        {"corrupted", checked.corrupted},
        {"bad_checksum", checked.bad_checksum},
        {"bad_header", checked.bad_header},
        {"foreign", checked.foreign}}},
      {"fault", report.fault},
  };
  fmt::print("{}\n", json.dump(2));
}

void print_text(const GuestReport& report, const GuestOptions& options) {
  if (options.send) {
    fmt::print("sent          {} frames\n", report.sent);
    fmt::print("acknowledged  {} frames, {} bytes, {:.3f} s, {:.3f} Mpps, {} kicks\n", report.acknowledged,
               report.sent_bytes, report.send_seconds, millions_a_second(report.acknowledged, report.send_seconds),
               report.kicks);
  }
  if (options.receive) {
    fmt::print("received      {} frames, {} bytes, {:.3f} s, {:.3f} Mpps\n", report.received, report.received_bytes,
               report.receive_seconds, millions_a_second(report.received, report.receive_seconds));
  }
  if (options.verify) {
    const CheckCounts& checked = report.checked;
    fmt::print(
        "verified      {} good, {} lost, {} duplicated, {} reordered, {} corrupted, {} bad checksum, {} bad header, "
        "{} foreign\n",
        checked.good, checked.lost, checked.duplicated, checked.reordered, checked.corrupted, checked.bad_checksum,
        checked.bad_header, checked.foreign);
  }
  fmt::print("result        {}\n", report.fault.empty() ? "good" : report.fault);
}

template <typename T>
Result<> parse_if_given(const std::string& text, Result<T> (*parse)(const std::string&), T& value) {
  if (text.empty()) {
    return Ok{};
  }
  const Result<T> parsed = parse(text);
  if (!parsed) {
    return parsed.error();
  }
  value = *parsed;
  return Ok{};
}

Result<GuestOptions> make_sense(const CommandLine& line) {
  GuestOptions options = line.guest;
  options.send = line.send->count() > 0 || line.rate->count() > 0 || (line.seconds->count() > 0 && !options.receive);
  if (line.send->count() > 0) {
    options.send_frames = line.send_frames;
  }
  if (line.seconds->count() > 0 && !(options.seconds > 0)) {
    return invalid("--seconds must be more than 0");
  }
  if (!(line.timeout_seconds > 0) || line.timeout_seconds > 1e6) {
    return invalid("--timeout must be more than 0 seconds");
  }
  options.limit = std::chrono::milliseconds(static_cast<std::int64_t>(line.timeout_seconds * 1e3));
  if (line.ring_size > 32768) {
    return invalid(
        fmt::format("a ring of {} descriptors is not possible: use a power of two, 8 to 32768", line.ring_size));
  }
  options.ring_size = static_cast<std::uint16_t>(line.ring_size);
  if (line.mergeable != 0) {
    options.mergeable = line.mergeable > 0;
  }
  if (line.event_idx != 0) {
    options.event_idx = line.event_idx > 0;
  }
  FrameSpec& frame = options.frame;
  if (Result<> r = parse_if_given(line.source_mac, parse_mac, frame.source_mac); !r) {
    return r.error();
  }
  if (Result<> r = parse_if_given(line.destination_mac, parse_mac, frame.destination_mac); !r) {
    return r.error();
  }
  if (Result<> r = parse_if_given(line.source_ip, parse_ipv4, frame.source_ip); !r) {
    return r.error();
  }
  if (Result<> r = parse_if_given(line.destination_ip, parse_ipv4, frame.destination_ip); !r) {
    return r.error();
  }
  if (line.gso) {
    if (line.segment_bytes == 0) {
      return invalid("--segment-bytes must be more than 0");
    }
    frame.segment_bytes = line.segment_bytes;
  }
  return options;
}

int run(const CommandLine& line) {
  const Result<GuestOptions> options = make_sense(line);
  const Result<GuestReport> report = options ? run_guest(*options) : Result<GuestReport>(options.error());
  if (!report) {
    fmt::print(stderr, "{}\n", report.error().what);
    return 2;
  }
  if (line.json) {
    print_json(*report);
  } else {
    print_text(*report, *options);
  }
  return report->fault.empty() ? 0 : 1;
}

}  // namespace

void add_guest_command(CLI::App& app, int& exit_code) {
  static const std::map<std::string, HeaderLayout> kLayouts = {
      {"inline", HeaderLayout::kInline}, {"separate", HeaderLayout::kSeparate}, {"split", HeaderLayout::kSplit}};
  static const std::map<std::string, FrameKind> kKinds = {
      {"raw", FrameKind::kRaw}, {"udp", FrameKind::kUdp}, {"tcp", FrameKind::kTcp}};

  CLI::App* guest = app.add_subcommand("guest", "Be the guest of a vhost-user back end: send and receive frames");
  const auto line = std::make_shared<CommandLine>();  // the callback keeps it
  GuestOptions& options = line->guest;
  FrameSpec& frame = options.frame;

  guest->add_option("--socket", options.socket, "vhost-user socket")->required();
  guest->add_flag("--listen", options.listen, "Wait for the back end to connect, instead of connecting to it");
  guest->add_option("--timeout", line->timeout_seconds, "Seconds the back end may take to answer or to make progress")
      ->capture_default_str();

  line->send = guest->add_option("--send", line->send_frames, "Frames to send, over all queues, spread evenly");
  line->seconds = guest->add_option("--seconds", options.seconds,
                                    "Seconds to send; with --receive and neither --send nor --rate: to receive");
  line->rate = guest->add_option("--rate", options.rate, "Frames a second over all queues; 0 = as fast as possible");
  guest->add_option("--bad-every", options.bad_every, "Give one of so many frames a header that must be refused");
  guest->add_flag("--receive", options.receive, "Receive; without --seconds, --send or --expect until Ctrl-C");
  guest->add_flag("--verify", options.verify, "Follow the sequence numbers in received frames and check their bytes");
  guest->add_option("--expect", options.expect, "Good frames to receive; fewer is a fault");

  guest->add_option("--bytes", frame.bytes, "Length of a frame, 14 to 65535")->capture_default_str();
  guest->add_option("--frame", frame.kind, "raw, udp or tcp")
      ->transform(CLI::CheckedTransformer(kKinds))
      ->option_text("KIND [raw]");
  guest->add_option("--src-mac", line->source_mac, "Source MAC address [02:00:00:00:00:01]");
  guest->add_option("--dst-mac", line->destination_mac, "Destination MAC address [02:00:00:00:00:02]");
  guest->add_option("--ethertype", frame.ethertype, "Of raw frames [0x88b5: local experimental]");
  guest->add_option("--src-ip", line->source_ip, "Source IPv4 address [10.0.0.1]");
  guest->add_option("--dst-ip", line->destination_ip, "Destination IPv4 address [10.0.0.2]");
  guest->add_option("--src-port", frame.source_port, "Source port")->capture_default_str();
  guest->add_option("--dst-port", frame.destination_port, "Destination port")->capture_default_str();
  guest->add_flag("--csum", frame.partial_checksum, "Leave the UDP or TCP checksum to the back end");
  guest->add_flag("--gso", line->gso, "Send TCP super-frames that the back end cuts (TSO)");
  guest->add_option("--segment-bytes", line->segment_bytes, "TCP payload of a segment with --gso")
      ->capture_default_str();

  guest->add_option("--queues", options.queues, "Queue pairs, one thread each")->capture_default_str();
  guest->add_option("--ring-size", line->ring_size, "Descriptors in a ring, a power of two")->capture_default_str();
  guest->add_option("--layout", options.layout, "Header and frame in descriptors: inline, separate or split")
      ->transform(CLI::CheckedTransformer(kLayouts))
      ->option_text("LAYOUT [inline]");
  guest->add_flag("--mergeable,!--no-mergeable", line->mergeable, "Frames over several receive buffers [if offered]");
  guest->add_flag("--event-idx,!--no-event-idx", line->event_idx, "Kicks and calls by index [if offered]");
  guest->add_flag("--indirect", options.indirect, "Each chain in a table of its own");
  guest->add_flag("--receive-offloads", options.receive_offloads, "Accept unfinished checksums and TCP super-frames");
  guest->add_option("--buffer-bytes", options.buffer_bytes, "Frame bytes in a receive buffer [as needed]");
  guest->add_option("--regions", options.regions, "Memory regions shown to the back end")->capture_default_str();

  guest->add_flag("--poll", options.busy_poll, "Never sleep");
  guest->add_option("--cpu", options.cpus, "CPUs for the queue pairs' threads, in turn")->delimiter(',');
  guest->add_flag("--json", line->json, "Print the summary as JSON");
  guest->callback([line, &exit_code] { exit_code = run(*line); });
}

}  // namespace vxdp
