// SPDX-License-Identifier: Apache-2.0
// The fields of a port as users write them: the same names in --port, in the YAML file and in JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vxdp/base/result.hpp"
#include "vxdp/port/port_config.hpp"

namespace vxdp {

/// A field's name and the text of its value.
using FieldText = std::pair<std::string, std::string>;

/// The port that `fields` describe; its TAP is named as the port unless they say otherwise. Errors, each one sentence
/// that names the field and what it may be: unknown field, field given twice, bad value, no name, no socket.
Result<PortConfig> parse_port(const std::vector<FieldText>& fields);

/// As parse_port(), from "name=vm0,socket=/run/vm0.sock,...". A value cannot hold a comma.
Result<PortConfig> parse_port_text(std::string_view text);

/// The fields of `port` that a user would have to write, in the order of the table; parse_port() reads them back.
std::vector<FieldText> port_fields(const PortConfig& port);

/// `text` as a decimal number from `low` to `high`, nothing around it.
std::optional<unsigned long> parse_number(std::string_view text, unsigned long low, unsigned long high);

}  // namespace vxdp
