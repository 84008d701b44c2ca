// SPDX-License-Identifier: Apache-2.0
#include "vxdp/base/mac.hpp"

#include <fmt/core.h>

namespace vxdp {
namespace {

/// The value of a hex digit, or -1.
int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

Result<MacAddress> parse_mac(const std::string& text) {
  constexpr std::size_t kLength = 17;
  MacAddress mac{};
  bool good = text.size() == kLength;
  for (std::size_t i = 0; good && i < mac.size(); ++i) {
    const int high = hex_digit(text[i * 3]);
    const int low = hex_digit(text[i * 3 + 1]);
    good = high >= 0 && low >= 0 && (i + 1 == mac.size() || text[i * 3 + 2] == ':');
    mac[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  if (!good) {
    return invalid(fmt::format("\"{}\" is not a MAC address like 52:54:00:12:34:56", text));
  }
  return mac;
}

}  // namespace vxdp
