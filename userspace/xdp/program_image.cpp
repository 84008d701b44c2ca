// SPDX-License-Identifier: Apache-2.0
#include "program_image.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <gelf.h>
#include <libelf.h>
#include <linux/bpf.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "built_in.hpp"
#include "vxdp/base/fd.hpp"

namespace vxdp {
namespace {

constexpr std::size_t kMaxObjectBytes = 64U << 20U;

std::string stem(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 = 0: no folder
  for (const std::string_view ending : {".o", ".bpf"}) {
    if (name.size() > ending.size() && name.ends_with(ending)) {
      name.remove_suffix(ending.size());
    }
  }
  return std::string(name);
}

Result<std::vector<std::byte>> read_object(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not block the daemon
  if (!file) {
    return errno_error("open XDP program", path);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    return errno_error("read XDP program", path);
  }
  if (!S_ISREG(status.st_mode) || static_cast<std::size_t>(status.st_size) > kMaxObjectBytes) {
    return invalid(fmt::format("XDP program {} is not a BPF object file", path));
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0) {
      return errno_error("read XDP program", path);
    }
    if (got == 0) {  // truncated while being read
      break;
    }
    filled += static_cast<std::size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

bool is_redirect_call(const bpf_insn& insn) noexcept {
  return insn.code == (BPF_JMP | BPF_CALL) && insn.src_reg == 0 &&
         (insn.imm == BPF_FUNC_redirect || insn.imm == BPF_FUNC_redirect_map || insn.imm == BPF_FUNC_tail_call);
}

bool has_redirect_call(const Elf_Data& data) noexcept {
  const auto* bytes = static_cast<const char*>(data.d_buf);
  for (std::size_t at = 0; bytes != nullptr && at + sizeof(bpf_insn) <= data.d_size; at += sizeof(bpf_insn)) {
    bpf_insn insn{};
    std::memcpy(&insn, bytes + at, sizeof insn);
    if (is_redirect_call(insn)) {
      return true;
    }
  }
  return false;
}

}  // namespace

Result<ProgramImage> find_program(const std::string& program) {
  ProgramImage image{program, "built-in", {}, false};
  if (const auto object = built_in_object(program); !object.empty()) {
    image.object.assign(object.begin(), object.end());
  } else {
    Result<std::vector<std::byte>> bytes = read_object(program);
    if (!bytes && bytes.error().code == std::errc::no_such_file_or_directory) {
      return Error{bytes.error().code,
                   fmt::format("there is no XDP program \"{}\": neither one of the built-in {} nor a file", program,
                               kBuiltInNames)};
    }
    if (!bytes) {
      return bytes.error();
    }
    image.name = stem(program);
    image.origin = program;
    image.object = std::move(*bytes);
  }
  if (Result<> done = inspect(image); !done) {
    return done.error();
  }
  return image;
}

// Read from the sections because libbpf shows the instructions of subprograms only after loading.
Result<> inspect(ProgramImage& image) {
  std::vector<std::byte> copy = image.object;  // libelf takes a writable pointer
  elf_version(EV_CURRENT);
  const std::unique_ptr<Elf, int (*)(Elf*)> elf(elf_memory(reinterpret_cast<char*>(copy.data()), copy.size()), elf_end);
  GElf_Ehdr header{};
  if (!elf || gelf_getehdr(elf.get(), &header) == nullptr || header.e_machine != EM_BPF) {
    return invalid(fmt::format("XDP program {} is not a BPF object file", image.origin));
  }
  image.may_redirect = false;
  for (Elf_Scn* section = elf_nextscn(elf.get(), nullptr); section != nullptr;
       section = elf_nextscn(elf.get(), section)) {
    GElf_Shdr shape{};
    if (gelf_getshdr(section, &shape) != nullptr && (shape.sh_flags & SHF_EXECINSTR) != 0) {
      const Elf_Data* data = elf_getdata(section, nullptr);
      image.may_redirect = image.may_redirect || (data != nullptr && has_redirect_call(*data));
    }
  }
  return Ok{};
}

}  // namespace vxdp
