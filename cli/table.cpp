#include "table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace flashmoe::cli {

std::string Table::text() const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (std::size_t column = 0; column < widths.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    for (std::size_t column = 0; column < widths.size(); ++column) {
      text += fmt::format("{}{:>{}}", column == 0 ? "" : "  ", row[column], widths[column]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace flashmoe::cli
