// SPDX-License-Identifier: Apache-2.0
// The one way from the control thread into a worker: a command, run between two rounds, then acknowledged.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "vxdp/base/fd.hpp"

namespace vxdp {

class Mailbox {
 public:
  using Command = std::function<void()>;

  /// `wake`: eventfd that the worker's epoll watches.
  explicit Mailbox(Fd wake) : wake_(std::move(wake)) {}

  /// Runs `command` on the worker and returns when it is done. Control thread.
  void execute(const Command& command);
  /// Runs a waiting command. Worker; without one it costs a relaxed load.
  void run_pending() noexcept {
    if (pending_.load(std::memory_order_acquire)) [[unlikely]] {
      run();
    }
  }
  [[nodiscard]] int wake_fd() const noexcept { return wake_.get(); }

 private:
  void run();

  Fd wake_;
  std::atomic<bool> pending_{false};
  std::mutex mutex_;  // guards command_; taken by the worker only when a command waits
  std::condition_variable done_;
  const Command* command_ = nullptr;
};

}  // namespace vxdp
