// SPDX-License-Identifier: Apache-2.0
// Log lines for control code; spdlog stays behind log.cpp. Never called on the data path.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "vxdp/base/result.hpp"

namespace vxdp {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

/// Sets level ("debug" .. "error") and format ("text" or "json") of the process's log on standard error.
Result<> configure_log(std::string_view level, std::string_view format);
bool log_enabled(LogLevel level) noexcept;
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kDebug)) {
    log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace vxdp
