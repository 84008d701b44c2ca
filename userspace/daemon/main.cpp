// SPDX-License-Identifier: Apache-2.0
// The program vhost-xdp: one command line for the daemon, its clients and the built-in guest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "cli/commands.hpp"
#include "cli/report.hpp"
#include "run_command.hpp"
#include "vxdp/control/version.hpp"
#ifdef VXDP_HAVE_GUEST
#include "guest/guest_command.hpp"
#endif

namespace {

int parse_and_run(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app("vhost-xdp: the network card of virtual machines, in front of TAP and XDP", "vhost-xdp");
  app.set_version_flag("--version", fmt::format("vhost-xdp {}", vxdp::version()));
  app.require_subcommand(0, 1);
  vxdp::add_run_command(app, exit_code);
  vxdp::add_port_command(app, exit_code);
  vxdp::add_stats_command(app, exit_code);
  vxdp::add_program_command(app, exit_code);
  vxdp::add_probe_command(app, exit_code);
#ifdef VXDP_HAVE_GUEST
  vxdp::add_guest_command(app, exit_code);
#endif
  if (argc < 2) {
    fmt::print("{}", app.help());
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      return app.exit(error);
    }
    return vxdp::report_error(vxdp::invalid(error.what()));
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const std::exception& error) {  // from a library: ours return Result
    return vxdp::report_error(vxdp::invalid(fmt::format("internal error: {}", error.what())));
  }
}
