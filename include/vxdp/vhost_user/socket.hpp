// SPDX-License-Identifier: Apache-2.0
// Whole vhost-user messages out of a stream socket, each with exactly the descriptors that were sent with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/vhost_user/message.hpp"

struct msghdr;

namespace vxdp {

struct VhostUserMessage {
  VhostUserHeader header{};
  std::vector<std::byte> payload;  // header.payload_bytes long
  std::vector<Fd> fds;             // at most kVhostUserMaxFds

  /// A copy of the T at `offset` bytes into the payload, which must reach that far.
  template <typename T>
  [[nodiscard]] T read(std::size_t offset = 0) const noexcept {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, payload.data() + offset, sizeof value);
    return value;
  }
};

/// Never blocks, whatever the peer does or omits. One thread.
class VhostUserSocket {
 public:
  /// Takes over the connected `socket` (AF_UNIX, SOCK_STREAM).
  explicit VhostUserSocket(Fd socket) noexcept : socket_(std::move(socket)) {}

  /// The next message, or nothing if it has not arrived in full.
  /// Errors: invalid_argument for a message nobody may send (version, length, number of descriptors, an end
  /// inside a message), connection_reset when the peer has gone between messages, else the socket's own.
  /// After an error the stream has no meaning any more; no descriptor stays open on its behalf.
  Result<std::optional<VhostUserMessage>> receive();

  /// Sends `payload` as the reply to `request`.
  /// Errors: the peer has gone, or has left so many replies unread that this one does not fit.
  template <typename T>
  Result<> reply(const VhostUserHeader& request, const T& payload) {
    static_assert(std::has_unique_object_representations_v<T>);
    return reply_bytes(request, std::as_bytes(std::span<const T, 1>(&payload, 1)));
  }

  [[nodiscard]] int fd() const noexcept { return socket_.get(); }
  /// Closes the socket and whatever part of a message has come.
  void close() noexcept;

 private:
  Result<> reply_bytes(const VhostUserHeader& request, std::span<const std::byte> payload);
  Result<std::size_t> receive_part();
  Result<> take_fds(const msghdr& from);
  [[nodiscard]] Result<> check_header() const;

  Fd socket_;
  VhostUserMessage partial_;
  std::size_t received_bytes_ = 0;  // of the header and payload of partial_
};

}  // namespace vxdp
