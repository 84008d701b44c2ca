// SPDX-License-Identifier: Apache-2.0
// A hostile driver against the whole from_guest path. Each 4 bytes of input are one step of the driver: write a
// descriptor, write a table entry, make a head available, jump the index, let the device run. Invariants: a chain
// made available comes back exactly once and in order, or the ring is broken; frames sent + dropped = chains returned.
#include <cstdlib>

#include "fakes/fake_backend.hpp"
#include "fakes/fake_driver.hpp"
#include "vxdp/dataplane/from_guest.hpp"

namespace vxdp {
namespace {

using testing::FakeBackend;
using testing::FakeDriver;

constexpr std::uint16_t kEntries = 16;
constexpr std::uint64_t kFeatures = testing::kDefaultFeatures | feature_bit(VIRTIO_RING_F_INDIRECT_DESC) |
                                    feature_bit(VIRTIO_RING_F_EVENT_IDX) | feature_bit(VIRTIO_NET_F_CSUM) |
                                    feature_bit(VIRTIO_NET_F_HOST_TSO4);
constexpr std::uint64_t kTable = FakeDriver::kBuffers;

/// Interesting places: in both regions, at their border, across it, outside.
std::uint64_t address(std::uint8_t choice) {
  switch (choice & 7U) {
    case 0:
      return FakeDriver::kRegionBytes - (choice >> 3U);
    case 1:
      return 2 * FakeDriver::kRegionBytes - (choice >> 3U);
    case 2:
      return UINT64_MAX - (choice >> 3U);
    case 3:
      return kTable;
    default:
      return FakeDriver::kBuffers + 0x10000U + choice * 64U;
  }
}

std::uint32_t length(std::uint8_t choice) {
  constexpr std::array<std::uint32_t, 16> kLengths = {0,  1,  11,  12,   13,   26,     64,         76,
                                                      16, 32, 256, 1526, 4096, 70'000, UINT32_MAX, 48};
  return kLengths[choice & 15U];
}

vring_desc descriptor(const std::uint8_t* step) {
  const auto flags = static_cast<std::uint16_t>(step[3] & 7U);
  return {address(step[1]), length(step[2]), flags, static_cast<std::uint16_t>(step[3] >> 3U)};
}

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

std::uint64_t dropped(const QueueCounters& counters) {
  std::uint64_t sum = 0;
  for (const Counter& counter : counters.drops) {
    sum += counter.read();
  }
  return sum;
}

/// One driver and device, reused: mapping memory anew for each input would be most of the time.
FakeDriver& shared_driver() {
  static FakeDriver driver(kEntries, kFeatures);
  return driver;
}

void run(const std::uint8_t* data, std::size_t size) {
  FakeDriver& guest = shared_driver();
  guest.reset();
  for (std::uint16_t i = 0; i < kEntries; ++i) {  // nothing of the input before, or findings would not repeat
    guest.set_desc(i, {});
    guest.set_table_desc(kTable, i, {});
  }
  FakeBackend backend;
  backend.driver_rewrites = true;  // a step may write where a frame lies that waits for room
  const auto counters = std::make_unique<QueueCounters>();
  XdpPath path;
  path.may_redirect = size > 0 && (data[0] & 1U) != 0;
  FromGuest from_guest(backend, *counters, path, 1 + (size > 1 ? data[1] % 64U : 63U));
  from_guest.start(std::move(*SplitQueue::create(guest.config())));
  std::vector<std::uint16_t> offered;
  bool honest = true;  // the driver only did what rings allow
  for (std::size_t at = 2; at + 4 <= size; at += 4) {
    const std::uint8_t* step = data + at;
    switch (step[0] & 7U) {
      case 0:
      case 1:
        guest.set_desc(step[0] >> 4U, descriptor(step));
        break;
      case 2:
        guest.set_table_desc(kTable, step[0] >> 4U, descriptor(step));
        break;
      case 3:
        guest.set_avail_index(static_cast<std::uint16_t>(step[1] | step[2] << 8U));
        honest = false;
        break;
      case 4:
        backend.room = step[1];
        from_guest.unblock();
        break;
      case 5: {
        const std::uint16_t head = step[1] % (kEntries + 1U);  // one too many
        if (offered.size() < 4096 && static_cast<std::uint16_t>(offered.size() - guest.used_index()) < kEntries) {
          guest.make_available(head);
          offered.push_back(head);
        }
        break;
      }
      default:
        from_guest.step();
    }
  }
  backend.room = SIZE_MAX;
  from_guest.unblock();
  while (from_guest.step() != 0) {
  }
  if (honest) {
    const std::uint16_t used = guest.used_index();
    require(from_guest.queue()->broken() || used == offered.size());
    for (std::uint16_t i = 0; i < used && used - i <= kEntries; ++i) {
      require(guest.used(static_cast<std::uint16_t>(used - 1 - i)).id == offered[used - 1U - i]);
    }
    require(from_guest.queue()->broken() || backend.sent.size() + dropped(*counters) == used);
    require(counters->frames.read() == backend.sent.size());
  }
  from_guest.stop();
}

}  // namespace
}  // namespace vxdp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vxdp::run(data, size);
  return 0;
}
