// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "vxdp/control/config.hpp"

namespace vxdp {

void add_control_option(CLI::App& command, std::string& path) {
  path = kDefaultControlPath;
  command.add_option("--control", path, "Control socket of the daemon")->capture_default_str();
}

int report_error(const Error& error) {
  fmt::print(stderr, "vhost-xdp: {}\n", error.what);
  return kExitUserError;
}

Result<Json> parse_answer(const Result<std::string>& answer) {
  if (!answer) {
    return answer.error();
  }
  Json json = Json::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return invalid("the daemon's answer is not a JSON object; is it another version of vhost-xdp?");
  }
  return json;
}

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

std::string absolute_program(const std::string& program) {
  constexpr std::string_view kNames[] = {"", "none", "pass", "drop", "redirect"};
  return std::ranges::find(kNames, program) != std::end(kNames)
             ? program
             : std::filesystem::absolute(program).lexically_normal().native();
}

}  // namespace vxdp
