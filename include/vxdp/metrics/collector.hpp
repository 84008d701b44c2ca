// SPDX-License-Identifier: Apache-2.0
// From counters to the text that Prometheus scrapes. The names are a contract with dashboards and alerts.
#pragma once

#include <string>
#include <string_view>

#include "vxdp/metrics/registry.hpp"

namespace vxdp {

/// Everything in `registry` and a few facts of this process, in Prometheus' text format 0.0.4.
/// `version` becomes the label of vxdp_build_info. Only reads counters, so workers do not notice. Any thread.
std::string metrics_text(const MetricsRegistry& registry, std::string_view version);

/// Label of drop reason `reason` (a vxdp_drop_reason), "unknown" for a number that has no name.
std::string_view drop_reason_label(std::size_t reason) noexcept;
/// "aborted", "drop", "pass", "tx", "redirect" for XDP actions 0 .. 4, "unknown" else.
std::string_view xdp_action_label(std::size_t action) noexcept;

constexpr std::size_t kXdpActions = 5;

}  // namespace vxdp
