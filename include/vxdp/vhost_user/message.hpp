// SPDX-License-Identifier: Apache-2.0
// What travels on a vhost-user socket: a header, a payload, and descriptors beside it. Numbers and names
// follow the vhost-user specification. Everything is in the byte order of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace vxdp {

/// Requests a front-end may send; only those this back end knows.
enum class VhostUserRequest : std::uint32_t {
  kGetFeatures = 1,
  kSetFeatures = 2,
  kSetOwner = 3,
  kResetOwner = 4,
  kSetMemTable = 5,
  kSetLogBase = 6,
  kSetLogFd = 7,
  kSetVringNum = 8,
  kSetVringAddr = 9,
  kSetVringBase = 10,
  kGetVringBase = 11,
  kSetVringKick = 12,
  kSetVringCall = 13,
  kSetVringErr = 14,
  kGetProtocolFeatures = 15,
  kSetProtocolFeatures = 16,
  kGetQueueNum = 17,
  kSetVringEnable = 18,
  kSendRarp = 19,
  kNetSetMtu = 20,
};

/// Numbers of protocol feature bits.
enum VhostUserProtocolFeature : unsigned {
  kVhostUserProtocolMq = 0,
  kVhostUserProtocolRarp = 2,
  kVhostUserProtocolReplyAck = 3,
  kVhostUserProtocolNetMtu = 4,
};

constexpr std::uint32_t kVhostUserVersion = 1;
constexpr std::uint32_t kVhostUserVersionMask = 0x3;
constexpr std::uint32_t kVhostUserReply = 1U << 2;
constexpr std::uint32_t kVhostUserNeedReply = 1U << 3;

constexpr std::size_t kVhostUserMaxPayloadBytes = 4096;
constexpr std::size_t kVhostUserMaxFds = 8;

struct VhostUserHeader {
  std::uint32_t request;  // a VhostUserRequest, or anything else a peer makes up
  std::uint32_t flags;
  std::uint32_t payload_bytes;
};

/// Payload of SET_VRING_NUM, _BASE, _ENABLE and GET_VRING_BASE.
struct VhostUserVringState {
  std::uint32_t index;
  std::uint32_t num;
};

/// Payload of SET_VRING_ADDR; addresses are front-end virtual.
struct VhostUserVringAddr {
  std::uint32_t index;
  std::uint32_t flags;
  std::uint64_t desc_fva;
  std::uint64_t used_fva;
  std::uint64_t avail_fva;
  std::uint64_t log_gpa;
};

/// SET_MEM_TABLE begins with this; `regions` VhostUserMemoryRegion follow, each with one descriptor.
struct VhostUserMemoryTable {
  std::uint32_t regions;
  std::uint32_t padding;
};
struct VhostUserMemoryRegion {
  std::uint64_t gpa;
  std::uint64_t bytes;
  std::uint64_t fva;
  std::uint64_t mmap_offset;
};

/// SET_VRING_KICK, _CALL and _ERR carry a u64: the vring's index, and this bit when no descriptor comes along.
constexpr std::uint64_t kVhostUserVringIndexMask = 0xff;
constexpr std::uint64_t kVhostUserVringNoFd = 1U << 8;

// The wire has no padding, so neither may the structs.
template <typename T, std::size_t kBytes>
constexpr bool kVhostUserWireStruct = sizeof(T) == kBytes&& std::has_unique_object_representations_v<T>;
static_assert(kVhostUserWireStruct<VhostUserHeader, 12>);
static_assert(kVhostUserWireStruct<VhostUserVringState, 8>);
static_assert(kVhostUserWireStruct<VhostUserVringAddr, 40>);
static_assert(kVhostUserWireStruct<VhostUserMemoryTable, 8>);
static_assert(kVhostUserWireStruct<VhostUserMemoryRegion, 32>);

}  // namespace vxdp
