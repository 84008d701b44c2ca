// SPDX-License-Identifier: Apache-2.0
// Tables of `vhost-xdp stats`, made from the daemon's /v1/stats.
#pragma once

#include <string>

#include "vxdp/control/json.hpp"

namespace vxdp {

/// Tables of queues and of program actions in `now`, an answer of /v1/stats. Mbit/s need an earlier answer,
/// `before`; without one (null) the column is empty.
std::string stats_text(const Json& now, const Json& before);

}  // namespace vxdp
