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
      // The kernel takes a ring apart later, in a work queue; a TAP that it held would outlive us for that time.
      io_uring_unregister_files(&ring_);
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

  /// Submits what is queued, which ends inside this call; results[user_data] = result. With quiet() requests only
  /// failures are told, so `results` must stand at success before.
  unsigned submit(std::span<std::int32_t> results) noexcept {
    unsigned syscalls = 0;
    while (io_uring_sq_ready(&ring_) != 0) {
      ++syscalls;
      const int submitted = io_uring_submit(&ring_);
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        break;  // cannot happen with a ring of ours
      }
      unsigned head = 0;
      unsigned seen = 0;
      io_uring_cqe* cqe = nullptr;
      io_uring_for_each_cqe(&ring_, head, cqe) {
        results[cqe->user_data] = cqe->res;
        ++seen;
      }
      if (seen != 0) {
        io_uring_cq_advance(&ring_, seen);
      }
    }
    return syscalls;
  }
  /// IOSQE_CQE_SKIP_SUCCESS where the kernel has it (5.17): a frame that went through needs no completion.
  [[nodiscard]] unsigned quiet() const noexcept {
    return (ring_.features & IORING_FEAT_CQE_SKIP) != 0 ? IOSQE_CQE_SKIP_SUCCESS : 0;
  }

 private:
  io_uring ring_{};
  bool ready_ = false;
};

/// Guest memory as one ring's registered buffers.
class RegisteredMemory {
 public:
  void use(Ring& ring, std::shared_ptr<const GuestMemory> memory) {
    if (memory == memory_) {
      return;
    }
    if (registered()) {
      io_uring_unregister_buffers(ring.get());
      slices_.clear();
    }
    memory_ = std::move(memory);
    reason_ = "no guest memory yet";
    if (memory_) {
      register_slices(ring);
    }
  }

  /// Index of the registered buffer that holds [begin, begin + bytes), or -1.
  int find(const void* begin, std::size_t bytes) noexcept {
    const auto* address = static_cast<const std::byte*>(begin);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const std::size_t index = last_ + i < slices_.size() ? last_ + i : last_ + i - slices_.size();
      if (address >= slices_[index].begin && address + bytes <= slices_[index].end) {
        last_ = index;
        return static_cast<int>(index);
      }
    }
    return -1;
  }
  [[nodiscard]] bool registered() const noexcept { return !slices_.empty(); }
  /// Why not registered.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  struct Slice {
    const std::byte* begin;
    const std::byte* end;
  };

  void register_slices(Ring& ring) {
    std::vector<iovec> buffers;
    for (const auto& region : memory_->regions()) {
      for (std::uint64_t offset = 0; offset < region.bytes; offset += kSliceBytes) {
        buffers.push_back({region.host + offset, std::min(kSliceBytes, region.bytes - offset)});
      }
    }
    const int error = -io_uring_register_buffers(ring.get(), buffers.data(), static_cast<unsigned>(buffers.size()));
    if (error != 0) {
      reason_ = errno_error("register", "guest memory with io_uring", error).what;
      reason_ += error == ENOMEM ? " (RLIMIT_MEMLOCK; CAP_IPC_LOCK lifts it)" : "";
      return;
    }
    for (const auto& buffer : buffers) {
      const auto* begin = static_cast<const std::byte*>(buffer.iov_base);
      slices_.push_back({begin, begin + buffer.iov_len});
    }
    last_ = 0;
  }

  std::shared_ptr<const GuestMemory> memory_;  // keeps the registered pages mapped
  std::vector<Slice> slices_;                  // index = registered buffer
  std::size_t last_ = 0;
  std::string reason_ = "no guest memory yet";
};

}  // namespace

struct TapUring::Rings {
  // Apart, because the control thread registers memory for one direction while the worker uses the other.
  Ring send;
  Ring receive;
  RegisteredMemory send_memory;
  RegisteredMemory receive_memory;
  std::array<std::int32_t, kEntries> results{};

  static void prepare(io_uring_sqe* sqe, std::size_t index, unsigned flags) noexcept {
    sqe->flags = static_cast<std::uint8_t>(IOSQE_FIXED_FILE | flags);
    sqe->rw_flags = RWF_NOWAIT;
    sqe->user_data = index;
  }

  /// Whether TUN takes RWF_NOWAIT: a message of one byte is refused for its length if so.
  bool nowait_works() noexcept {
    constexpr std::byte kTooShort{0};
    io_uring_sqe* sqe = io_uring_get_sqe(send.get());
    io_uring_prep_write(sqe, 0, &kTooShort, 1, 0);
    prepare(sqe, 0, 0);
    send.submit({results.data(), 1});
    return results[0] == -EINVAL;
  }
};

TapUring::TapUring(Fd queue, std::unique_ptr<Rings> rings)
    : TapWritev(std::move(queue), ""), rings_(std::move(rings)) {}
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

void TapUring::use_send_memory(std::shared_ptr<const GuestMemory> memory) {
  rings_->send_memory.use(rings_->send, std::move(memory));
}

void TapUring::use_receive_memory(std::shared_ptr<const GuestMemory> memory) {
  rings_->receive_memory.use(rings_->receive, std::move(memory));
}

const char* TapUring::method() const noexcept {
  return rings_->send_memory.registered() ? "uring-fixed" : "uring";
}

std::string TapUring::method_reason() const {
  return rings_->send_memory.registered() ? "guest memory is registered with io_uring"
                                          : "guest memory is not registered: " + rings_->send_memory.reason();
}

Moved TapUring::sendmsg(const MessageControl& control) noexcept {
  if (control.num == 1) {
    return TapWritev::sendmsg(control);  // a ring gains nothing for one frame
  }
  return send_batch({control.ptr, control.num});
}

Moved TapUring::send_batch(std::span<XdpBuff> frames) noexcept {
  Rings& rings = *rings_;
  const unsigned quiet = rings.send.quiet();
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const XdpBuff& frame = frames[i];
    io_uring_sqe* sqe = io_uring_get_sqe(rings.send.get());
    std::byte* begin = frame.data - header_bytes();
    const auto bytes = static_cast<unsigned>(frame.data_end - begin);
    const int slice = contiguous(frame) ? rings.send_memory.find(begin, bytes) : -1;
    if (slice >= 0) {
      io_uring_prep_write_fixed(sqe, 0, begin, bytes, 0, slice);
    } else {
      io_uring_prep_writev(sqe, 0, frame.iov, frame.iov_count, 0);
    }
    Rings::prepare(sqe, i, quiet);
    rings.results[i] = 0;
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
    const std::span<const iovec> iov = rooms[i].iov;
    const int slice = iov.size() == 1 ? rings.receive_memory.find(iov[0].iov_base, iov[0].iov_len) : -1;
    if (slice >= 0) {
      io_uring_prep_read_fixed(sqe, 0, iov[0].iov_base, static_cast<unsigned>(iov[0].iov_len), 0, slice);
    } else {
      io_uring_prep_readv(sqe, 0, iov.data(), static_cast<unsigned>(iov.size()), 0);
    }
    Rings::prepare(sqe, i, 0);
    rings.results[i] = -EIO;
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
