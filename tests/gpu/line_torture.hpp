// The kernel of line_torture_test.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/line.hpp"

namespace flashmoe::test {

inline constexpr int kLinesPerBlock = 1024;  // a writer fills so many lines an epoch

struct TortureArgs {
  Line* target;                // [num_pairs][num_sets][kLinesPerBlock], the writer's peer's memory
  const Line* own;             // same, here
  std::uint64_t* reader_done;  // [num_pairs][4] at the rank whose lines we read: epochs each reader warp has checked
  std::uint64_t* own_done;     // [num_pairs][4] here, added to by the readers of our lines
  char* bulk_target;           // [bulk_bytes], the peer's
  std::size_t bulk_bytes;
  std::uint64_t num_epochs;
  std::uint64_t num_sets;      // a set is written again so many epochs later
  unsigned long long* torn;
  unsigned long long* checked;
  int num_pairs;
};

/// Launches writers, readers and `num_bulk_blocks` blocks of bulk traffic on the current device.
cudaError_t launch_torture(const TortureArgs& args, int num_bulk_blocks);

}  // namespace flashmoe::test
