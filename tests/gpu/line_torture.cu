#include "line_torture.hpp"

#include "cuda/fabric.cuh"

namespace flashmoe::test {
namespace {

using namespace cuda_backend;

/// A wait that takes so many polls has failed; the host sees it as lines not checked.
constexpr std::uint64_t kMaxPolls = 10'000'000;

__device__ std::uint64_t content(std::uint64_t epoch, int line, int word) {
  std::uint64_t x = epoch * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(line) * 64;
  x += static_cast<std::uint64_t>(word);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 27);
}

/// Blocks 0..num_pairs-1: warps 0-3 write, warps 4-7 read and check; a set is written again once it is checked. The
/// other blocks stream bulk rows to the peer.
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
    const std::size_t set = (static_cast<std::size_t>(pair) * args.num_sets + epoch % args.num_sets) * kLinesPerBlock;
    const std::uint64_t tag = line_tag(1, epoch);
    if (warp < 4) {
      // This warp's lines that were in the set before have been checked.
      std::uint64_t polls = 0;
      while (epoch >= args.num_sets &&
             observe<Scope::system>(args.own_done + pair * 4 + warp) < epoch - args.num_sets + 1 &&
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
        add<Scope::system>(args.reader_done + pair * 4 + warp % 4, std::uint64_t{1});
      }
    }
  }
}

}  // namespace

cudaError_t launch_torture(const TortureArgs& args, int num_bulk_blocks) {
  torture<<<static_cast<unsigned>(args.num_pairs + num_bulk_blocks), 256>>>(args);
  return cudaGetLastError();
}

}  // namespace flashmoe::test
