// How many GPUs this machine has, for tests that fork and so must not call CUDA themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "support/processes.hpp"

namespace flashmoe::test {

/// Counted by a process of its own.
inline int count_gpus() {
  Processes counter;
  counter.start([](const Processes::Say&) {
    int count = 0;
    return std::to_string(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  });
  return std::stoi(counter.finish(0));
}

}  // namespace flashmoe::test
