// SPDX-License-Identifier: Apache-2.0
// Owning file descriptor. A raw `int fd` parameter elsewhere means "borrowed for this call".
#pragma once

#include <unistd.h>

#include <utility>

namespace vxdp {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset(std::exchange(other.fd_, -1));
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) {
      ::close(fd_);
    }
    fd_ = fd;
  }
  /// A second descriptor of the same open file; empty if the process has none left.
  [[nodiscard]] Fd duplicate() const noexcept;

 private:
  int fd_ = -1;
};

}  // namespace vxdp
