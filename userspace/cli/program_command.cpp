// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "report.hpp"
#include "vxdp/control/client.hpp"

namespace vxdp {
namespace {

struct SwapOptions {
  std::string control;
  std::string port;
  std::string program;
  std::string redirect_to;
  bool json = false;
};

int run_swap(const SwapOptions& options) {
  Json body{{"program", absolute_program(options.program)}};
  if (!options.redirect_to.empty()) {
    body["redirect-to"] = options.redirect_to;
  }
  const auto answer =
      parse_answer(Client(options.control).post("/v1/ports/" + route_part(options.port) + "/program", dump(body)));
  if (!answer) {
    return report_error(answer.error());
  }
  if (options.json) {
    print_json(*answer);
  } else if (options.program == "none") {
    fmt::print("port {} has no program now\n", options.port);
  } else {
    const bool native = answer->value("native", false);
    fmt::print("port {} runs {} now ({}{}, tag {})\n", options.port, answer->value("name", ""),
               native ? "native" : "generic: ", native ? "" : answer->value("generic_reason", ""),
               answer->value("tag", ""));
  }
  return 0;
}

}  // namespace

void add_program_command(CLI::App& app, int& exit_code) {
  CLI::App* program = app.add_subcommand("program", "Change the XDP program of a port");
  program->require_subcommand(1);
  CLI::App* swap = program->add_subcommand("swap", "Replace a port's program in one step, while traffic flows");
  auto options = std::make_shared<SwapOptions>();
  swap->add_option("port", options->port, "Name of the port")->required();
  swap->add_option("program", options->program, "pass, drop, redirect, none, or an object file (.o)")->required();
  swap->add_option("--redirect-to", options->redirect_to, "Port or interface that redirect sends to");
  swap->add_flag("--json", options->json, "Print the program as JSON");
  add_control_option(*swap, options->control);
  swap->callback([options, &exit_code] { exit_code = run_swap(*options); });
}

}  // namespace vxdp
