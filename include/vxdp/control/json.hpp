// SPDX-License-Identifier: Apache-2.0
// JSON of the control API. Fields of a port's configuration are named as in --port (kebab-case); what the port
// is doing is in snake_case.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "vxdp/base/result.hpp"
#include "vxdp/port/port_config.hpp"

namespace vxdp {

using Json = nlohmann::ordered_json;

/// Only configuration; port_from_json() reads it back.
Json to_json(const PortConfig& port);
/// Configuration and all that the port is doing.
Json to_json(const PortStatus& status);
/// Name, state and counts: what `vhost-xdp stats` needs.
Json stats_to_json(const PortStatus& status);
Json to_json(const ProgramInfo& program);

/// The port an object describes; values are strings or numbers. Errors as parse_port(), and tap-fd, which
/// means nothing in another process.
Result<PortConfig> port_from_json(const Json& object);

/// `text` as an object; the error is a sentence.
Result<Json> parse_object(const std::string& text);

/// One line; bytes that are not UTF-8 are replaced.
std::string dump(const Json& json);

}  // namespace vxdp
