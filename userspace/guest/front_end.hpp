// SPDX-License-Identifier: Apache-2.0
// The front-end side of vhost-user: what a VMM does to give a back end its guest's memory and rings.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "guest/driver.hpp"
#include "guest/guest_ram.hpp"
#include "vxdp/base/fd.hpp"
#include "vxdp/base/result.hpp"
#include "vxdp/vhost_user/message.hpp"

namespace vxdp {

/// Everything that starts one vring. Descriptors are borrowed; -1 is said to the back end with the no-descriptor bit
/// (kick, call) or not at all (err).
struct VringSetup {
  unsigned index = 0;
  std::uint16_t size = 0;
  RingAddresses addresses;
  std::uint16_t base = 0;
  int kick = -1;
  int call = -1;
  int err = -1;
};

/// Blocking, but no call takes longer than the time limit: a silent back end is an error. One thread.
/// Any error but one of connecting leaves the connection in an unknown state: destroy the object.
class FrontEnd {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Connects to the back end that listens on `path`.
  static Result<FrontEnd> connect(const std::string& path, Milliseconds limit);
  /// Listens on `path` until a back end connects; replaces a socket nobody listens on and removes its own.
  static Result<FrontEnd> listen(const std::string& path, Milliseconds limit);
  /// Takes over a connected socket; `name` is what error sentences call the back end.
  static FrontEnd adopt(Fd socket, std::string name, Milliseconds limit);

  /// Agrees on the features that are both `wanted` and offered, and takes ownership of the device.
  /// Protocol features MQ and REPLY_ACK are used where offered.
  Result<> negotiate(std::uint64_t wanted);
  /// Shows `ram` to the back end. `ram` must outlive the connection.
  Result<> share_memory(const GuestRam& ram);
  /// Sets up and enables a vring.
  Result<> start_vring(const VringSetup& setup);
  Result<> enable_vring(unsigned index, bool enabled);
  /// Stops a vring; returns the index the back end would have gone on reading at.
  Result<std::uint16_t> stop_vring(unsigned index);

  /// Sends any message; with REPLY_ACK agreed on waits for the answer, and a refusal is an error.
  Result<> set(VhostUserRequest request, std::span<const std::byte> payload, std::span<const int> fds = {});
  template <typename T>
  Result<> set(VhostUserRequest request, const T& payload, std::span<const int> fds = {}) {
    return set(request, std::span<const std::byte>(std::as_bytes(std::span(&payload, 1))), fds);
  }
  /// Sends any message that is answered with a u64, and returns it.
  Result<std::uint64_t> get(VhostUserRequest request);

  [[nodiscard]] std::uint64_t offered_features() const noexcept { return offered_; }
  /// Features agreed on.
  [[nodiscard]] std::uint64_t features() const noexcept { return features_; }
  [[nodiscard]] std::uint64_t protocol_features() const noexcept { return protocol_features_; }
  /// Queue pairs the back end has; 1 without the protocol feature MQ.
  [[nodiscard]] unsigned queue_pair_limit() const noexcept { return queue_pair_limit_; }
  /// Readable only when the back end has gone (or says what nobody asked).
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  FrontEnd() = default;
  [[nodiscard]] Deadline deadline() const { return std::chrono::steady_clock::now() + limit_; }
  Result<> send(VhostUserRequest request, std::uint32_t extra_flags, std::span<const std::byte> payload,
                std::span<const int> fds, Deadline end);
  /// The answer to `request`, exactly `payload` long.
  Result<> receive(VhostUserRequest request, std::span<std::byte> payload, Deadline end);
  Result<> receive_bytes(std::span<std::byte> bytes, VhostUserRequest request, Deadline end);
  Result<> set_vring_fd(VhostUserRequest request, unsigned index, int fd);

  Fd socket_;
  std::string name_;
  Milliseconds limit_{0};
  std::uint64_t offered_ = 0;
  std::uint64_t features_ = 0;
  std::uint64_t protocol_features_ = 0;
  unsigned queue_pair_limit_ = 1;
};

}  // namespace vxdp
