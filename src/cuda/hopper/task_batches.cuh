// The tasks of a call all of whose m-blocks are cut at once: in the order of experts a batch of up tasks each, then one of down
// tasks each. So whoever knows how many rows every expert has knows the task of every ticket: early_cut.cuh publishes them,
// opening.cuh need not look.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/m_blocks.hpp"
#include "cuda/groups.cuh"
#include "cuda/hopper/block.cuh"

namespace flashmoe::cuda_backend::hopper {

/// One expert's of one kind; of no rows it is empty.
struct ExpertBatch {
  int expert;
  std::uint32_t rows;
  TaskBatch tasks;
  TaskCursor at;
  std::uint32_t num_tickets;
};

/// All consumers of a block call every member together.
class TaskBatches {
 public:
  static constexpr int kSums = 3 * kConsumerWarps;

  /// `counts`: of routes, [num_ranks][num_local_experts]. `sums`: [kSums]. Both shared; who counts has to meet the others before.
  __device__ TaskBatches(const Call& call, const std::uint32_t* counts, std::uint32_t* sums, int thread)
      : call_(call), counts_(counts), sums_(sums), thread_(thread), num_experts_(call.geometry().num_local_experts) {
    const WarpGroup warp;
    std::uint32_t blocks = 0;
    bool grouped = true;
#pragma unroll 1
    for (int expert = thread; expert < num_experts_; expert += kConsumerThreads) {
      const std::uint32_t of_expert = blocks_of(rows_of(expert));
      grouped = grouped && of_expert <= kMostGrouped;
      blocks += of_expert;
    }
    blocks = warp.sum(blocks);
    if (warp.leader()) sums[thread / 32] = blocks;
    fit_ = all_consumers(grouped);
    num_blocks_ = sum_before(sums, kConsumerWarps);
    fit_ = fit_ && num_blocks_ <= static_cast<std::uint32_t>(call.geometry().num_m_blocks);
  }

  /// M-blocks of the call.
  __device__ std::uint32_t num_blocks() const { return num_blocks_; }
  /// Whether no expert has more than one group of them, and there is a place for each.
  __device__ bool fit() const { return fit_; }

  /// See tagged_rows_are_better(); of an expert's rows.
  __device__ bool tags(std::uint32_t rows) const { return tagged_rows_are_better(call_, rows, num_blocks_); }

  /// visit(ExpertBatch) for every expert, each by one thread, of its `kind` of tasks; the first is at `before`. Returns where what
  /// follows is.
  template <TaskKind kind, class Visit>
  __device__ __forceinline__ TaskCursor each(const TaskShape& shape, TaskCursor before, const Visit& visit) const {
    std::uint32_t blocks_before = 0;
#pragma unroll 1
    for (int base = 0; base < num_experts_; base += kConsumerThreads) {
      ExpertBatch batch{.expert = base + thread_, .rows = 0, .tasks = {.kind = kind}, .at = {}, .num_tickets = 0};
      if (batch.expert < num_experts_) batch.rows = rows_of(batch.expert);
      batch.tasks.size = blocks_of(batch.rows);
      // M-blocks and batches in one sum.
      const Scan blocks =
          scan_consumers(batch.tasks.size * kBlock + (batch.tasks.size > 0 ? 1u : 0u), sums_ + kConsumerWarps, thread_);
      batch.tasks.index = blocks_before + blocks.before / kBlock;
      choose_tasks(batch);
      if (batch.tasks.size > 0) batch.num_tickets = shape.num_tickets(batch.tasks);
      const Scan tickets = scan_consumers(batch.num_tickets, sums_ + 2 * kConsumerWarps, thread_);
      batch.at = {before.batch + blocks.before % kBlock, before.ticket + tickets.before};
      visit(batch);
      before = {before.batch + blocks.total % kBlock, before.ticket + tickets.total};
      blocks_before += blocks.total / kBlock;
    }
    return before;
  }

 private:
  static constexpr std::uint32_t kBlock = 1u << 13;
  static_assert(Limits::num_experts < kBlock);

  __device__ void choose_tasks(ExpertBatch& batch) const {
    const std::uint32_t first = batch.tasks.index;
    if (batch.tasks.kind == TaskKind::down) {
      choose_downs(call_, {.first = first, .cut = num_blocks_, .retired = 0}, batch.tasks);
    } else {
      choose_ups(call_, {.rows = batch.rows, .of_call = num_blocks_, .cut = num_blocks_, .from_here = num_blocks_ - first},
                 batch.tasks);
      batch.tasks.narrow = batch.tasks.narrow || begins_out_of_step(call_, batch.rows, first, num_blocks_);
    }
  }

  /// From all sources.
  __device__ std::uint32_t rows_of(int expert) const {
    std::uint32_t rows = 0;
#pragma unroll 1
    for (int source = 0; source < call_.geometry().num_ranks; ++source) rows += counts_[source * num_experts_ + expert];
    return rows;
  }
  /// The engine's tile is what the call's geometry says, but a GPU divides by a constant sooner; gated or not, it has these rows.
  __device__ static std::uint32_t blocks_of(std::uint32_t rows) { return rows > 0 ? m_blocks_of(tile_shape(true), rows) : 0; }

  const Call& call_;
  const std::uint32_t* counts_;
  std::uint32_t* sums_;
  int thread_;
  int num_experts_;
  std::uint32_t num_blocks_ = 0;
  bool fit_ = false;
};

}  // namespace flashmoe::cuda_backend::hopper
