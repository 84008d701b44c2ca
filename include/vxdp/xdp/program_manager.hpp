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
  std::string redirect_to;  // interface name for "redirect"; others do not look
};

/// What is attached now.
struct ProgramInfo {
  std::string name;            // "drop", or the file's stem
  std::string origin;          // "built-in" or the file's path
  std::string tag;             // kernel's program tag, hex
  std::uint32_t id = 0;        // kernel's program id
  bool native = false;         // driver mode; false = generic (skb) mode
  std::string generic_reason;  // why not native, else empty
  bool may_redirect = false;   // its instructions call a redirect helper or tail-call
  bool counts = false;         // has our vxdp_stats map
};

/// Owns the bpf_link on one interface; the destructor detaches. Control thread, except program_stats() (any thread),
/// whose counts are per program name and never fall, over any number of replacements.
class ProgramManager : public ProgramStatsSource {
 public:
  static std::shared_ptr<ProgramManager> create();

  /// Whether `choice` has code that could redirect or tail-call, found without loading it; needs no privilege.
  /// Errors: no such file or program, not a BPF object. Any thread.
  static Result<bool> may_redirect(const ProgramChoice& choice);

  /// Loads `choice` and attaches it to `ifindex`, or replaces the attached program in one step (bpf_link
  /// update). On error what was attached before stays. Another `ifindex` than before, or one whose interface was
  /// deleted meanwhile, gets a new link and the old one goes. `redirect_to` is looked up in this thread's network
  /// namespace and matters only to programs with a map vxdp_targets.
  /// Errors: no such program or interface, refused by the verifier, missing capabilities (named), or a program of
  /// someone else on the interface (device_or_resource_busy, names its id; it is never replaced).
  virtual Result<ProgramInfo> attach(int ifindex, const ProgramChoice& choice) = 0;
  /// Takes the program off; does nothing if there is none.
  virtual void detach() = 0;
  /// What is attached; nothing also after the interface was deleted.
  [[nodiscard]] virtual std::optional<ProgramInfo> current() const = 0;

  ~ProgramManager() override = default;
};

}  // namespace vxdp
