// SPDX-License-Identifier: Apache-2.0
// The subcommands that are clients of a running daemon, and `probe`, which needs none.
#pragma once

namespace CLI {
class App;
}

namespace vxdp {

/// Each adds its subcommand to `app`; when it was chosen, its result is put into `exit_code`, which must
/// outlive parsing.
void add_port_command(CLI::App& app, int& exit_code);     // port add|remove|list|show
void add_program_command(CLI::App& app, int& exit_code);  // program swap
void add_stats_command(CLI::App& app, int& exit_code);
void add_probe_command(CLI::App& app, int& exit_code);

}  // namespace vxdp
