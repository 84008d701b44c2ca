// SPDX-License-Identifier: Apache-2.0
// `vhost-xdp run`: the daemon itself.
#pragma once

namespace CLI {
class App;
}

namespace vxdp {

/// Adds `run` to `app`; when it was chosen the daemon has run and ended, with its result in `exit_code`.
void add_run_command(CLI::App& app, int& exit_code);

}  // namespace vxdp
