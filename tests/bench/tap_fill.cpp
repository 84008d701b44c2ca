// SPDX-License-Identifier: Apache-2.0
// Fills the queue of a TAP towards its reader: `tap_fill DEVICE FRAMES FRAME_BYTES` sends until that many were taken.
// Readers are then measured while they empty the queue, without a sender beside them that would need a CPU of its own.
#include <linux/if_packet.h>
#include <sys/socket.h>

#include <vector>

#include "bench_tap.hpp"

int main(int argc, char** argv) {
  using namespace vxdp::bench;
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s DEVICE FRAMES FRAME_BYTES\n", argv[0]);
    return 2;
  }
  const auto wanted = std::strtoul(argv[2], nullptr, 10);
  std::vector<unsigned char> frame(std::strtoul(argv[3], nullptr, 10));
  fill_frame(frame.data(), frame.size());

  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, argv[1], IFNAMSIZ - 1);
  const int bypass = 1;  // no queueing discipline: a full TAP shows as an error, not as a silent drop
  if (fd < 0 || ioctl(fd, SIOCGIFINDEX, &request) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &bypass, sizeof bypass) != 0) {
    fatal(argv[1]);
  }
  sockaddr_ll to{};
  to.sll_family = AF_PACKET;
  to.sll_ifindex = request.ifr_ifindex;
  if (bind(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    fatal("bind");
  }
  iovec part{frame.data(), frame.size()};
  std::vector<mmsghdr> messages(kBatch);
  for (mmsghdr& message : messages) {
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
  }
  for (unsigned long sent = 0; sent < wanted;) {
    const auto count = static_cast<unsigned>(std::min<unsigned long>(kBatch, wanted - sent));
    const int taken = sendmmsg(fd, messages.data(), count, 0);
    if (taken < 0) {
      fatal("the TAP took no more frames");
    }
    sent += static_cast<unsigned>(taken);
  }
  return 0;
}
