// Poison for the data of lines in a GPU's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "core/line.hpp"

namespace flashmoe::test {

/// Fills the data of lines with kPoison and leaves their tags, in the order of `stream`. Stores lines whole, as the
/// protocol does.
cudaError_t poison_lines(Line* lines, std::size_t count, cudaStream_t stream);

}  // namespace flashmoe::test
