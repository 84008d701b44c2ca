// SPDX-License-Identifier: Apache-2.0
// The subcommand `guest`.
#pragma once

namespace CLI {
class App;
}

namespace vxdp {

/// Adds `guest` to `app`. When parsing meets it, the guest runs to its end and leaves its exit status in `exit_code`
/// (which must outlive parsing): 0 all went well, 1 traffic was lost or damaged, 2 it could not be started.
void add_guest_command(CLI::App& app, int& exit_code);

}  // namespace vxdp
