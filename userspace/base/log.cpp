// SPDX-License-Identifier: Apache-2.0
#include "vxdp/base/log.hpp"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>

namespace vxdp {
namespace {

/// The message as the inside of a JSON string: spdlog's patterns do not escape.
class JsonMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/, spdlog::memory_buf_t& out) override {
    for (const char c : message.payload) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(c);
      } else if (byte < 0x20) {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
      } else {
        out.push_back(c);
      }
    }
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger log("vhost-xdp", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    log.set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    log.flush_on(spdlog::level::trace);
    return log;
  }();
  return instance;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

Result<> configure_log(std::string_view level, std::string_view format) {
  if (level == "debug") {
    logger().set_level(spdlog::level::debug);
  } else if (level == "info") {
    logger().set_level(spdlog::level::info);
  } else if (level == "warn") {
    logger().set_level(spdlog::level::warn);
  } else if (level == "error") {
    logger().set_level(spdlog::level::err);
  } else {
    return invalid(fmt::format("log level \"{}\" is none of debug, info, warn, error", level));
  }
  if (format == "json") {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<JsonMessage>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%*"})");
    logger().set_formatter(std::move(formatter));
  } else if (format != "text") {
    return invalid(fmt::format("log format \"{}\" is neither text nor json", format));
  }
  return Ok{};
}

bool log_enabled(LogLevel level) noexcept {
  return logger().should_log(spdlog_level(level));
}

void log_line(LogLevel level, std::string_view line) {
  logger().log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace vxdp
