// The sum of one token's results out of the lines they came in, some down tiles at a time. The GPU version lives with the CUDA
// combiner.
#pragma once

#include <cstdint>

#include "actors/combine_row.hpp"
#include "actors/group.hpp"
#include "actors/signal.hpp"
#include "core/line.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe {

/// Whether `count` lines seem to carry `tag`; null lines always do. A hint that is cheap to ask for again
/// and again.
inline bool may_have_come(const SoloGroup&, const Line* lines, int count, std::uint64_t tag) {
  for (int line = 0; lines != nullptr && line < count; ++line) {
    if (peek(&lines[line].tag) != tag) return false;
  }
  return true;
}

/// y = sum over cell < num_cells of weight_of(cell) * what the lines at lines_of(cell) hold, null lines skipped, with the
/// order and rounding of combine_row().
///   y: words.num_words words of dtype, 8-byte aligned. Undefined until all lines of all cells carry `tag`.
/// Returns num_cells then, else the first cell with a line that does not.
/// Memory ordering: acquire on each tag.
template <class LinesOf, class WeightOf>
int try_combine_lines(const SoloGroup& group, DType dtype, const TileLines& words, int num_cells, char* y,
                      std::uint64_t tag, const LinesOf& lines_of, const WeightOf& weight_of) {
  for (int cell = 0; cell < num_cells; ++cell) {
    const Line* lines = lines_of(cell);
    for (int line = 0; lines != nullptr && line < words.count(); ++line) {
      if (observe<Scope::system>(&lines[line].tag) != tag) return cell;
    }
  }
  const int columns = static_cast<int>(sizeof(std::uint64_t) / dtype_bytes(dtype));
  for (int line = 0; line < words.count(); ++line) {
    const int first = words.first_word(line);
    for (int word = first; word < words.end_word(line); ++word) {
      combine_row(
          group, dtype, columns, num_cells, y + word * static_cast<std::int64_t>(sizeof(std::uint64_t)),
          [&](int cell) -> const void* {
            const Line* lines = lines_of(cell);
            return lines == nullptr ? nullptr : &lines[line].data[word - first];
          },
          weight_of);
    }
  }
  return num_cells;
}

}  // namespace flashmoe
