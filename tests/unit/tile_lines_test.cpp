// Where the words of tiles are that follow each other in lines.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/line.hpp"

namespace flashmoe {
namespace {

TEST(TileLines, every_tile_begins_a_line_and_every_word_has_one_place) {
  for (int tile_words = 1; tile_words <= 40; ++tile_words) {
    for (int num_words = 1; num_words <= 100; ++num_words) {
      const TileLines lines{.tile_words = tile_words, .num_words = num_words};
      int line = 0;
      for (int tile = 0; tile < num_words; tile += tile_words) {
        const int end = std::min(tile + tile_words, num_words);
        for (int word = tile; word < end; word += Line::kDataWords, ++line) {
          ASSERT_EQ(lines.first_word(line), word) << tile_words << " " << num_words << " " << line;
          ASSERT_EQ(lines.end_word(line), std::min(word + Line::kDataWords, end)) << tile_words << " " << num_words;
        }
      }
      ASSERT_EQ(lines.count(), line) << tile_words << " " << num_words;
    }
  }
}

}  // namespace
}  // namespace flashmoe
