// Lines do not tear: a warp's 128-byte stores, to this GPU and to peers, are read whole or not at all, with bulk
// traffic beside them. FLASHMOE_TORTURE_LINES sets how many lines are checked (default 2e6); the last line printed
// is the record.
#include "line_torture.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "cuda/memory.hpp"
#include "device.hpp"

namespace flashmoe::test {
namespace {

using namespace cuda_backend;

TEST(Lines, never_tear) {
  FLASHMOE_REQUIRE_GPUS(1);
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  const char* wanted_text = std::getenv("FLASHMOE_TORTURE_LINES");
  const double wanted = wanted_text != nullptr ? std::atof(wanted_text) : 2e6;
  constexpr int kPairs = 32;
  constexpr int kBulkBlocks = 64;
  constexpr std::size_t kBulkBytes = 64 << 20;
  const auto epochs = static_cast<std::uint64_t>(wanted / num_devices / kPairs / kLinesPerBlock) + 2;

  std::vector<DeviceMemory> lines, done, bulk, torn;
  for (int device = 0; device < num_devices; ++device) {
    const DeviceGuard guard(device);
    for (int peer = 0; peer < num_devices; ++peer) {
      if (peer != device) {
        const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
        if (result != cudaErrorPeerAccessAlreadyEnabled) check(result, "cudaDeviceEnablePeerAccess");
        cudaGetLastError();
      }
    }
    lines.emplace_back(device, sizeof(Line) * kPairs * kSets * kLinesPerBlock);
    done.emplace_back(device, sizeof(std::uint64_t) * kPairs * 4);
    bulk.emplace_back(device, kBulkBytes);
    torn.emplace_back(device, 16);
  }
  for (int device = 0; device < num_devices; ++device) {
    const DeviceGuard guard(device);
    const auto to = static_cast<std::size_t>((device + 1) % num_devices);
    const auto from = static_cast<std::size_t>((device + num_devices - 1) % num_devices);
    const auto self = static_cast<std::size_t>(device);
    const TortureArgs args{.target = lines[to].as<Line>(),
                           .own = lines[self].as<Line>(),
                           .reader_done = done[from].as<std::uint64_t>(),
                           .own_done = done[self].as<std::uint64_t>(),
                           .bulk_target = bulk[to].as(),
                           .bulk_bytes = kBulkBytes,
                           .num_epochs = epochs,
                           .torn = torn[self].as<unsigned long long>(),
                           .checked = torn[self].as<unsigned long long>() + 1,
                           .num_pairs = kPairs};
    check(launch_torture(args, kBulkBlocks), "launch_torture");
  }
  unsigned long long total_torn = 0;
  unsigned long long total_checked = 0;
  for (int device = 0; device < num_devices; ++device) {
    const DeviceGuard guard(device);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    unsigned long long result[2];
    check(cudaMemcpy(result, torn[static_cast<std::size_t>(device)].as(), 16, cudaMemcpyDeviceToHost), "cudaMemcpy");
    total_torn += result[0];
    total_checked += result[1];
  }
  EXPECT_EQ(total_torn, 0u);
  EXPECT_EQ(total_checked, epochs * kPairs * kLinesPerBlock * static_cast<unsigned>(num_devices));
  fmt::print("{{\"lines_checked\": {}, \"torn_words\": {}, \"gpus\": {}}}\n", total_checked, total_torn, num_devices);
}

}  // namespace
}  // namespace flashmoe::test
