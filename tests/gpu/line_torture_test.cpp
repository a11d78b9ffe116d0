// Lines do not tear: a warp's 128-byte stores, to this GPU and to peers, are read whole or not at all, with bulk
// traffic beside them, from lines that both sides just used (warm) and from lines long gone from L2 (cold).
// FLASHMOE_TORTURE_LINES sets how many lines are checked each way (default 2e6); the lines printed are the record.
#include "line_torture.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "cuda/memory.hpp"
#include "device.hpp"

namespace flashmoe::test {
namespace {

using namespace cuda_backend;

constexpr int kPairs = 32;
constexpr int kBulkBlocks = 64;
constexpr std::size_t kBulkBytes = 64 << 20;

struct Tally {
  unsigned long long torn = 0;
  unsigned long long checked = 0;
};

/// Lines go round a ring of GPUs, each to the next, `num_sets` sets of them; each set `num_rounds` times.
class Torture {
 public:
  Torture(int num_devices, std::uint64_t num_sets) : num_devices_(num_devices), num_sets_(num_sets) {
    for (int device = 0; device < num_devices; ++device) {
      const DeviceGuard guard(device);
      for (int peer = 0; peer < num_devices; ++peer) {
        if (peer == device) continue;
        const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
        if (result != cudaErrorPeerAccessAlreadyEnabled) check(result, "cudaDeviceEnablePeerAccess");
        cudaGetLastError();
      }
      lines_.emplace_back(device, sizeof(Line) * kPairs * num_sets * kLinesPerBlock);
      bulk_.emplace_back(device, kBulkBytes);
    }
  }

  Tally run(std::uint64_t num_rounds) {
    std::vector<DeviceMemory> done, torn;
    for (int device = 0; device < num_devices_; ++device) {
      done.emplace_back(device, sizeof(std::uint64_t) * kPairs * 4);
      torn.emplace_back(device, 16);
    }
    for (int device = 0; device < num_devices_; ++device) {
      const DeviceGuard guard(device);
      const auto to = static_cast<std::size_t>((device + 1) % num_devices_);
      const auto from = static_cast<std::size_t>((device + num_devices_ - 1) % num_devices_);
      const auto self = static_cast<std::size_t>(device);
      const TortureArgs args{.target = lines_[to].as<Line>(),
                             .own = lines_[self].as<Line>(),
                             .reader_done = done[from].as<std::uint64_t>(),
                             .own_done = done[self].as<std::uint64_t>(),
                             .bulk_target = bulk_[to].as(),
                             .bulk_bytes = kBulkBytes,
                             .num_epochs = num_rounds * num_sets_,
                             .num_sets = num_sets_,
                             .torn = torn[self].as<unsigned long long>(),
                             .checked = torn[self].as<unsigned long long>() + 1,
                             .num_pairs = kPairs};
      check(launch_torture(args, kBulkBlocks), "launch_torture");
    }
    Tally tally;
    for (int device = 0; device < num_devices_; ++device) {
      const DeviceGuard guard(device);
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      unsigned long long result[2];
      check(cudaMemcpy(result, torn[static_cast<std::size_t>(device)].as(), 16, cudaMemcpyDeviceToHost), "cudaMemcpy");
      tally.torn += result[0];
      tally.checked += result[1];
    }
    return tally;
  }

  std::uint64_t lines_a_round() const {
    return num_sets_ * kPairs * kLinesPerBlock * static_cast<std::uint64_t>(num_devices_);
  }

 private:
  int num_devices_;
  std::uint64_t num_sets_;
  std::vector<DeviceMemory> lines_, bulk_;  // [num_devices]
};

void expect_whole(const char* name, std::uint64_t num_sets) {
  int num_devices = 0;
  check(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  const char* wanted = std::getenv("FLASHMOE_TORTURE_LINES");
  Torture torture(num_devices, num_sets);
  const auto lines = static_cast<std::uint64_t>(wanted != nullptr ? std::atof(wanted) : 2e6);
  const std::uint64_t rounds = std::max<std::uint64_t>(1, lines / torture.lines_a_round());
  const Tally tally = torture.run(rounds);
  EXPECT_EQ(tally.torn, 0u);
  EXPECT_EQ(tally.checked, rounds * torture.lines_a_round());
  fmt::print("{{\"{0}_lines_checked\": {1}, \"{0}_torn_words\": {2}}}\n", name, tally.checked, tally.torn);
}

TEST(Lines, never_tear_when_warm) {
  FLASHMOE_REQUIRE_GPUS(1);
  expect_whole("warm", 2);
}

TEST(Lines, never_tear_when_cold) {
  FLASHMOE_REQUIRE_GPUS(1);
  expect_whole("cold", 512);  // 2 GiB: a line has left L2 when its turn comes again
}

}  // namespace
}  // namespace flashmoe::test
