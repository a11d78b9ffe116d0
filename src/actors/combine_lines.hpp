// The sum of one token's results in one down tile, out of the lines they came in. The GPU version lives with the CUDA
// combiner.
#pragma once

#include <cstdint>

#include "actors/combine_row.hpp"
#include "actors/group.hpp"
#include "actors/signal.hpp"
#include "core/line.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe {

/// The lines of a token's results in one down tile.
struct ResultLines {
  int num_cells = 0;       ///< of the token
  int num_words = 0;       ///< of each cell, in lines that follow each other
  std::uint64_t tag = 0;
};

/// y = sum over the cells that exists(cell) says there are, of weight_of(cell) * what the lines from lines_of(cell) on hold,
/// with the order and rounding of combine_row().
///   y: lines.num_words words of dtype, 8-byte aligned. Undefined until all lines of all cells carry the tag.
/// Returns num_cells when all lines have come, else a cell with a line that has not.
/// Memory ordering: acquire on each tag.
template <class LinesOf, class Exists, class WeightOf>
int try_combine_lines(const SoloGroup& group, DType dtype, const ResultLines& lines, char* y, const LinesOf& lines_of,
                      const Exists& exists, const WeightOf& weight_of) {
  const std::int64_t count = num_lines(lines.num_words);
  const auto come = [&](int cell) {
    for (std::int64_t line = 0; exists(cell) && line < count; ++line) {
      if (observe<Scope::system>(&lines_of(cell)[line].tag) != lines.tag) return false;
    }
    return true;
  };
  for (int cell = 0; cell < lines.num_cells; ++cell) {
    if (!come(cell)) return cell;
  }
  const int columns = static_cast<int>(sizeof(std::uint64_t) / dtype_bytes(dtype));
  for (int word = 0; word < lines.num_words; ++word) {
    combine_row(
        group, dtype, columns, lines.num_cells, y + word * static_cast<std::int64_t>(sizeof(std::uint64_t)),
        [&](int cell) -> const void* {
          if (!exists(cell)) return nullptr;
          return &lines_of(cell)[word / Line::kDataWords].data[word % Line::kDataWords];
        },
        weight_of);
  }
  return lines.num_cells;
}

}  // namespace flashmoe
