// The sum of one token's result cells: fixed order, accumulated in fp32 (fp64 for fp64), rounded once.
#pragma once

#include <cstdint>

#include "core/annotate.hpp"
#include "core/numeric.hpp"

namespace flashmoe {

/// y[column] = sum over index < num_cells of weight_of(index) * cell_of(index)[column], null cells skipped.
///   y, cells: [columns] of dtype. A token without cells gets exactly 0.
template <class Group, class CellOf, class WeightOf>
FLASHMOE_HD void combine_row(const Group& group, DType dtype, int columns, int num_cells, void* y,
                             const CellOf& cell_of, const WeightOf& weight_of) {
  for (int column = group.index(); column < columns; column += group.size()) {
    if (dtype == DType::fp64) {
      double sum = 0.0;
      for (int index = 0; index < num_cells; ++index) {
        const void* cell = cell_of(index);
        if (cell != nullptr) sum += static_cast<double>(weight_of(index)) * load_element(dtype, cell, column);
      }
      store_element(dtype, y, column, sum);
    } else {
      float sum = 0.0f;
      for (int index = 0; index < num_cells; ++index) {
        const void* cell = cell_of(index);
        if (cell != nullptr) sum += weight_of(index) * static_cast<float>(load_element(dtype, cell, column));
      }
      store_element(dtype, y, column, sum);
    }
  }
}

}  // namespace flashmoe
