// SPDX-License-Identifier: Apache-2.0
// A program the kernel has accepted, with its maps, attached or not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "program_image.hpp"
#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"

struct bpf_object;

namespace vxdp {

struct CloseObject {
  void operator()(bpf_object* object) const noexcept;
};

struct LoadedProgram {
  /// Loads the XDP program of `image`, the first in section "xdp" if there are several, and the others with it (they
  /// may be tail-called).
  /// If it has the map vxdp_targets, interface `redirect_to` becomes its entry 0; "redirect" cannot do without.
  /// Errors: not a BPF object, no XDP program in it, refused by the verifier, no privilege, no such interface.
  static Result<LoadedProgram> load(const ProgramImage& image, const std::string& redirect_to);

  std::unique_ptr<bpf_object, CloseObject> object;  // keeps program and maps
  int fd = -1;                                      // the program, owned by `object`
  std::uint32_t id = 0;
  std::string tag;  // hex
  Fd stats;         // map vxdp_stats, if it is there in our shape; a descriptor of its own
  std::uint32_t stats_entries = 0;
};

}  // namespace vxdp
