// SPDX-License-Identifier: Apache-2.0
// A TAP does not say how long its next frame is. So each read is offered room for the largest frame expected:
// one buffer that can hold it, or as many mergeable ones as it takes, and always the overflow behind them.
#include "vxdp/dataplane/to_guest.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "call_guest.hpp"
#include "vxdp/packet/vnet_header.hpp"

namespace vxdp {
namespace {

/// Copies `bytes` to the buffers at `iov`, `offset` bytes in. The caller knows they are large enough.
void scatter(const iovec* iov, std::uint64_t offset, const std::byte* from, std::size_t bytes) noexcept {
  while (offset >= iov->iov_len) {
    offset -= (iov++)->iov_len;
  }
  while (bytes != 0) {
    const std::size_t part = std::min<std::size_t>(bytes, iov->iov_len - offset);
    std::memcpy(static_cast<std::byte*>(iov->iov_base) + offset, from, part);
    from += part;
    bytes -= part;
    offset = 0;
    ++iov;
  }
}

/// Copies the first `bytes` of one list of buffers to another.
void copy_frame(const iovec* to, const iovec* from, std::size_t bytes) noexcept {
  for (std::uint64_t done = 0; done < bytes; ++from) {
    const std::size_t part = std::min<std::size_t>(bytes - done, from->iov_len);
    if (part != 0) {
      scatter(to, done, static_cast<const std::byte*>(from->iov_base), part);
    }
    done += part;
  }
}

}  // namespace

ToGuest::ToGuest(Backend& backend, QueueCounters& counters, unsigned batch_limit)
    : backend_(&backend), counters_(counters), batch_limit_(batch_limit), overflow_(kOverflowBytes) {}

void ToGuest::start(SplitQueue queue, std::uint32_t frame_bytes) noexcept {
  const std::uint64_t features = queue.features();
  header_bytes_ = vnet_header_bytes(features);
  mergeable_ = (features & feature_bit(VIRTIO_NET_F_MRG_RXBUF)) != 0;
  clear_flags_ = (features & feature_bit(VIRTIO_NET_F_GUEST_CSUM)) == 0;
  wanted_bytes_ = header_bytes_ + frame_bytes;
  queue_.emplace(std::move(queue));
  queue_->disable_kicks();
  (void)queue_->call();  // what was used before a reconnect may never have been called for
  readable_ = true;
  starving_ = false;
  reads_ahead_ = 1;
}

std::uint16_t ToGuest::stop() noexcept {
  if (waiting_bytes_ != 0) {
    counters_.drops[VXDP_DROP_GUEST_STOPPED].add();
    waiting_bytes_ = 0;
  }
  queue_->untake(static_cast<std::uint16_t>(count_));
  first_ = count_ = end_iov_ = 0;
  window_bytes_ = 0;
  const std::uint16_t next_avail = queue_->next_avail();
  queue_.reset();
  return next_avail;
}

bool ToGuest::has_work() noexcept {
  if (!queue_ || queue_->broken()) {
    return false;
  }
  const bool more_buffers = queue_->available() != 0;
  return waiting_bytes_ != 0 ? more_buffers : readable_ && (more_buffers || count_ != 0);
}

std::size_t ToGuest::step() noexcept {
  if (!queue_ || queue_->broken() || (!readable_ && waiting_bytes_ == 0)) {
    return 0;
  }
  std::size_t frames = 0;
  if (waiting_bytes_ != 0) {
    frames += finish_waiting_frame() ? 1 : 0;
  }
  while (waiting_bytes_ == 0 && readable_ && frames < batch_limit_) {
    gather(std::min<std::size_t>(reads_ahead_, batch_limit_ - frames), wanted_bytes_);
    if (count_ == 0) {
      note_starving();
      break;
    }
    starving_ = false;
    const std::size_t rooms = rooms_ready(std::min<std::size_t>(reads_ahead_, batch_limit_ - frames));
    const std::size_t got = rooms > 1 ? read_many(rooms) : read_one();
    if (got == 0) {
      break;
    }
    frames += got;
  }
  publish();
  return frames;
}

/// Takes buffers until there are `buffers` and, unless the first one can hold any frame, `bytes` in all.
ToGuest::Take ToGuest::gather(std::size_t buffers, std::uint64_t bytes) noexcept {
  // Without one buffer for a whole frame there is one read at a time, and more ahead would only be in its way.
  const auto enough = [&] {
    return count_ != 0 &&
           (holds_any_frame(buffers_[first_]) && bytes <= wanted_bytes_ ? count_ >= buffers : window_bytes_ >= bytes);
  };
  while (!enough()) {
    const Take take = take_buffer();
    if (take != Take::kTaken) {
      return take;
    }
  }
  return Take::kTaken;
}

ToGuest::Take ToGuest::take_buffer() noexcept {
  if (count_ == 0) {
    first_ = end_iov_ = 0;
  } else if (first_ + count_ == kBuffers || kIovs - end_iov_ < kReadIovs + 2) {
    compact();
  }
  const std::size_t used_iovs = window_iovs();
  if (first_ + count_ == kBuffers || used_iovs >= kReadIovs) {
    return Take::kNone;
  }
  while (queue_->available() != 0) {
    const std::span<iovec> room(&iov_[end_iov_], kReadIovs - used_iovs);
    const Chain chain = queue_->take(ChainUse::kDeviceWrites, room);
    if (queue_->broken() || (chain.no_room && count_ != 0)) {
      return Take::kNone;
    }
    if (!chain.no_room && chain.verdict == VXDP_DROP_NONE && chain.bytes >= header_bytes_) [[likely]] {
      const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(chain.bytes, UINT32_MAX));
      Buffer& buffer = buffers_[first_ + count_++];
      buffer = {chain.head, chain.segments, static_cast<std::uint32_t>(end_iov_), bytes};
      end_iov_ += chain.segments;
      window_bytes_ += bytes;
      if (holds_any_frame(buffer)) {
        iov_[end_iov_++] = {overflow_.data(), 0};
      }
      return Take::kTaken;
    }
    if (count_ != 0) {
      // Buffers go back in order, so a bad one waits until those before it are used.
      queue_->untake(1);
      return Take::kBadNext;
    }
    counters_.drops[chain.verdict != VXDP_DROP_NONE ? chain.verdict : VXDP_DROP_BAD_CHAIN].add();
    queue_->complete(chain.no_room ? queue_->skip() : chain.head, 0);
  }
  return Take::kNone;
}

/// Moves the window to the front of its arrays.
void ToGuest::compact() noexcept {
  const std::uint32_t shift = buffers_[first_].first_iov;
  std::memmove(iov_.data(), &iov_[shift], (end_iov_ - shift) * sizeof(iovec));
  std::memmove(buffers_.data(), &buffers_[first_], count_ * sizeof(Buffer));
  first_ = 0;
  end_iov_ -= shift;
  for (std::size_t i = 0; i < count_; ++i) {
    buffers_[i].first_iov -= shift;
  }
}

/// How many buffers at the window's front (<= limit) can each hold any frame.
std::size_t ToGuest::rooms_ready(std::size_t limit) const noexcept {
  std::size_t ready = 0;
  while (ready < limit && ready < count_ && holds_any_frame(buffers_[first_ + ready])) {
    ++ready;
  }
  return ready;
}

/// One read, into the first buffer if it can hold any frame, else across the window.
std::size_t ToGuest::read_one() noexcept {
  const Buffer& front = buffers_[first_];
  const bool one_buffer = holds_any_frame(front);
  const std::size_t end = one_buffer ? front.first_iov + front.iovs : end_iov_;
  const std::uint64_t room_bytes = one_buffer ? front.bytes : window_bytes_;
  const iovec kept = iov_[end];
  iov_[end] = {overflow_.data(), overflow_.size()};
  ReceiveRoom room{.iov = {&iov_[front.first_iov], end - front.first_iov + 1}};
  const Moved moved = backend_->recvmmsg({&room, 1});
  iov_[end] = kept;
  counters_.syscalls.add(moved.syscalls);
  note_reads(1, moved.frames);
  if (moved.frames == 0) {
    return 0;
  }
  if (room.result < static_cast<std::int32_t>(header_bytes_)) {
    drop_refused(room.result);
    return 0;
  }
  const auto bytes = static_cast<std::uint32_t>(room.result);
  if (bytes > room_bytes) {
    if (!mergeable_ || bytes - room_bytes > overflow_.size()) {
      counters_.drops[VXDP_DROP_TOO_BIG].add();
      return 1;
    }
    wanted_bytes_ = std::max(wanted_bytes_, bytes);
    waiting_bytes_ = bytes;
    waiting_placed_ = room_bytes;
    return finish_waiting_frame() ? 1 : 0;
  }
  deliver(bytes);
  return 1;
}

/// One system call for several frames, a buffer each.
std::size_t ToGuest::read_many(std::size_t count) noexcept {
  std::array<ReceiveRoom, Batch::kFrames> rooms;
  for (std::size_t i = 0; i < count; ++i) {
    const Buffer& buffer = buffers_[first_ + i];
    // A buffer larger than any frame shows by a byte left over that nothing was cut; others need the overflow.
    const bool larger = buffer.bytes > wanted_bytes_;
    iov_[buffer.first_iov + buffer.iovs] = {overflow_.data(), overflow_.size()};
    rooms[i].iov = {&iov_[buffer.first_iov], buffer.iovs + std::size_t{larger ? 0U : 1U}};
  }
  const Moved moved = backend_->recvmmsg({rooms.data(), count});
  counters_.syscalls.add(moved.syscalls);
  for (std::size_t i = 0; i < count; ++i) {
    const Buffer& buffer = buffers_[first_ + i];
    iov_[buffer.first_iov + buffer.iovs] = {overflow_.data(), 0};
  }
  note_reads(count, moved.frames);
  std::array<std::uint32_t, Batch::kFrames> lengths;
  std::size_t filled = 0;
  for (std::size_t i = 0; i < moved.frames; ++i) {
    const std::int32_t result = rooms[i].result;
    if (result == -EAGAIN) {
      continue;  // a frame arrived during the call, after this read and before the next
    }
    if (result < static_cast<std::int32_t>(header_bytes_)) {
      drop_refused(result);
    } else if (!fits(static_cast<std::uint32_t>(result), buffers_[first_ + i])) {
      counters_.drops[VXDP_DROP_TOO_BIG].add();
      wanted_bytes_ = mergeable_ ? std::max(wanted_bytes_, static_cast<std::uint32_t>(result)) : wanted_bytes_;
    } else {
      if (filled != i) {  // rare: move the frame to the buffer left empty, buffers go back in order
        copy_frame(&iov_[buffers_[first_ + filled].first_iov], rooms[i].iov.data(), static_cast<std::size_t>(result));
      }
      lengths[filled++] = static_cast<std::uint32_t>(result);
    }
  }
  for (std::size_t i = 0; i < filled; ++i) {
    deliver(lengths[i]);
  }
  return moved.frames;
}

/// Whether a frame of `bytes` read into `buffer` alone by read_many() is whole.
bool ToGuest::fits(std::uint32_t bytes, const Buffer& buffer) const noexcept {
  return bytes < buffer.bytes || (bytes == buffer.bytes && buffer.bytes <= wanted_bytes_);
}

/// Places the rest of the frame that waits in the overflow; false while the guest has too few buffers for it.
bool ToGuest::finish_waiting_frame() noexcept {
  const Take take = gather(1, waiting_bytes_);
  if (window_bytes_ >= waiting_bytes_) {
    scatter(&iov_[buffers_[first_].first_iov], waiting_placed_, overflow_.data(), waiting_bytes_ - waiting_placed_);
    deliver(waiting_bytes_);
    waiting_bytes_ = 0;
    return true;
  }
  if (take == Take::kBadNext || count_ >= queue_->size() || count_ == kBuffers || window_iovs() >= kReadIovs) {
    // No more buffers will come before these are used.
    counters_.drops[VXDP_DROP_TOO_BIG].add();
    waiting_bytes_ = 0;
    return true;
  }
  note_starving();
  return false;
}

/// Gives the guest the frame of `bytes`, header included, that the window's first buffers hold.
void ToGuest::deliver(std::uint32_t bytes) noexcept {
  std::size_t buffers = 0;
  for (std::uint64_t held = 0; held < bytes; ++buffers) {
    held += buffers_[first_ + buffers].bytes;
  }
  write_header_fields(buffers_[first_], static_cast<std::uint16_t>(buffers));
  std::uint32_t left = bytes;
  for (std::size_t i = 0; i < buffers; ++i) {
    const Buffer& buffer = buffers_[first_ + i];
    const std::uint32_t part = std::min(left, buffer.bytes);
    queue_->complete(buffer.head, part);
    left -= part;
    window_bytes_ -= buffer.bytes;
  }
  first_ += buffers;
  count_ -= buffers;
  counters_.frames.add();
  counters_.bytes.add(bytes - header_bytes_);
}

/// num_buffers is 1 without MRG_RXBUF too, and flags are 0 for a guest without GUEST_CSUM.
/// Source: virtio 1.2, 5.1.6.4.1.
void ToGuest::write_header_fields(const Buffer& buffer, std::uint16_t buffers) noexcept {
  const iovec* iov = &iov_[buffer.first_iov];
  if (clear_flags_) {
    constexpr std::byte kNoFlags{0};
    scatter(iov, offsetof(virtio_net_hdr, flags), &kNoFlags, 1);
  }
  if (header_bytes_ == sizeof(VnetHeader)) {
    std::array<std::byte, 2> value;
    std::memcpy(value.data(), &buffers, sizeof buffers);
    scatter(iov, offsetof(VnetHeader, num_buffers), value.data(), value.size());
  }
}

void ToGuest::drop_refused(std::int32_t result) noexcept {
  const bool gone = result == -EBADFD || result == -ENODEV;
  if (gone) {
    backend_gone_.store(true, std::memory_order_relaxed);
    readable_ = false;
    return;
  }
  counters_.drops[VXDP_DROP_BACKEND_REFUSED].add();
}

/// Follows the load: twice as many rooms after a full read, as many as were filled after a short one.
void ToGuest::note_reads(std::size_t offered, std::size_t got) noexcept {
  if (got < offered) {
    readable_ = false;  // an edge of the worker's epoll says when there is more
    reads_ahead_ = std::max<std::size_t>(got, 1);
  } else {
    reads_ahead_ = std::min<std::size_t>(reads_ahead_ * 2, Batch::kFrames);
  }
}

void ToGuest::note_starving() noexcept {
  if (!starving_) {
    starving_ = true;
    counters_.ring_full.add();
  }
}

void ToGuest::publish() noexcept {
  if (const std::uint16_t chains = publish_and_call(*queue_, counters_); chains != 0) {
    counters_.batches.add();
    counters_.batch_size.record(std::min<std::size_t>(chains, Batch::kFrames));
  }
}

}  // namespace vxdp
