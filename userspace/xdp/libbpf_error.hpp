// SPDX-License-Identifier: Apache-2.0
// Turns what libbpf, the kernel's verifier and errno say into one sentence for a user.
#pragma once

#include <string>
#include <string_view>

#include "vxdp/base/result.hpp"

namespace vxdp {

/// While it lives, libbpf's warnings on this thread are kept; everything libbpf says goes to the debug log.
/// Does not nest.
class LibbpfMessages {
 public:
  LibbpfMessages();
  ~LibbpfMessages();
  LibbpfMessages(const LibbpfMessages&) = delete;
  LibbpfMessages& operator=(const LibbpfMessages&) = delete;

  /// The first warning since construction, without prefix and newline; later ones only repeat it in wider terms.
  [[nodiscard]] const std::string& first_warning() const noexcept { return first_warning_; }
  void add_warning(std::string_view line);

 private:
  std::string first_warning_;
};

/// The verifier's reason at the end of its log, on one line: what it refused and, if the line before that is a remark
/// too, the remark. Empty if the log has none.
std::string verifier_reason(std::string_view log);

/// "CAP_BPF and CAP_NET_ADMIN are missing", or empty if this thread has all it takes to load and attach.
std::string missing_capabilities();

/// The sentence for a program or link operation the kernel refused with `error` (positive errno): names missing
/// capabilities if that is the cause, else `detail`, else errno's text.
Error kernel_error(int error, std::string_view tried, std::string_view detail);

}  // namespace vxdp
