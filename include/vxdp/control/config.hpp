// SPDX-License-Identifier: Apache-2.0
// What `vhost-xdp run` is told, by flags or by a YAML file with the same names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vxdp/base/result.hpp"
#include "vxdp/port/port_config.hpp"

namespace vxdp {

struct DaemonConfig {
  std::vector<PortConfig> ports;
  std::string metrics = "127.0.0.1:9477";  // address:port; "none" = no metrics server
  std::string control = "/run/vhost-xdp/control.sock";
  std::optional<unsigned> workers;  // 1 .. 64; default: one for each of `cpus`, at least 1
  std::vector<unsigned> cpus;
  std::string log_level = "info";
  std::string log_format = "text";
};

constexpr std::string_view kDefaultControlPath = "/run/vhost-xdp/control.sock";

/// Sets the field that flags and file call `name` (metrics, control, workers, cpus, log-level, log-format).
/// Errors: unknown name, value not allowed.
Result<> set_field(DaemonConfig& config, std::string_view name, const std::string& text);

/// Appends `port`. Errors: its name, socket or TAP is already another port's.
Result<> add_port(DaemonConfig& config, PortConfig port);

/// Applies the YAML text to `config`; each error begins with "`origin` line N: ".
Result<> apply_yaml(DaemonConfig& config, const std::string& text, std::string_view origin);

/// As apply_yaml(), from a file of at most 1 MiB.
Result<> apply_file(DaemonConfig& config, const std::string& path);

}  // namespace vxdp
