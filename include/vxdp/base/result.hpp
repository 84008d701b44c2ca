// SPDX-License-Identifier: Apache-2.0
// Result<T>: what set-up and control code returns. The data path does not use it: it counts.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

namespace vxdp {

/// Why a set-up or control operation failed. `code` is what a caller may branch on;
/// `what` is one sentence for a person and is never parsed.
struct Error {
  std::error_code code;
  std::string what;
};

/// The value of a Result that carries none.
struct Ok {};

/// A value or an Error. Member names follow std::expected, which g++ 12 lacks in C++20 mode.
template <typename T = Ok>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const noexcept { return state_.index() == 0; }
  T& operator*() noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const noexcept { return *std::get_if<0>(&state_); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }
  const Error& error() const noexcept { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, Error> state_;
};

/// An Error that says "cannot ACTION OBJECT: reason". `saved` is read before any string is built.
inline Error errno_error(std::string_view action, std::string_view object, int saved = errno) {
  const std::error_code code(saved, std::generic_category());
  std::string what = "cannot ";
  what.append(action).append(" ").append(object).append(": ").append(code.message());
  return {code, std::move(what)};
}

/// An Error caused by what a user or a peer asked for; `what` is the whole sentence.
inline Error invalid(std::string what) {
  return {std::make_error_code(std::errc::invalid_argument), std::move(what)};
}

}  // namespace vxdp
