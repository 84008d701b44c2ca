// SPDX-License-Identifier: Apache-2.0
#include "built_in.hpp"

// The assembler copies the file; no tool and no generated source stand between the object and its bytes.
#define VXDP_EMBED(name)                                                                            \
  asm(".pushsection .rodata\n.balign 16\n"                                                          \
      ".global vxdp_object_" #name "\nvxdp_object_" #name ":\n.incbin \"" VXDP_BPF_FOLDER "/" #name \
      ".bpf.o\"\n"                                                                                  \
      ".global vxdp_object_" #name "_end\nvxdp_object_" #name "_end:\n.byte 0\n.popsection\n");     \
  extern "C" const std::byte vxdp_object_##name[], vxdp_object_##name##_end[]

VXDP_EMBED(pass);
VXDP_EMBED(drop);
VXDP_EMBED(redirect);

namespace vxdp {

std::span<const std::byte> built_in_object(std::string_view name) noexcept {
  if (name == "pass") {
    return {vxdp_object_pass, vxdp_object_pass_end};
  }
  if (name == "drop") {
    return {vxdp_object_drop, vxdp_object_drop_end};
  }
  if (name == "redirect") {
    return {vxdp_object_redirect, vxdp_object_redirect_end};
  }
  return {};
}

}  // namespace vxdp
