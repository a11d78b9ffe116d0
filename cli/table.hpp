// Columns of text, aligned to the right under their headings.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace flashmoe::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> headings) { add(std::move(headings)); }

  /// As many cells as there are headings.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace flashmoe::cli
