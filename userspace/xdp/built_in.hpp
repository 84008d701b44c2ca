// SPDX-License-Identifier: Apache-2.0
// The BPF objects of bpf/ inside the daemon, so that one installed file works from anywhere.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace vxdp {

/// How users write the built-in programs, for sentences.
inline constexpr std::string_view kBuiltInNames = "pass, drop, redirect";

/// The ELF object of built-in program `name`, aligned to 8 bytes; empty if there is none of that name.
std::span<const std::byte> built_in_object(std::string_view name) noexcept;

}  // namespace vxdp
