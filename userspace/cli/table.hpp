// SPDX-License-Identifier: Apache-2.0
// Text in aligned columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vxdp {

class Table {
 public:
  /// A column whose name begins with '>' is aligned to the right (numbers).
  explicit Table(std::vector<std::string> columns);
  /// One cell for each column; an empty one is shown as "-".
  void add(std::vector<std::string> cells);
  [[nodiscard]] bool empty() const noexcept { return rows_.size() == 1; }
  /// The whole table, two spaces between columns, no space at a line's end.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // the first is the head
};

/// "1,234,567"
std::string grouped(std::uint64_t number);

}  // namespace vxdp
