// SPDX-License-Identifier: Apache-2.0
#include "libbpf_error.hpp"

#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cctype>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <vector>

#include "vxdp/base/log.hpp"

namespace vxdp {
namespace {

thread_local LibbpfMessages* listener = nullptr;

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
    line.remove_suffix(1);
  }
  return line;
}

__attribute__((format(printf, 2, 0))) int on_libbpf_message(libbpf_print_level level, const char* format,
                                                            va_list args) {
  char text[1'024];  // longer messages are cut; the verifier's log does not come this way
  if (std::vsnprintf(text, sizeof text, format, args) < 0) {
    return 0;
  }
  std::string_view line = trimmed(text);
  if (line.starts_with("libbpf: ")) {
    line.remove_prefix(8);
  }
  log_debug("libbpf: {}", line);
  if (level == LIBBPF_WARN && listener != nullptr) {
    listener->add_warning(line);
  }
  return 0;
}

std::uint64_t effective_capabilities() noexcept {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  if (::syscall(SYS_capget, &header, data) != 0) {
    return 0;
  }
  return data[0].effective | std::uint64_t{data[1].effective} << 32U;
}

/// Lines that say what the verifier did, not why it stopped: "7: (79) r1 = ...", "; source", "processed ...".
bool is_remark(std::string_view line) {
  return !line.empty() && std::isdigit(static_cast<unsigned char>(line.front())) == 0 && line.front() != ';' &&
         !line.starts_with("processed ") && !line.starts_with("verification time") &&
         !line.starts_with("stack depth") && !line.starts_with("from ") && !line.starts_with("mark_precise");
}

}  // namespace

LibbpfMessages::LibbpfMessages() {
  static std::once_flag once;
  std::call_once(once, [] { libbpf_set_print(on_libbpf_message); });
  listener = this;
}

LibbpfMessages::~LibbpfMessages() {
  listener = nullptr;
}

void LibbpfMessages::add_warning(std::string_view line) {
  if (first_warning_.empty()) {
    first_warning_ = line;
  }
}

std::string verifier_reason(std::string_view log) {
  std::string reason;
  for (int remarks = 0; remarks < 2 && !log.empty();) {
    log = trimmed(log);
    const std::size_t start = log.rfind('\n') + 1;  // npos + 1 = 0: the first line
    const std::string_view line = log.substr(start);
    log = log.substr(0, start);
    if (is_remark(line)) {
      reason = reason.empty() ? std::string(line) : fmt::format("{}; {}", line, reason);
      ++remarks;
    } else if (remarks > 0) {
      break;
    }
  }
  return reason;
}

std::string missing_capabilities() {
  const std::uint64_t have = effective_capabilities();
  const auto has = [have](unsigned capability) { return (have >> capability & 1U) != 0; };
  std::vector<std::string_view> missing;
  if (!has(CAP_BPF) && !has(CAP_SYS_ADMIN)) {
    missing.emplace_back("CAP_BPF");
  }
  if (!has(CAP_NET_ADMIN)) {
    missing.emplace_back("CAP_NET_ADMIN");
  }
  if (!has(CAP_PERFMON) && !has(CAP_SYS_ADMIN)) {  // without it the verifier refuses data_end - data
    missing.emplace_back("CAP_PERFMON");
  }
  if (missing.empty()) {
    return {};
  }
  return fmt::format("{} {} missing", fmt::join(missing, " and "), missing.size() == 1 ? "is" : "are");
}

Error kernel_error(int error, std::string_view tried, std::string_view detail) {
  const std::error_code code(error, std::generic_category());
  if (error == EPERM || error == EACCES) {
    if (const std::string missing = missing_capabilities(); !missing.empty()) {
      return {code, fmt::format("cannot {}: {}", tried, missing)};
    }
  }
  if (!detail.empty()) {
    return {code, fmt::format("cannot {}: {}", tried, detail)};
  }
  return {code, fmt::format("cannot {}: {}", tried, code.message())};
}

}  // namespace vxdp
