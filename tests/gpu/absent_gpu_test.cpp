// Machines where the CUDA backend cannot run: one sentence that says why. Needs no GPU.
// Each machine is played by a process of its own, because a process asks for its driver once.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include "cuda/cuda_backend.hpp"
#include "support/processes.hpp"

namespace flashmoe::test {
namespace {

using ::testing::StartsWith;

std::string refusal_where(const std::function<void()>& prepare) {
  Processes processes;
  processes.start([&](const Processes::Say&) -> std::string {
    prepare();
    require_cuda_device();
    return "accepted";
  });
  return processes.finish(0);
}

TEST(AbsentGpu, a_machine_that_shows_no_gpu_is_told) {
  const std::string refusal = refusal_where([] { setenv("CUDA_VISIBLE_DEVICES", "", 1); });
  EXPECT_THAT(refusal, StartsWith("CudaError: backend (cuda) needs a GPU, and this machine shows none"));
}

TEST(AbsentGpu, a_driver_that_is_too_old_is_told) {
  const std::string refusal = refusal_where([] {
    // Loaded first, it is what the runtime's own search for libcuda.so.1 finds.
    const char* build = std::getenv("FLASHMOE_BUILD_DIR");
    const std::string driver = std::string(build != nullptr ? build : ".") + "/tests/gpu/old_driver/libcuda.so.1";
    if (dlopen(driver.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
  });
  EXPECT_THAT(refusal, StartsWith("CudaError: backend (cuda) needs a driver for CUDA 13.0 or newer, and this machine's "
                                  "is for CUDA 12.4: update the NVIDIA driver"));
}

}  // namespace
}  // namespace flashmoe::test
