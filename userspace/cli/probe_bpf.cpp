// SPDX-License-Identifier: Apache-2.0
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <linux/if_link.h>

#include <cstring>
#include <memory>

#include "probe.hpp"
#include "vxdp/base/fd.hpp"

namespace vxdp {
namespace {

// r0 = XDP_PASS; exit
constexpr bpf_insn kPassProgram[] = {
    {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = XDP_PASS},
    {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};

Fd load(bpf_prog_type type, const bpf_prog_load_opts* options) {
  return Fd(::bpf_prog_load(type, "vxdp_probe", "GPL", kPassProgram, std::size(kPassProgram), options));
}

/// The type of `int vxdp_probe(struct xdp_md *ctx)`, loaded into the kernel.
struct FunctionType {
  Fd btf;
  std::uint32_t function = 0;
};

FunctionType load_function_type() {
  const std::unique_ptr<btf, void (*)(btf*)> types(::btf__new_empty(), ::btf__free);
  if (!types) {
    return {};
  }
  const int number = ::btf__add_int(types.get(), "int", 4, BTF_INT_SIGNED);
  const int context = ::btf__add_ptr(types.get(), ::btf__add_struct(types.get(), "xdp_md", sizeof(xdp_md)));
  const int prototype = ::btf__add_func_proto(types.get(), number);
  ::btf__add_func_param(types.get(), "ctx", context);
  const int function = ::btf__add_func(types.get(), "vxdp_probe", BTF_FUNC_GLOBAL, prototype);
  std::uint32_t bytes = 0;
  const void* data = ::btf__raw_data(types.get(), &bytes);
  return {Fd(function > 0 && data != nullptr ? ::bpf_btf_load(data, bytes, nullptr) : -1),
          static_cast<std::uint32_t>(function)};
}

}  // namespace

Feature probe_bpf_load() {
  Feature feature{"bpf", "load BPF programs", false, "", "no XDP program can be attached to a port"};
  const Fd program = load(BPF_PROG_TYPE_XDP, nullptr);
  feature.available = static_cast<bool>(program);
  feature.detail =
      program ? "an XDP program loads" : std::string(std::strerror(errno)) + "; needs CAP_BPF and CAP_NET_ADMIN";
  return feature;
}

Feature probe_native_xdp(int ifindex) {
  Feature feature{"xdp-native", "native XDP on a TAP", false, "",
                  "XDP programs run late, on socket buffers, at about half the rate"};
  if (ifindex == 0) {
    feature.detail = "no TAP to try it on";
    return feature;
  }
  const Fd program = load(BPF_PROG_TYPE_XDP, nullptr);
  if (!program) {
    feature.detail = "no program to try it with";
    return feature;
  }
  bpf_link_create_opts options{};
  options.sz = sizeof options;
  options.flags = XDP_FLAGS_DRV_MODE;
  const Fd link(::bpf_link_create(program.get(), ifindex, BPF_XDP, &options));
  feature.available = static_cast<bool>(link);
  feature.detail = link ? "attached by a bpf_link" : std::strerror(errno);
  return feature;
}

Feature probe_freplace() {
  Feature feature{"freplace", "replace functions of BPF programs", false, "",
                  "no libxdp dispatcher: one XDP program on an interface, not a chain of them"};
  const FunctionType type = load_function_type();
  const bpf_func_info info{.insn_off = 0, .type_id = type.function};
  bpf_prog_load_opts options{};
  options.sz = sizeof options;
  options.prog_btf_fd = static_cast<std::uint32_t>(type.btf.get());
  options.func_info = &info;
  options.func_info_cnt = 1;
  options.func_info_rec_size = sizeof info;
  const Fd target(type.btf ? load(BPF_PROG_TYPE_XDP, &options).release() : -1);
  if (!target) {
    feature.detail = std::string("no program to try it on: ") + std::strerror(errno);
    return feature;
  }
  options.attach_prog_fd = static_cast<std::uint32_t>(target.get());
  options.attach_btf_id = type.function;
  const Fd replacement = load(BPF_PROG_TYPE_EXT, &options);
  const Fd link(replacement ? ::bpf_link_create(replacement.get(), 0, static_cast<bpf_attach_type>(0), nullptr) : -1);
  feature.available = static_cast<bool>(link);
  feature.detail = link ? "a replacement was attached"
                        : std::string(std::strerror(errno)) + (replacement ? " on attach" : " on load");
  return feature;
}

}  // namespace vxdp
