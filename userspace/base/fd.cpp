// SPDX-License-Identifier: Apache-2.0
#include "vxdp/base/fd.hpp"

#include <fcntl.h>

namespace vxdp {

Fd Fd::duplicate() const noexcept {
  return Fd(fd_ < 0 ? -1 : ::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
}

}  // namespace vxdp
