// SPDX-License-Identifier: Apache-2.0
#include "vxdp/xdp/program_manager.hpp"

#include <utility>

#include "counts.hpp"
#include "loaded_program.hpp"
#include "program_image.hpp"
#include "vxdp/base/log.hpp"
#include "xdp_link.hpp"

namespace vxdp {
namespace {

class LinkedProgramManager final : public ProgramManager {
 public:
  Result<ProgramInfo> attach(int ifindex, const ProgramChoice& choice) override {
    Result<ProgramImage> image = find_program(choice.program);
    if (!image) {
      return image.error();
    }
    Result<LoadedProgram> loaded = LoadedProgram::load(*image, choice.redirect_to);
    if (!loaded) {
      return loaded.error();
    }
    if (Result<> done = put_on_interface(ifindex, loaded->fd); !done) {
      return done.error();
    }
    info_ = ProgramInfo{.name = image->name,
                        .origin = image->origin,
                        .tag = loaded->tag,
                        .id = loaded->id,
                        .native = link_.generic_reason().empty(),
                        .generic_reason = link_.generic_reason(),
                        .may_redirect = image->may_redirect,
                        .counts = static_cast<bool>(loaded->stats)};
    counts_.started(info_.name, info_.tag, info_.native, std::move(loaded->stats), loaded->stats_entries);
    program_ = std::move(*loaded);
    return info_;
  }

  void detach() override {
    link_ = XdpLink{};
    program_ = LoadedProgram{};
    counts_.stopped();
  }

  [[nodiscard]] std::optional<ProgramInfo> current() const override {
    return link_.alive() ? std::optional(info_) : std::nullopt;
  }

  [[nodiscard]] std::vector<ProgramStats> program_stats() const override { return counts_.read(); }

 private:
  Result<> put_on_interface(int ifindex, int program_fd) {
    if (link_.ifindex() == ifindex && link_.alive()) {
      return link_.update(program_fd);
    }
    Result<XdpLink> link = XdpLink::create(ifindex, program_fd);
    if (!link) {
      return link.error();
    }
    link_ = std::move(*link);  // lets go of the interface before, which may be gone
    return Ok{};
  }

  ProgramCounts counts_;
  ProgramInfo info_;
  LoadedProgram program_;  // kept: the kernel empties a program array when its last descriptor is closed
  XdpLink link_;           // last member: detached before the program's maps are closed
};

}  // namespace

std::shared_ptr<ProgramManager> ProgramManager::create() {
  return std::make_shared<LinkedProgramManager>();
}

Result<bool> ProgramManager::may_redirect(const ProgramChoice& choice) {
  const Result<ProgramImage> image = find_program(choice.program);
  return image ? Result<bool>(image->may_redirect) : Result<bool>(image.error());
}

}  // namespace vxdp
