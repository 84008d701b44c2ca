// SPDX-License-Identifier: Apache-2.0
// The yardstick for to_guest: empties the queue of a TAP into 1024 buffers, one readv after another. Says "ready" when
// it has the TAP open and begins with the first line on stdin. Prints million frames per second and the number of
// frames.
#include <sys/uio.h>

#include <cerrno>
#include <vector>

#include "bench_tap.hpp"

int main(int argc, char** argv) {
  using namespace vxdp::bench;
  const Options options = parse(argc, argv);  // the time is not used: the queue ends the run
  const int tap = open_tap(options.device);
  std::vector<unsigned char> slots(kSlots * kSlotBytes);
  std::puts("ready");
  std::fflush(stdout);
  std::getchar();

  std::uint64_t frames = 0;
  std::size_t slot = 0;
  const Stopwatch watch;
  for (;;) {
    unsigned char* at = &slots[slot * kSlotBytes];
    const iovec parts[2] = {{at, kHeaderBytes}, {at + kHeaderBytes, kSlotBytes - kHeaderBytes}};
    if (readv(tap, parts, 2) <= 0) {
      break;
    }
    ++frames;
    slot = (slot + 1) % kSlots;
  }
  if (errno != EAGAIN) {
    fatal("readv");
  }
  std::printf("%.3f %lu\n", static_cast<double>(frames) / watch.seconds() / 1e6, frames);
  return 0;
}
