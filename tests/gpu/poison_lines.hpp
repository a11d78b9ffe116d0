// Poison for the data of lines in a GPU's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "core/line.hpp"

namespace flashmoe::test {

/// Fills the data of lines with kPoison and leaves their tags, in the order of `stream`. Stores lines whole, as the
/// protocol does and must: after cudaMemset2D of 120 of every 128 bytes, whole lines stored over them were read with the
/// new tag and old data (H100 and H200; about one case in ten of random_conformance_test).
cudaError_t poison_lines(Line* lines, std::size_t count, cudaStream_t stream);

}  // namespace flashmoe::test
