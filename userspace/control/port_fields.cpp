// SPDX-License-Identifier: Apache-2.0
#include "vxdp/control/port_fields.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>

namespace vxdp {
namespace {

constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;  // bytes
static_assert(kMaxSocketPath == 107);
constexpr unsigned long kMaxBusyPollUs = 1'000'000;

struct PortField {
  const char* name;
  const char* allowed;                                     // completes "... must be "
  bool (*set)(PortConfig& port, const std::string& text);  // false: not allowed
  std::string (*get)(const PortConfig& port);              // empty: not written
};

template <typename T>
bool set_number(T& field, const std::string& text, unsigned long low, unsigned long high) {
  const auto number = parse_number(text, low, high);
  if (number) {
    field = static_cast<T>(*number);
  }
  return number.has_value();
}

bool set_text(std::string& field, const std::string& text, std::size_t longest) {
  const bool allowed = !text.empty() && text.size() <= longest && text.find('\0') == std::string::npos;
  if (allowed) {
    field = text;
  }
  return allowed;
}

bool set_name(PortConfig& port, const std::string& text) {
  const bool allowed = std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
  return allowed && set_text(port.name, text, 32);
}

/// An interface name as the kernel accepts it. Source: dev_valid_name() in net/core/dev.c.
bool set_interface(std::string& field, const std::string& text) {
  const bool allowed = text != "." && text != ".." && std::ranges::none_of(text, [](char c) {
                         return c == '/' || c == ':' || std::isspace(static_cast<unsigned char>(c)) != 0;
                       });
  return allowed && set_text(field, text, 15);
}

bool set_tap_fds(PortConfig& port, const std::string& text) {
  std::vector<int> fds;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t colon = rest.find(':');
    more = colon != std::string_view::npos;
    const auto fd = parse_number(rest.substr(0, colon), 3, std::numeric_limits<int>::max());
    if (!fd) {
      return false;
    }
    fds.push_back(static_cast<int>(*fd));
    rest.remove_prefix(more ? colon + 1 : rest.size());
  }
  port.tap_fds = std::move(fds);
  return true;
}

bool set_mac(PortConfig& port, const std::string& text) {
  std::array<unsigned, 6> bytes{};
  bool allowed = text.size() == 17;
  for (std::size_t i = 0; allowed && i < bytes.size(); ++i) {
    const char* at = text.data() + 3 * i;
    const auto [end, error] = std::from_chars(at, at + 2, bytes[i], 16);
    allowed = error == std::errc{} && end == at + 2 && (i == 5 || at[2] == ':');
  }
  constexpr unsigned kGroupBit = 1;
  if (!allowed || (bytes[0] & kGroupBit) != 0 || std::ranges::all_of(bytes, [](unsigned byte) { return byte == 0; })) {
    return false;
  }
  port.mac = fmt::format("{:02x}", fmt::join(bytes, ":"));
  return true;
}

constexpr PortField kFields[] = {
    {"name", "1 to 32 letters, digits, '.', '_' or '-'", set_name, [](const PortConfig& port) { return port.name; }},
    {"socket", "a path of 1 to 107 bytes",
     [](PortConfig& port, const std::string& text) { return set_text(port.socket, text, kMaxSocketPath); },
     [](const PortConfig& port) { return port.socket; }},
    {"mode", "server or client",
     [](PortConfig& port, const std::string& text) {
       port.mode = text == "client" ? SocketMode::kClient : SocketMode::kServer;
       return text == "server" || text == "client";
     },
     [](const PortConfig& port) { return std::string(port.mode == SocketMode::kClient ? "client" : "server"); }},
    {"tap", "an interface name of 1 to 15 characters",
     [](PortConfig& port, const std::string& text) { return set_interface(port.tap, text); },
     [](const PortConfig& port) { return port.tap; }},
    {"tap-fd", "open descriptors from 3 up, one for each queue pair, separated by ':'", set_tap_fds,
     [](const PortConfig& port) { return fmt::format("{}", fmt::join(port.tap_fds, ":")); }},
    {"queues", "a number from 1 to 16",
     [](PortConfig& port, const std::string& text) { return set_number(port.queues, text, 1, 16); },
     [](const PortConfig& port) { return std::to_string(port.queues); }},
    {"xdp", "pass, drop, redirect, none or the path of an object file",
     [](PortConfig& port, const std::string& text) { return set_text(port.xdp, text, 4095); },
     [](const PortConfig& port) { return port.xdp; }},
    {"redirect-to", "the name of a port or an interface",
     [](PortConfig& port, const std::string& text) { return set_text(port.redirect_to, text, 32); },
     [](const PortConfig& port) { return port.redirect_to; }},
    {"mtu", "a number from 68 to 65535",
     [](PortConfig& port, const std::string& text) { return set_number(port.mtu.emplace(), text, 68, 65'535); },
     [](const PortConfig& port) { return port.mtu ? std::to_string(*port.mtu) : std::string(); }},
    {"mac", "an address of one station such as 52:54:00:12:34:56", set_mac,
     [](const PortConfig& port) { return port.mac; }},
    {"busy-poll-us", "a number from 0 to 1000000",
     [](PortConfig& port, const std::string& text) { return set_number(port.busy_poll_us, text, 0, kMaxBusyPollUs); },
     [](const PortConfig& port) { return std::to_string(port.busy_poll_us); }},
    {"batch", "a number from 1 to 64",
     [](PortConfig& port, const std::string& text) { return set_number(port.batch, text, 1, 64); },
     [](const PortConfig& port) { return std::to_string(port.batch); }},
    {"submit", "auto, uring or writev",
     [](PortConfig& port, const std::string& text) {
       port.submit = text == "uring"    ? SubmitChoice::kUring
                     : text == "writev" ? SubmitChoice::kWritev
                                        : SubmitChoice::kAuto;
       return text == "auto" || text == "uring" || text == "writev";
     },
     [](const PortConfig& port) {
       return std::string(port.submit == SubmitChoice::kUring    ? "uring"
                          : port.submit == SubmitChoice::kWritev ? "writev"
                                                                 : "auto");
     }},
};

std::string all_names() {
  std::vector<std::string_view> names;
  for (const PortField& field : kFields) {
    names.emplace_back(field.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::optional<unsigned long> parse_number(std::string_view text, unsigned long low, unsigned long high) {
  unsigned long number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stopped != end || number < low || number > high) {
    return std::nullopt;
  }
  return number;
}

Result<PortConfig> parse_port(const std::vector<FieldText>& fields) {
  PortConfig port;
  std::vector<std::string_view> seen;
  for (const auto& [name, text] : fields) {
    const auto* const field = std::ranges::find(kFields, name, &PortField::name);
    if (field == std::end(kFields)) {
      return invalid(fmt::format("unknown port field \"{}\"; the fields are {}", name, all_names()));
    }
    if (std::ranges::find(seen, name) != seen.end()) {
      return invalid(fmt::format("port field {} is given twice", name));
    }
    seen.emplace_back(name);
    if (!field->set(port, text)) {
      return invalid(fmt::format("port field {} is \"{}\" but must be {}", name, text, field->allowed));
    }
  }
  for (const PortField& field : {kFields[0], kFields[1]}) {
    if (field.get(port).empty()) {
      return invalid(fmt::format("port field {} is missing; it must be {}", field.name, field.allowed));
    }
  }
  if (port.tap.empty() && port.tap_fds.empty()) {
    port.tap = port.name;
  }
  return port;
}

Result<PortConfig> parse_port_text(std::string_view text) {
  std::vector<FieldText> fields;
  for (bool more = !text.empty(); more;) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    more = comma != std::string_view::npos;
    text.remove_prefix(more ? comma + 1 : text.size());
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return invalid(fmt::format("port field \"{}\" has no value; a port is name=...,socket=... and more of {}", part,
                                 all_names()));
    }
    fields.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
  return parse_port(fields);
}

std::vector<FieldText> port_fields(const PortConfig& port) {
  std::vector<FieldText> fields;
  for (const PortField& field : kFields) {
    if (std::string text = field.get(port); !text.empty()) {
      fields.emplace_back(field.name, std::move(text));
    }
  }
  return fields;
}

}  // namespace vxdp
