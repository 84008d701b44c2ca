// SPDX-License-Identifier: Apache-2.0
// A program as bytes, before the kernel has seen it: found by name or path, and looked at.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "vxdp/base/result.hpp"

namespace vxdp {

struct ProgramImage {
  std::string name;    // "drop", or the file's name without .bpf.o or .o
  std::string origin;  // "built-in" or the path
  std::vector<std::byte> object;
  bool may_redirect = false;  // has a call of bpf_redirect, bpf_redirect_map or bpf_tail_call
};

/// Finds `program` ("pass", "drop", "redirect" or a path) and looks at it; a built-in name wins over a file of that
/// name. Errors: neither of them; not a regular file; over 64 MiB; unreadable; not a BPF object.
Result<ProgramImage> find_program(const std::string& program);

/// Fills `may_redirect` from `object`. All code counts, also a program that would not be attached: a wrong
/// "may redirect" costs an offload, a wrong "may not" costs right checksums. Errors: not a BPF object.
Result<> inspect(ProgramImage& image);

}  // namespace vxdp
