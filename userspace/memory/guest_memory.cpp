// SPDX-License-Identifier: Apache-2.0
#include "vxdp/memory/guest_memory.hpp"

#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <mutex>

namespace vxdp {
namespace {

// A front-end can shrink its memory file under us; the next access then raises SIGBUS. The handler puts
// zeroed pages of our own over the whole mapping, so that the access can finish, and marks the memory
// poisoned; the port stops at its next look. It may only use this fixed table: it runs in a signal.
struct Guarded {
  std::atomic<std::byte*> begin{nullptr};  // nullptr: free; written last
  std::atomic<std::size_t> bytes{0};
  std::atomic<std::atomic<bool>*> poisoned{nullptr};
};
constexpr std::size_t kGuardedMappings = 4096;  // 512 ports with 8 regions
std::array<Guarded, kGuardedMappings> guarded;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
std::mutex guarded_mutex;                       // writers; the handler only reads

void on_sigbus(int signal, siginfo_t* info, void* /*context*/) {
  const auto* fault = static_cast<std::byte*>(info->si_addr);
  for (auto& entry : guarded) {
    auto* begin = entry.begin.load(std::memory_order_acquire);
    if (begin != nullptr && fault >= begin && fault < begin + entry.bytes.load(std::memory_order_relaxed)) {
      entry.poisoned.load(std::memory_order_relaxed)->store(true, std::memory_order_relaxed);
      void* replaced = ::mmap(begin, entry.bytes.load(std::memory_order_relaxed), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
      if (replaced != MAP_FAILED) {
        return;
      }
    }
  }
  ::signal(signal, SIG_DFL);  // not ours: the access faults again and ends the process as it should
}

bool guard(const Mapping& mapping, std::atomic<bool>& poisoned) {
  const std::lock_guard lock(guarded_mutex);
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  for (auto& entry : guarded) {
    if (installed && entry.begin.load(std::memory_order_relaxed) == nullptr) {
      entry.bytes.store(mapping.size(), std::memory_order_relaxed);
      entry.poisoned.store(&poisoned, std::memory_order_relaxed);
      entry.begin.store(mapping.data(), std::memory_order_release);
      return true;
    }
  }
  return false;
}

void unguard(const Mapping& mapping) {
  const std::lock_guard lock(guarded_mutex);
  for (auto& entry : guarded) {
    if (entry.begin.load(std::memory_order_relaxed) == mapping.data()) {
      entry.begin.store(nullptr, std::memory_order_relaxed);
    }
  }
}

bool overlap(std::uint64_t a, std::uint64_t a_bytes, std::uint64_t b, std::uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

/// Bytes of the file's page (hugetlbfs says so in st_blksize); munmap() of huge pages needs whole ones.
Result<std::uint64_t> check(const RegionRequest& region) {
  if (region.bytes == 0) {
    return invalid("a memory region is empty");
  }
  if (region.gpa + region.bytes < region.gpa || region.fva + region.bytes < region.fva ||
      region.mmap_offset + region.bytes < region.bytes) {
    return invalid("a memory region wraps around");
  }
  if (!region.fd) {
    return invalid("a memory region came without a descriptor");
  }
  struct stat status {};
  if (::fstat(region.fd.get(), &status) != 0) {
    return errno_error("look at", "a memory region's descriptor");
  }
  if (S_ISREG(status.st_mode) && region.mmap_offset + region.bytes > static_cast<std::uint64_t>(status.st_size)) {
    return invalid(fmt::format("a memory region needs {} bytes of a file that has {}",
                               region.mmap_offset + region.bytes, status.st_size));
  }
  const auto page = static_cast<std::uint64_t>(status.st_blksize);
  return page > 4096 && (page & (page - 1)) == 0 ? page : std::uint64_t{4096};
}

}  // namespace

Result<std::shared_ptr<const GuestMemory>> GuestMemory::map(std::vector<RegionRequest> requests) {
  if (requests.empty() || requests.size() > kMaxRegions) {
    return invalid(fmt::format("a memory table has 1 to {} regions, not {}", kMaxRegions, requests.size()));
  }
  std::vector<std::uint64_t> page_bytes;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto page = check(requests[i]);
    if (!page) {
      return page.error();
    }
    page_bytes.push_back(*page);
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(requests[i].gpa, requests[i].bytes, requests[j].gpa, requests[j].bytes) ||
          overlap(requests[i].fva, requests[i].bytes, requests[j].fva, requests[j].bytes)) {
        return invalid("two memory regions overlap");
      }
    }
  }
  std::shared_ptr<GuestMemory> memory(new GuestMemory);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& request = requests[i];
    // The file is mapped from its start: an offset inside a huge page cannot be mapped on its own.
    const std::uint64_t end = request.mmap_offset + request.bytes;
    const std::uint64_t whole_pages = (end + page_bytes[i] - 1) & ~(page_bytes[i] - 1);
    auto mapping = Mapping::shared_file(request.fd.get(), whole_pages, 0);
    if (!mapping) {
      return mapping.error();
    }
    if (!guard(*mapping, memory->poisoned_)) {
      return invalid("too many memory regions in this process");
    }
    ::madvise(mapping->data(), mapping->size(), MADV_DONTDUMP);
    memory->regions_.push_back({request.gpa, request.bytes, request.fva, mapping->data() + request.mmap_offset});
    memory->mappings_.push_back(std::move(*mapping));
  }
  return std::shared_ptr<const GuestMemory>(std::move(memory));
}

GuestMemory::~GuestMemory() {
  for (const auto& mapping : mappings_) {
    unguard(mapping);
  }
}

std::byte* GuestMemory::translate_fva(std::uint64_t fva, std::uint64_t bytes) const noexcept {
  for (const auto& region : regions_) {
    const std::uint64_t offset = fva - region.fva;
    if (offset < region.bytes && bytes <= region.bytes - offset) {
      return region.host + offset;
    }
  }
  return nullptr;
}

}  // namespace vxdp
