// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace vxdp {

/// Of the daemon, as in CMakeLists.txt: "0.1.0".
std::string_view version() noexcept;

}  // namespace vxdp
