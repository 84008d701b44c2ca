// SPDX-License-Identifier: Apache-2.0
// Access to memory that a guest changes under us: each read happens exactly once.
#pragma once

#include <atomic>
#include <cstring>
#include <type_traits>

namespace vxdp {

template <typename T>
T load_acquire(const T& shared) noexcept {
  return __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
}
template <typename T>
T load_relaxed(const T& shared) noexcept {
  return __atomic_load_n(&shared, __ATOMIC_RELAXED);
}
template <typename T>
void store_relaxed(T& shared, T value) noexcept {
  __atomic_store_n(&shared, value, __ATOMIC_RELAXED);
}
template <typename T>
void store_release(T& shared, T value) noexcept {
  __atomic_store_n(&shared, value, __ATOMIC_RELEASE);
}

/// A private copy of a structure in shared memory. The barrier keeps the compiler from reading the
/// original again where the copy is used.
template <typename T>
T read_once(const T* shared) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;
  std::memcpy(&copy, shared, sizeof copy);
  asm volatile("" ::: "memory");
  return copy;
}

}  // namespace vxdp
