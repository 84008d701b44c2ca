// SPDX-License-Identifier: Apache-2.0
#include "loaded_program.hpp"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>

#include <string_view>
#include <vector>

#include "libbpf_error.hpp"
#include "vxdp/abi/program_stats.h"
#include "vxdp/base/log.hpp"

namespace vxdp {
namespace {

constexpr std::size_t kVerifierLogBytes = 1U << 20U;
using ObjectPtr = std::unique_ptr<bpf_object, CloseObject>;

/// Programs that sit in a devmap or cpumap entry are XDP too, but cannot be attached to an interface.
bool attachable(const bpf_program* program) {
  const bpf_attach_type type = bpf_program__expected_attach_type(program);
  return type != BPF_XDP_DEVMAP && type != BPF_XDP_CPUMAP;
}

/// Marks the file's XDP programs to be loaded, the others not to be, and returns the one to attach: the first from a
/// section "xdp" or "xdp.frags", else the first of all; null if there is none. The order is libbpf's, which need not be
/// the source's: a file with tail-called programs does well to put those in sections of other names ("xdp/NAME").
bpf_program* choose_program(bpf_object* object, const ProgramImage& image) {
  bpf_program* plain = nullptr;
  bpf_program* other = nullptr;
  std::vector<std::string_view> names;
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object) {
    const std::string_view section = bpf_program__section_name(program);
    // Before libbpf 1.0 any section name that began with "xdp" was XDP, as was iproute2's "prog".
    if (bpf_program__type(program) == BPF_PROG_TYPE_UNSPEC && (section.starts_with("xdp") || section == "prog")) {
      bpf_program__set_type(program, BPF_PROG_TYPE_XDP);
    }
    if (bpf_program__type(program) != BPF_PROG_TYPE_XDP) {
      bpf_program__set_autoload(program, false);
    } else if (attachable(program)) {
      // The kernel replaces a program only by one of the same expected attach type.
      bpf_program__set_expected_attach_type(program, BPF_XDP);
      names.emplace_back(bpf_program__name(program));
      bpf_program*& first = section == "xdp" || section == "xdp.frags" ? plain : other;
      first = first == nullptr ? program : first;
    }
  }
  bpf_program* chosen = plain != nullptr ? plain : other;
  if (names.size() > 1) {
    log_info("XDP program {} has {} programs ({}): {} is attached", image.origin, names.size(), fmt::join(names, ", "),
             bpf_program__name(chosen));
  }
  if (chosen != nullptr) {
    bpf_program__set_autoload(chosen, true);  // also from a section "?xdp"
  }
  return chosen;
}

Result<> set_redirect_target(const bpf_object* object, const ProgramImage& image, const std::string& redirect_to) {
  const bpf_map* targets = bpf_object__find_map_by_name(object, "vxdp_targets");
  if (targets == nullptr) {
    return Ok{};
  }
  if (redirect_to.empty()) {
    if (image.origin == "built-in") {
      return invalid("XDP program redirect needs an interface to redirect to");
    }
    return Ok{};  // a file's program may fill its map itself
  }
  const std::uint32_t target = ::if_nametoindex(redirect_to.c_str());
  if (target == 0) {
    return Error{std::make_error_code(std::errc::no_such_device),
                 fmt::format("cannot redirect to {}: there is no such interface", redirect_to)};
  }
  const std::uint32_t entry = 0;
  const int error = bpf_map__update_elem(targets, &entry, sizeof entry, &target, sizeof target, BPF_ANY);
  if (error != 0) {
    return kernel_error(-error, fmt::format("redirect to {}", redirect_to), "");
  }
  return Ok{};
}

bool has_stats_shape(const bpf_map* map) {
  return bpf_map__type(map) == BPF_MAP_TYPE_PERCPU_ARRAY && bpf_map__value_size(map) == sizeof(vxdp_stats_entry) &&
         bpf_map__max_entries(map) > VXDP_STATS_ACTIONS;
}

void find_stats(const bpf_object* object, const ProgramImage& image, LoadedProgram& loaded) {
  const bpf_map* map = bpf_object__find_map_by_name(object, "vxdp_stats");
  if (map == nullptr) {
    log_info("XDP program {} has no map vxdp_stats: its actions are not counted", image.origin);
  } else if (!has_stats_shape(map)) {
    log_warn("XDP program {}: map vxdp_stats has another shape than program_stats.h says; its actions are not counted",
             image.origin);
  } else {
    loaded.stats = Fd(::fcntl(bpf_map__fd(map), F_DUPFD_CLOEXEC, 0));
    loaded.stats_entries = bpf_map__max_entries(map);
  }
}

Result<> describe(LoadedProgram& loaded) {
  bpf_prog_info info{};
  __u32 bytes = sizeof info;
  if (bpf_obj_get_info_by_fd(loaded.fd, &info, &bytes) != 0) {
    return errno_error("ask the kernel about", "the loaded XDP program");
  }
  loaded.id = info.id;
  for (const std::uint8_t byte : info.tag) {
    loaded.tag += fmt::format("{:02x}", byte);
  }
  return Ok{};
}

}  // namespace

void CloseObject::operator()(bpf_object* object) const noexcept {
  bpf_object__close(object);
}

Result<LoadedProgram> LoadedProgram::load(const ProgramImage& image, const std::string& redirect_to) {
  const LibbpfMessages messages;
  std::vector<char> verifier_log(kVerifierLogBytes);
  LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = image.name.c_str(), .kernel_log_buf = verifier_log.data(),
              .kernel_log_size = verifier_log.size());
  const ObjectPtr::pointer opened = bpf_object__open_mem(image.object.data(), image.object.size(), &options);
  if (opened == nullptr) {
    const int error = errno;
    return kernel_error(error, fmt::format("open XDP program {}", image.origin), messages.first_warning());
  }
  LoadedProgram loaded;
  loaded.object.reset(opened);
  const bpf_program* program = choose_program(opened, image);
  if (program == nullptr) {
    return invalid(fmt::format("there is no XDP program in {} (no section \"xdp\")", image.origin));
  }
  if (const int error = bpf_object__load(opened); error != 0) {
    const std::string_view log = verifier_log.data();
    if (!log.empty()) {
      log_debug("verifier on XDP program {}:\n{}", image.origin, log);
    }
    const std::string reason = verifier_reason(log);
    return kernel_error(-error, fmt::format("load XDP program {} ({})", image.name, image.origin),
                        reason.empty() ? messages.first_warning() : fmt::format("the verifier says: {}", reason));
  }
  loaded.fd = bpf_program__fd(program);
  if (Result<> done = describe(loaded); !done) {
    return done.error();
  }
  if (Result<> done = set_redirect_target(opened, image, redirect_to); !done) {
    return done.error();
  }
  find_stats(opened, image, loaded);
  return loaded;
}

}  // namespace vxdp
