// SPDX-License-Identifier: Apache-2.0
// The upper limit for from_guest: nothing but io_uring fixed-buffer writes of 64-byte frames into a TAP, 64 per
// submission. No ring, no header to check, no other thread. Prints million frames per second.
#include <liburing.h>
#include <sys/mman.h>

#include "bench_tap.hpp"

int main(int argc, char** argv) {
  using namespace vxdp::bench;
  constexpr std::size_t kFrameBytes = 64;
  const Options options = parse(argc, argv);
  const int tap = open_tap(options.device);

  const int memory = memfd_create("bare_tap", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, kSlots * kSlotBytes) != 0) {
    fatal("memfd");
  }
  void* mapping = mmap(nullptr, kSlots * kSlotBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapping == MAP_FAILED) {
    fatal("mmap");
  }
  auto* slots = static_cast<unsigned char*>(mapping);
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    fill_frame(slots + slot * kSlotBytes + kHeaderBytes, kFrameBytes);
  }

  io_uring ring;
  const iovec buffer{mapping, kSlots * kSlotBytes};
  if (io_uring_queue_init(kBatch, &ring, IORING_SETUP_SINGLE_ISSUER) != 0 ||
      io_uring_register_buffers(&ring, &buffer, 1) != 0 || io_uring_register_files(&ring, &tap, 1) != 0) {
    fatal("io_uring");
  }

  std::uint64_t frames = 0;
  std::size_t slot = 0;
  const Stopwatch watch;
  while (watch.seconds() < options.seconds) {
    for (int round = 0; round < 64; ++round) {  // the clock is read once in 4096 frames
      for (unsigned i = 0; i < kBatch; ++i) {
        io_uring_sqe* sqe = io_uring_get_sqe(&ring);
        io_uring_prep_write_fixed(sqe, 0, slots + slot * kSlotBytes, kHeaderBytes + kFrameBytes, 0, 0);
        sqe->flags |= IOSQE_FIXED_FILE;
        slot = (slot + 1) % kSlots;
      }
      if (io_uring_submit_and_wait(&ring, kBatch) != static_cast<int>(kBatch)) {
        fatal("io_uring_submit");
      }
      io_uring_cqe* done[kBatch];
      const unsigned count = io_uring_peek_batch_cqe(&ring, done, kBatch);
      for (unsigned i = 0; i < count; ++i) {
        frames += done[i]->res == static_cast<int>(kHeaderBytes + kFrameBytes);
      }
      io_uring_cq_advance(&ring, count);
    }
  }
  std::printf("%.3f\n", static_cast<double>(frames) / watch.seconds() / 1e6);
  return 0;
}
