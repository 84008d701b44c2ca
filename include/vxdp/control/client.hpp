// SPDX-License-Identifier: Apache-2.0
// The other side of ApiServer: what the CLI, the CNI plugin and the device plugin use.
#pragma once

#include <string>

#include "vxdp/base/result.hpp"

namespace vxdp {

class Client {
 public:
  explicit Client(std::string control_path) : path_(std::move(control_path)) {}

  /// The JSON text the daemon answers. Errors: "cannot reach vhost-xdp at PATH: is it running?", no answer
  /// in 30 seconds, or the daemon's own sentence. Each call is one connection.
  [[nodiscard]] Result<std::string> get(const std::string& route) const;
  [[nodiscard]] Result<std::string> post(const std::string& route, const std::string& json) const;
  [[nodiscard]] Result<std::string> remove(const std::string& route) const;

 private:
  std::string path_;
};

/// `text` as one part of a route: all but letters, digits, '.', '_' and '-' are percent-encoded.
std::string route_part(const std::string& text);

}  // namespace vxdp
