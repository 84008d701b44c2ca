// SPDX-License-Identifier: Apache-2.0
#include "vxdp/dataplane/mailbox.hpp"

#include <unistd.h>

namespace vxdp {

void Mailbox::execute(const Command& command) {
  std::unique_lock lock(mutex_);
  command_ = &command;
  pending_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  done_.wait(lock, [this] { return command_ == nullptr; });
}

void Mailbox::run() {
  const std::lock_guard lock(mutex_);
  pending_.store(false, std::memory_order_relaxed);
  (*command_)();
  command_ = nullptr;
  done_.notify_one();
}

}  // namespace vxdp
