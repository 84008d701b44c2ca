// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "vxdp/base/result.hpp"

namespace vxdp {

using MacAddress = std::array<std::uint8_t, 6>;

/// The address written as "52:54:00:12:34:56"; anything else is an error that quotes it.
Result<MacAddress> parse_mac(const std::string& text);

}  // namespace vxdp
