// SPDX-License-Identifier: Apache-2.0
// Every request ends inside io_uring_enter(). RWF_NOWAIT is what makes it so: without it the kernel parks a
// request that finds nothing to do, on an O_NONBLOCK descriptor too, if its file can be polled (io_uring/rw.c).
// That keeps frames in order, on TUN's native XDP path, and lets sendmsg() return with nothing in flight.
#include "vxdp/backend/tap_uring.hpp"

#include <fmt/core.h>
#include <liburing.h>
#include <sys/uio.h>

#include <array>
#include <vector>

#include "vxdp/packet/batch.hpp"

namespace vxdp {
namespace {

constexpr unsigned kEntries = Batch::kFrames;
constexpr std::uint64_t kSliceBytes = std::uint64_t{1} << 30;  // the kernel's limit for one registered buffer

/// One io_uring with the TAP as its only registered file.
class Ring {
 public:
  Ring() = default;
  ~Ring() {
    if (ready_) {
      io_uring_queue_exit(&ring_);
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// 0 or a negative errno.
  int open(int fd) {
    // SUBMIT_ALL (5.18): one refused request must not hold back those behind it.
    int result = io_uring_queue_init(kEntries, &ring_, IORING_SETUP_SUBMIT_ALL);
    if (result == -EINVAL) {
      result = io_uring_queue_init(kEntries, &ring_, 0);
    }
    if (result < 0) {
      return result;
    }
    ready_ = true;
    return io_uring_register_files(&ring_, &fd, 1);
  }
  io_uring* operator->() noexcept { return &ring_; }
  io_uring* get() noexcept { return &ring_; }

  /// Submits what is queued and waits until all `count` of it ended; results[user_data] = result.
  unsigned submit(std::span<std::int32_t> results) noexcept {
    unsigned syscalls = 0;
    std::size_t ended = 0;
    while (ended < results.size()) {
      ++syscalls;
      const int submitted = io_uring_submit_and_wait(&ring_, static_cast<unsigned>(results.size() - ended));
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        break;  // cannot happen with a ring of ours; the rest keeps its preset result
      }
      unsigned head = 0;
      unsigned seen = 0;
      io_uring_cqe* cqe = nullptr;
      io_uring_for_each_cqe(&ring_, head, cqe) {
        results[cqe->user_data] = cqe->res;
        ++seen;
      }
      io_uring_cq_advance(&ring_, seen);
      ended += seen;
    }
    return syscalls;
  }

 private:
  io_uring ring_{};
  bool ready_ = false;
};

struct Slice {
  const std::byte* begin;
  const std::byte* end;
};

}  // namespace

struct TapUring::Rings {
  Ring send;  // apart, because the control thread registers memory here while the worker may be receiving
  Ring receive;
  std::shared_ptr<const GuestMemory> memory;  // keeps the registered pages mapped
  std::vector<Slice> slices;                  // index = registered buffer
  std::size_t last_slice = 0;
  std::string not_fixed_reason = "no guest memory yet";
  std::array<std::int32_t, kEntries> results{};

  void prepare(io_uring_sqe* sqe, std::size_t index) noexcept {
    sqe->flags |= IOSQE_FIXED_FILE;
    sqe->rw_flags = RWF_NOWAIT;
    sqe->user_data = index;
    results[index] = -EIO;
  }

  /// Whether TUN takes RWF_NOWAIT: a message of one byte is refused for its length if so.
  bool nowait_works() noexcept {
    constexpr std::byte kTooShort{0};
    io_uring_sqe* sqe = io_uring_get_sqe(send.get());
    io_uring_prep_write(sqe, 0, &kTooShort, 1, 0);
    prepare(sqe, 0);
    send.submit({results.data(), 1});
    return results[0] == -EINVAL;
  }

  /// Index of the registered buffer that holds [begin, end), or -1.
  int find_slice(const std::byte* begin, const std::byte* end) noexcept {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const std::size_t index = last_slice + i < slices.size() ? last_slice + i : last_slice + i - slices.size();
      if (begin >= slices[index].begin && end <= slices[index].end) {
        last_slice = index;
        return static_cast<int>(index);
      }
    }
    return -1;
  }
};

TapUring::TapUring(Fd queue, std::unique_ptr<Rings> rings) : TapWritev(std::move(queue), ""), rings_(std::move(rings)) {}
TapUring::~TapUring() = default;

Result<std::unique_ptr<TapUring>> TapUring::create(const Fd& queue) {
  auto rings = std::make_unique<Rings>();
  for (Ring* ring : {&rings->send, &rings->receive}) {
    const int error = -ring->open(queue.get());
    if (error == EPERM) {
      return Error{{error, std::generic_category()},
                   "io_uring is forbidden here (sysctl kernel.io_uring_disabled or a seccomp filter)"};
    }
    if (error == ENOSYS) {
      return Error{{error, std::generic_category()}, "this kernel or its seccomp filter has no io_uring"};
    }
    if (error != 0) {
      return errno_error("set up", "io_uring", error);
    }
  }
  if (!rings->nowait_works()) {
    return Error{std::make_error_code(std::errc::operation_not_supported),
                 "this kernel's TUN has no writes without waiting (RWF_NOWAIT)"};
  }
  return std::unique_ptr<TapUring>(new TapUring(queue.duplicate(), std::move(rings)));
}

void TapUring::use_memory(std::shared_ptr<const GuestMemory> memory) {
  if (memory == rings_->memory) {
    return;
  }
  if (!rings_->slices.empty()) {
    io_uring_unregister_buffers(rings_->send.get());
    rings_->slices.clear();
  }
  rings_->memory = std::move(memory);
  if (!rings_->memory) {
    rings_->not_fixed_reason = "no guest memory yet";
    return;
  }
  std::vector<iovec> buffers;
  for (const auto& region : rings_->memory->regions()) {
    for (std::uint64_t offset = 0; offset < region.bytes; offset += kSliceBytes) {
      buffers.push_back({region.host + offset, std::min(kSliceBytes, region.bytes - offset)});
    }
  }
  const int error = -io_uring_register_buffers(rings_->send.get(), buffers.data(), static_cast<unsigned>(buffers.size()));
  if (error != 0) {
    rings_->not_fixed_reason = errno_error("register", "guest memory with io_uring", error).what;
    if (error == ENOMEM) {
      rings_->not_fixed_reason += " (RLIMIT_MEMLOCK; CAP_IPC_LOCK lifts it)";
    }
    return;
  }
  rings_->not_fixed_reason.clear();
  for (const auto& buffer : buffers) {
    const auto* begin = static_cast<const std::byte*>(buffer.iov_base);
    rings_->slices.push_back({begin, begin + buffer.iov_len});
  }
  rings_->last_slice = 0;
}

const char* TapUring::method() const noexcept { return rings_->slices.empty() ? "uring" : "uring-fixed"; }

std::string TapUring::method_reason() const {
  return rings_->slices.empty() ? "guest memory is not registered: " + rings_->not_fixed_reason
                                : "guest memory is registered with io_uring";
}

Moved TapUring::sendmsg(const MessageControl& control) noexcept {
  if (control.num == 1) {
    return TapWritev::sendmsg(control);  // a ring gains nothing for one frame
  }
  return send_batch({control.ptr, control.num});
}

Moved TapUring::send_batch(std::span<XdpBuff> frames) noexcept {
  Rings& rings = *rings_;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const XdpBuff& frame = frames[i];
    io_uring_sqe* sqe = io_uring_get_sqe(rings.send.get());
    std::byte* begin = frame.data - header_bytes();
    const int slice = contiguous(frame) ? rings.find_slice(begin, frame.data_end) : -1;
    if (slice >= 0) {
      io_uring_prep_write_fixed(sqe, 0, begin, static_cast<unsigned>(frame.data_end - begin), 0, slice);
    } else {
      io_uring_prep_writev(sqe, 0, frame.iov, frame.iov_count, 0);
    }
    rings.prepare(sqe, i);
  }
  Moved moved;
  moved.syscalls = rings.send.submit({rings.results.data(), frames.size()});
  // A frame that found no room may be tried again only if none behind it went through: order is kept.
  std::size_t done = frames.size();
  while (done > 0 && rings.results[done - 1] == -EAGAIN) {
    --done;
  }
  for (std::size_t i = 0; i < done; ++i) {
    frames[i].error = static_cast<std::uint16_t>(rings.results[i] < 0 ? -rings.results[i] : 0);
  }
  moved.frames = done;
  return moved;
}

Moved TapUring::recvmmsg(std::span<ReceiveRoom> rooms) noexcept {
  if (rooms.size() == 1) {
    return TapWritev::recvmmsg(rooms);
  }
  Rings& rings = *rings_;
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    io_uring_sqe* sqe = io_uring_get_sqe(rings.receive.get());
    io_uring_prep_readv(sqe, 0, rooms[i].iov.data(), static_cast<unsigned>(rooms[i].iov.size()), 0);
    rings.prepare(sqe, i);
  }
  Moved moved;
  moved.syscalls = rings.receive.submit({rings.results.data(), rooms.size()});
  // A frame that arrived in the middle of the call can leave a room before it empty: the caller sees -EAGAIN there.
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    rooms[i].result = rings.results[i];
    if (rings.results[i] != -EAGAIN) {
      moved.frames = i + 1;
    }
  }
  return moved;
}

Result<std::unique_ptr<Backend>> make_tap_queue(const Fd& queue, bool require_uring, bool forbid_uring) {
  if (forbid_uring) {
    return std::unique_ptr<Backend>(std::make_unique<TapWritev>(queue.duplicate(), "submit=writev was asked for"));
  }
  auto uring = TapUring::create(queue);
  if (uring) {
    return std::unique_ptr<Backend>(std::move(*uring));
  }
  if (require_uring) {
    return uring.error();
  }
  return std::unique_ptr<Backend>(std::make_unique<TapWritev>(queue.duplicate(), uring.error().what));
}

}  // namespace vxdp
