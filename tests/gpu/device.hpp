// Says why a GPU test cannot run here.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

/// Skips the calling test unless `count` GPUs are usable; the reason is printed.
#define FLASHMOE_REQUIRE_GPUS(count)                                                                             \
  do {                                                                                                           \
    int num_devices = 0;                                                                                         \
    const cudaError_t status = cudaGetDeviceCount(&num_devices);                                                 \
    if (status != cudaSuccess) GTEST_SKIP() << "no usable GPU: " << cudaGetErrorString(status);                  \
    if (num_devices < (count)) GTEST_SKIP() << "needs " << (count) << " GPUs, this machine has " << num_devices; \
  } while (false)
