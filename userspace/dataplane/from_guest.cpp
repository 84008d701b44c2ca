// SPDX-License-Identifier: Apache-2.0
#include "vxdp/dataplane/from_guest.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "call_guest.hpp"
#include "vxdp/packet/vnet_header.hpp"

namespace vxdp {
namespace {

/// Largest frame that TUN turns into an XDP buffer: a 4 KiB page less padding (64), headroom (256) and
/// skb_shared_info (320). Source: tun.c, tun_can_build_skb(); measured on 6.18.
constexpr std::uint32_t kNativeXdpBytes = 4096 - 64 - 256 - 320;
constexpr std::uint32_t kLargestFrameBytes = 65535 + kEthernetHeaderBytes + 4;
constexpr std::size_t kCopySlotBytes = 12 + ((kLargestFrameBytes + 63) & ~63U);

vxdp_drop_reason reason_of(int error) noexcept {
  switch (error) {
    case EIO:
      return VXDP_DROP_BACKEND_DOWN;
    case EBADFD:
    case ENODEV:
      return VXDP_DROP_BACKEND_GONE;
    case EAGAIN:
      return VXDP_DROP_BACKEND_BUSY;
    default:
      return VXDP_DROP_BACKEND_REFUSED;
  }
}

}  // namespace

FromGuest::FromGuest(Backend& backend, QueueCounters& counters, const XdpPath& path, unsigned batch_limit)
    : backend_(&backend), counters_(counters), path_(path), batch_limit_(batch_limit) {
  if (auto copies = Mapping::anonymous(Batch::kFrames * kCopySlotBytes)) {  // untouched pages cost nothing
    copies_ = std::move(*copies);
  }
}

void FromGuest::start(SplitQueue queue) noexcept {
  header_bytes_ = vnet_header_bytes(queue.features());
  queue_.emplace(std::move(queue));
  queue_->disable_kicks();
  (void)queue_->call();  // what was used before a reconnect may never have been called for
}

std::uint16_t FromGuest::stop() noexcept {
  const auto unsent = static_cast<std::uint16_t>(batch_.heads().size() - handed_back_);
  queue_->untake(unsent);
  batch_.clear();
  sent_ = handed_back_ = 0;
  blocked_ = false;
  const std::uint16_t next_avail = queue_->next_avail();
  queue_.reset();
  return next_avail;
}

std::size_t FromGuest::step() noexcept {
  if (!queue_ || blocked_) {
    return 0;
  }
  if (batch_.empty()) {
    fill();
    if (batch_.empty()) {
      return 0;
    }
  }
  const std::size_t before = handed_back_;
  send();
  const std::size_t moved = handed_back_ - before;
  if (handed_back_ == batch_.heads().size()) {
    batch_.clear();
    sent_ = handed_back_ = 0;
  }
  return moved;
}

void FromGuest::fill() noexcept {
  collect_chains();
  judge_frames();
}

/// First pass: descriptors only. The headers they point to are asked for early and read in the second pass.
void FromGuest::collect_chains() noexcept {
  std::uint16_t count = queue_->available();
  if (count == 0) {
    return;
  }
  count = static_cast<std::uint16_t>(count < batch_limit_ ? count : batch_limit_);
  queue_->prefetch(count);
  for (; count != 0 && !batch_.full(); --count) {
    const auto room = batch_.free_segments();
    const Chain chain = queue_->take(ChainUse::kDeviceReads, room);
    if (chain.no_room) [[unlikely]] {
      if (room.size() < Batch::kFrameSegments) {
        return;  // the next batch has room for it
      }
      counters_.drops[VXDP_DROP_BAD_CHAIN].add();
      batch_.add_refused(queue_->skip());
    } else if (chain.verdict != VXDP_DROP_NONE) [[unlikely]] {
      counters_.drops[chain.verdict].add();
      if (queue_->broken()) {
        return;
      }
      batch_.add_refused(chain.head);
    } else {
      __builtin_prefetch(room[0].iov_base);
      XdpBuff& frame = batch_.add(chain.head, chain.segments);
      frame.iov = room.data();
      frame.iov_count = chain.segments;
      frame.frame_bytes = chain.bytes < UINT32_MAX ? static_cast<std::uint32_t>(chain.bytes) : UINT32_MAX;
    }
  }
}

/// Second pass: reads each header once, drops what may not go on and closes the gaps.
void FromGuest::judge_frames() noexcept {
  const auto frames = batch_.frames();
  const bool may_redirect = path_.may_redirect.load(std::memory_order_relaxed);
  limited_ = backend_->send_limited();
  std::size_t kept = 0;
  for (XdpBuff& frame : frames) {
    vxdp_drop_reason reason = queue_->discards() ? VXDP_DROP_QUEUE_DISABLED : judge(frame);
    if (may_redirect && reason == VXDP_DROP_NONE) {
      reason = make_private(frame, kept);
    }
    if (reason != VXDP_DROP_NONE) [[unlikely]] {
      counters_.drops[reason].add();
      continue;
    }
    XdpBuff& place = frames[kept++];
    if (&place != &frame) {
      place = frame;
    }
    *const_cast<iovec*>(place.iov) = {&place.header, header_bytes_};
  }
  batch_.keep_frames(kept);
}

/// Splits the chain's buffers into header, linear part and fragments.
vxdp_drop_reason FromGuest::judge(XdpBuff& frame) noexcept {
  if (frame.frame_bytes <= header_bytes_) {
    return VXDP_DROP_BAD_HEADER;
  }
  auto* segment = const_cast<iovec*>(frame.iov);
  std::uint16_t left = frame.iov_count;
  auto* header = reinterpret_cast<std::byte*>(&frame.header);
  frame.header = {};
  frame.header_in_front = segment->iov_len >= header_bytes_;
  const std::byte* header_end = nullptr;
  std::size_t missing = header_bytes_;
  if (segment->iov_len > sizeof(VnetHeader) && header_bytes_ == sizeof(VnetHeader)) [[likely]] {
    std::memcpy(&frame.header, segment->iov_base, sizeof(VnetHeader));
    segment->iov_base = static_cast<std::byte*>(segment->iov_base) + sizeof(VnetHeader);
    segment->iov_len -= sizeof(VnetHeader);
    header_end = static_cast<std::byte*>(segment->iov_base);
    missing = 0;
  }
  while (missing != 0) {
    const std::size_t part = missing < segment->iov_len ? missing : segment->iov_len;
    std::memcpy(header, segment->iov_base, part);
    header += part;
    missing -= part;
    header_end = static_cast<std::byte*>(segment->iov_base) + part;
    if (part == segment->iov_len) {
      ++segment;
      --left;
    } else {
      segment->iov_base = static_cast<std::byte*>(segment->iov_base) + part;
      segment->iov_len -= part;
    }
  }
  asm volatile("" ::: "memory");  // the guest may rewrite its header from here on; ours stays
  frame.data = static_cast<std::byte*>(segment->iov_base);
  // The frame lies in the guest's cache, and the kernel reads it next. Asked for here, one a turn: all at once they
  // would wait for each other.
  __builtin_prefetch(frame.data);
  frame.data_end = frame.data + segment->iov_len;
  frame.header_in_front = frame.header_in_front && frame.data == header_end;
  frame.iov = segment - 1;  // a consumed header segment, or the one kept free before the chain's first
  frame.iov_count = static_cast<std::uint16_t>(left + 1);
  frame.frame_bytes -= header_bytes_;
  if (frame.frame_bytes < kEthernetHeaderBytes) {
    return VXDP_DROP_RUNT;  // CVE-2024-41090: not every kernel checks
  }
  if (frame.frame_bytes > kLargestFrameBytes) {
    return VXDP_DROP_TOO_BIG;
  }
  if (!vnet_header_valid(frame.header, frame.frame_bytes, queue_->features())) {
    return VXDP_DROP_BAD_HEADER;
  }
  frame.alone = frame.header.hdr.gso_type != VIRTIO_NET_HDR_GSO_NONE || frame.frame_bytes > kNativeXdpBytes || limited_;
  return VXDP_DROP_NONE;
}

/// A frame that may be redirected leaves with its checksum finished, in a copy: guest memory that the device
/// only reads is not ours to write. Segmentation cannot be redirected at all.
vxdp_drop_reason FromGuest::make_private(XdpBuff& frame, std::size_t position) noexcept {
  if (frame.header.hdr.gso_type != VIRTIO_NET_HDR_GSO_NONE) {
    return VXDP_DROP_GSO_REDIRECT;
  }
  if ((frame.header.hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) == 0) {
    return VXDP_DROP_NONE;
  }
  if (copies_.data() == nullptr) {
    return VXDP_DROP_BACKEND_REFUSED;
  }
  std::byte* slot = copies_.data() + position * kCopySlotBytes + 12;
  std::byte* end = slot;
  for (std::uint16_t i = 1; i < frame.iov_count; ++i) {
    std::memcpy(end, frame.iov[i].iov_base, frame.iov[i].iov_len);
    end += frame.iov[i].iov_len;
  }
  finish_checksum(frame.header, slot, frame.frame_bytes);
  frame.data = slot;
  frame.data_end = end;
  std::memcpy(slot - header_bytes_, &frame.header, header_bytes_);
  frame.header_in_front = true;
  auto* iov = const_cast<iovec*>(frame.iov);
  iov[1] = {slot, frame.frame_bytes};
  frame.iov_count = 2;
  return VXDP_DROP_NONE;
}

/// Runs of frames that may share a batch go as one message; the others one by one between them, in order.
void FromGuest::send() noexcept {
  const auto frames = batch_.frames();
  while (sent_ < frames.size() && !blocked_) {
    std::size_t run = 0;
    while (sent_ + run < frames.size() && !frames[sent_ + run].alone) {
      ++run;
    }
    const MessageControl control = {run != 0 ? MessageType::kXdpBuffs : MessageType::kFrame,
                                    static_cast<std::uint16_t>(run != 0 ? run : 1), &frames[sent_]};
    const Moved moved = backend_->sendmsg(control);
    counters_.syscalls.add(moved.syscalls);
    if (moved.frames != 0) {
      counters_.batches.add();
      counters_.batch_size.record(moved.frames);
      account(frames.subspan(sent_, moved.frames));
    }
    sent_ += moved.frames;
    blocked_ = moved.frames < control.num;
  }
  hand_back(blocked_ ? frames[sent_].chain : batch_.heads().size());
}

void FromGuest::account(std::span<const XdpBuff> frames) noexcept {
  std::uint64_t delivered = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alone = 0;
  for (const XdpBuff& frame : frames) {
    if (frame.error != 0) [[unlikely]] {
      const vxdp_drop_reason reason = reason_of(frame.error);
      counters_.drops[reason].add();
      if (reason == VXDP_DROP_BACKEND_GONE) {
        backend_gone_.store(true, std::memory_order_relaxed);
      }
      continue;
    }
    ++delivered;
    bytes += frame.frame_bytes;
    alone += frame.alone ? 1 : 0;
  }
  counters_.frames.add(delivered);
  counters_.bytes.add(bytes);
  if (path_.attached.load(std::memory_order_relaxed)) {
    const bool native = path_.native.load(std::memory_order_relaxed);
    counters_.native.add(native ? delivered - alone : 0);
    counters_.generic.add(native ? alone : delivered);
  }
}

void FromGuest::hand_back(std::size_t chains_end) noexcept {
  const auto heads = batch_.heads();
  for (; handed_back_ < chains_end; ++handed_back_) {
    queue_->complete(heads[handed_back_], 0);  // the device wrote nothing
  }
  publish_and_call(*queue_, counters_);
}

}  // namespace vxdp
