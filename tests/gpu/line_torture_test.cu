// Lines do not tear: a warp's 128-byte stores, to this GPU and to peers, are read whole or not at all, with bulk
// traffic beside them. FLASHMOE_TORTURE_LINES sets how many lines are checked (default 2e6); the last line printed
// is the record.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/fabric.cuh"
#include "cuda/memory.hpp"
#include "device.hpp"

namespace flashmoe::test {
namespace {

using namespace cuda_backend;

constexpr int kLinesPerBlock = 1024;  // a writer fills so many lines an epoch
constexpr int kSets = 2;
constexpr std::uint64_t kMaxPolls = 200'000'000;

struct TortureArgs {
  Line* target;                // [num_pairs][kSets][kLinesPerBlock], the writer's peer's memory
  const Line* own;             // same, here
  std::uint64_t* peer_epochs;  // [num_pairs] in the writer's peer: what the reader of our lines has finished
  std::uint64_t* own_done;     // [num_pairs] here, added to by the reader of our lines
  char* bulk_target;           // [bulk_bytes], the peer's
  std::size_t bulk_bytes;
  std::uint64_t num_epochs;
  unsigned long long* torn;
  unsigned long long* checked;
  int num_pairs;
};

__device__ std::uint64_t content(std::uint64_t epoch, int line, int word) {
  std::uint64_t x = epoch * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(line) * 64 + static_cast<std::uint64_t>(word);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 27);
}

/// Blocks 0..num_pairs-1: warps 0-3 write, warps 4-7 read and check, as long as the reader of a set was done before
/// it is written again. The other blocks stream bulk rows to the peer.
__global__ void __launch_bounds__(256) torture(const __grid_constant__ TortureArgs args) {
  const WarpGroup group;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int pair = static_cast<int>(blockIdx.x);
  if (pair >= args.num_pairs) {
    const std::size_t stride = (gridDim.x - static_cast<unsigned>(args.num_pairs)) * 256ull * 16;
    for (std::uint64_t round = 0; round < args.num_epochs / 8 + 1; ++round) {
      for (std::size_t at = ((blockIdx.x - static_cast<unsigned>(args.num_pairs)) * 256ull + threadIdx.x) * 16;
           at < args.bulk_bytes; at += stride) {
        store_16(args.bulk_target + at, make_uint4(static_cast<unsigned>(round), 1, 2, 3));
      }
    }
    return;
  }
  const int lines = kLinesPerBlock / 4;
  const int first = (warp % 4) * lines;
  for (std::uint64_t epoch = 0; epoch < args.num_epochs; ++epoch) {
    const std::size_t set = (static_cast<std::size_t>(pair) * kSets + epoch % kSets) * kLinesPerBlock;
    const std::uint64_t tag = line_tag(1, epoch);
    if (warp < 4) {
      // Our lines of two epochs ago have been checked by all four reader warps.
      std::uint64_t polls = 0;
      while (epoch >= kSets && observe<Scope::system>(args.own_done + pair) < 4 * (epoch - kSets + 1) &&
             ++polls < kMaxPolls) {
      }
      const int part = group.index() % kLineThreads;
      for (int base = 0; base < lines; base += 4) {
        const int line = first + base + group.index() / kLineThreads;
        const std::uint64_t low = content(epoch, line, 2 * part);
        const std::uint64_t high = part == kLineThreads - 1 ? tag : content(epoch, line, 2 * part + 1);
        store_16(reinterpret_cast<char*>(args.target + set + line) + part * 16,
                 make_uint4(static_cast<unsigned>(low), static_cast<unsigned>(low >> 32), static_cast<unsigned>(high),
                            static_cast<unsigned>(high >> 32)));
      }
    } else {
      const int part = group.index() % kLineThreads;
      unsigned long long torn = 0;
      for (int base = 0; base < lines; base += 4) {
        const int line = first + base + group.index() / kLineThreads;
        uint4 value;
        std::uint64_t polls = 0;
        do {
          value = load_16(reinterpret_cast<const char*>(args.own + set + line) + part * 16);
        } while (!group.all(part != kLineThreads - 1 || (value.z | (std::uint64_t{value.w} << 32)) == tag) &&
                 ++polls < kMaxPolls);
        const std::uint64_t low = value.x | (std::uint64_t{value.y} << 32);
        const std::uint64_t high = value.z | (std::uint64_t{value.w} << 32);
        if (low != content(epoch, line, 2 * part)) ++torn;
        if (high != (part == kLineThreads - 1 ? tag : content(epoch, line, 2 * part + 1))) ++torn;
      }
      if (torn > 0) atomicAdd(args.torn, torn);
      __syncwarp();
      if (group.leader()) {
        atomicAdd(args.checked, static_cast<unsigned long long>(lines));
        add<Scope::system>(args.peer_epochs + pair, std::uint64_t{1});
      }
    }
  }
}

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
    done.emplace_back(device, sizeof(std::uint64_t) * kPairs);
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
                           .peer_epochs = done[from].as<std::uint64_t>(),
                           .own_done = done[self].as<std::uint64_t>(),
                           .bulk_target = bulk[to].as(),
                           .bulk_bytes = kBulkBytes,
                           .num_epochs = epochs,
                           .torn = torn[self].as<unsigned long long>(),
                           .checked = torn[self].as<unsigned long long>() + 1,
                           .num_pairs = kPairs};
    torture<<<kPairs + kBulkBlocks, 256>>>(args);
    check(cudaGetLastError(), "torture");
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
