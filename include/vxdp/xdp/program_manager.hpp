// SPDX-License-Identifier: Apache-2.0
// The XDP program of one interface: load, attach in native mode, replace atomically, count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vxdp/base/result.hpp"
#include "vxdp/metrics/registry.hpp"

namespace vxdp {

/// Which program, as users write it.
struct ProgramChoice {
  std::string program;      // "pass", "drop", "redirect", or a path to an object file (.o)
  std::string redirect_to;  // interface name for "redirect"; else empty
};

/// What is attached now.
struct ProgramInfo {
  std::string name;           // "drop", or the file's stem
  std::string origin;         // "built-in" or the file's path
  std::string tag;            // kernel's program tag, hex
  std::uint32_t id = 0;       // kernel's program id
  bool native = false;        // driver mode; false = generic (skb) mode
  std::string generic_reason; // why not native, else empty
  bool may_redirect = false;  // its instructions call a redirect helper or tail-call
  bool counts = false;        // has our vxdp_stats map
};

/// Owns the bpf_link on one interface. Control thread, except program_stats() (any thread).
class ProgramManager : public ProgramStatsSource {
 public:
  /// `built_in_directory` holds pass.bpf.o, drop.bpf.o, redirect.bpf.o unless they are embedded.
  static std::shared_ptr<ProgramManager> create();

  /// Whether `choice` would redirect, found by opening it without loading. Errors: no such file or program.
  static Result<bool> may_redirect(const ProgramChoice& choice);

  /// Loads `choice` and attaches it to `ifindex`, or replaces the attached program in one step (bpf_link
  /// update). On error what was attached before stays. A foreign program on the interface is an error.
  virtual Result<ProgramInfo> attach(int ifindex, const ProgramChoice& choice) = 0;
  virtual void detach() = 0;
  [[nodiscard]] virtual std::optional<ProgramInfo> current() const = 0;

  ~ProgramManager() override = default;
};

}  // namespace vxdp
