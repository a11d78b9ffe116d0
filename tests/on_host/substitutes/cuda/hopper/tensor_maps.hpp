// In the place of src/cuda/hopper/tensor_maps.hpp, for fibers of the host: a map is what it is made of.
#pragma once

#include "cuda/hopper/boxes.hpp"

using CUtensorMap = flashmoe::cuda_backend::hopper::BoxedTensor;

namespace flashmoe::cuda_backend::hopper {

using TensorMaps = LayerBoxes<CUtensorMap>;

}  // namespace flashmoe::cuda_backend::hopper
