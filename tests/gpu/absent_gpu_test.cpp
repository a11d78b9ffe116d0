// Machines and types where the CUDA backend, or an engine of it, cannot run: one sentence that says why. Needs no GPU.
// Each machine is played by a process of its own, because a process asks for its driver once.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include "cuda/cuda_backend.hpp"
#include "cuda/kernel_table.hpp"
#include "support/processes.hpp"

namespace flashmoe::test {
namespace {

using ::testing::StartsWith;

/// What `body` returns or throws in a process of its own.
std::string outcome_of(const std::function<std::string()>& body) {
  Processes processes;
  processes.start([&](const Processes::Say&) { return body(); });
  return processes.finish(0);
}

std::string refusal_where(const std::function<void()>& prepare) {
  return outcome_of([&]() -> std::string {
    prepare();
    require_cuda_device();
    return "accepted";
  });
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

TEST(AbsentGpu, ARCH3_where_no_gpu_is_a_hopper_the_portable_engine_is_chosen) {
  const auto engine_chosen = [](EngineKind wanted) {
    return outcome_of([wanted] {
      setenv("CUDA_VISIBLE_DEVICES", "", 1);
      return std::string(to_string(cuda_backend::choose_engine({.dtype = DType::bf16}, wanted)));
    });
  };
  EXPECT_EQ(engine_chosen(EngineKind::automatic), "portable");
  EXPECT_THAT(engine_chosen(EngineKind::hopper),
              StartsWith("InvalidArgument: engine hopper needs dtype bf16 or fp16 and GPUs of compute capability 9.0"));
}

TEST(AbsentGpu, ARCH5_a_type_without_a_kernel_is_told_which_to_use) {
  const std::string refusal = outcome_of([]() -> std::string {
    cuda_backend::kernel_entry(EngineKind::portable, DType::fp32);
    return "accepted";
  });
  EXPECT_EQ(refusal,
            "InvalidArgument: dtype fp32 runs on the cpu backend only: use tf32, which keeps fp32 storage, or "
            "backend cpu");
}

}  // namespace
}  // namespace flashmoe::test
