// SPDX-License-Identifier: Apache-2.0
// What all client commands share: the --control option and how an outcome becomes output and exit status.
#pragma once

#include <string>
#include <string_view>

#include "vxdp/base/result.hpp"
#include "vxdp/control/json.hpp"

namespace CLI {
class App;
}

namespace vxdp {

constexpr int kExitUserError = 2;

void add_control_option(CLI::App& command, std::string& path);

/// Prints "vhost-xdp: WHAT" on standard error; returns kExitUserError.
int report_error(const Error& error);

/// The daemon's answer as JSON; an Error if it is not JSON.
Result<Json> parse_answer(const Result<std::string>& answer);

/// `json` indented, on standard output.
void print_json(const Json& json);

/// `program` as the daemon must be told: names of built-in programs as they are, a relative path made absolute.
std::string absolute_program(const std::string& program);

}  // namespace vxdp
