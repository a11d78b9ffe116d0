// The first task of a block, in a call of few tokens of one rank: all ids are there at the start, so the block's consumers find the
// up task of its ticket, and its rows, before any list is made or any m-block cut. Its weights are under way some microseconds
// sooner, and lists and m-blocks have the time that it takes.
#pragma once

#include <cstdint>

#include "core/divide.hpp"
#include "cuda/hopper/early_cut.cuh"
#include "cuda/hopper/task_batches.cuh"
#include "cuda/kernel_args.hpp"

namespace flashmoe::cuda_backend::hopper {

class Opening {
 public:
  /// How many blocks of a call open: all, or none, but for those that lend their stages, which have lists and m-blocks to make.
  /// A block's ticket is its number behind them. What it rests on is that EarlyCut cuts this call, if TaskBatches::fit(): the
  /// scheduler does not refuse.
  __device__ static std::uint32_t num_blocks(const KernelArgs& args, const Call& call) {
    const Geometry& g = call.geometry();
    const bool few = call.num_tokens * g.top_k <= kMostRoutes && g.num_local_experts <= kMostExperts;
    const bool applies = args.early_cut && g.num_ranks == 1 && call.num_tokens > 0 && few && EarlyCut::applies(call);
    return applies ? gridDim.x - static_cast<unsigned>(num_lenders(call)) : 0;
  }

  /// `thread`: of the consumers.
  __device__ Opening(const KernelArgs& args, const Call& call, BlockMemory& block, int thread)
      : args_(args), call_(call), block_(block), notes_(notes_of(block)), thread_(thread),
        routes_(static_cast<int>(call.num_tokens) * call.geometry().top_k) {}

  /// Before the block's roles begin, of any call without pairs, by all consumers. Returns the id of route `thread`, on its way
  /// while the call is loaded; if there is none, anything.
  __device__ static std::int32_t prepare(const KernelArgs& args, BlockMemory& block, int thread) {
    if (args.call.geometry().num_ranks > 1) return -1;
    notes_of(block).counts[thread] = 0;
    return thread < args.call.num_tokens * args.call.geometry().top_k ? args.call.topk_ids[thread] : -1;
  }

  /// All consumers, instead of the foreman's claim of its first ticket. `first_id`: what prepare() returned.
  __device__ void run(std::int32_t first_id) const {
    count(first_id);
    const bool opens = find();
    if (thread_ == 0) block_.opens = opens;
    if (opens) {
      if (thread_ < 32) block_.filled[0].arrive();  // in the place of the foreman's lanes
      find_rows();
      await_consumers();
      if (thread_ < 32) block_.located[0].arrive();
      if (thread_ < 32) block_.stored[0].arrive();
    }
    block_.opened.arrive();
  }

 private:
  static constexpr int kRoutesEach = 16;  ///< whose experts a thread looks at
  static constexpr int kMostRoutes = kRoutesEach * kConsumerThreads;
  static constexpr int kMostExperts = kConsumerThreads;
  static constexpr std::uint16_t kNoExpert = 0xffff;

  /// In shared memory, in the place of the staging areas: what the ids say.
  struct Notes {
    alignas(16) std::uint16_t experts[kMostRoutes];  ///< of each route; kNoExpert: none
    std::uint32_t counts[kMostExperts];              ///< of routes
    std::uint32_t sums[TaskBatches::kSums];
    std::uint32_t first_row;                         ///< of the task, among its expert's
  };
  static_assert(sizeof(Notes) <= sizeof(BlockMemory::staging));
  __device__ static Notes& notes_of(BlockMemory& block) { return *reinterpret_cast<Notes*>(block.staging[0]); }

  __device__ void note(int route, std::int32_t id) const {
    const bool exists = static_cast<std::uint32_t>(id) < static_cast<std::uint32_t>(call_.geometry().num_local_experts);
    notes_.experts[route] = exists ? static_cast<std::uint16_t>(id) : kNoExpert;
    if (exists) atomicAdd(&notes_.counts[id], 1u);
  }

  __device__ void count(std::int32_t first_id) const {
    if (thread_ < routes_) note(thread_, first_id);
#pragma unroll 8
    for (int route = thread_ + kConsumerThreads; route < routes_; route += kConsumerThreads) note(route, call_.topk_ids[route]);
    await_consumers();
  }

  /// The task of the block's ticket into its slot, if it is an up task.
  __device__ bool find() const {
    const TaskBatches batches(call_, notes_.counts, notes_.sums, thread_);
    if (!batches.fit()) return false;
    const TaskShape shape = call_.task_ring(1).shape();
    const std::uint32_t number = block_.ticket;
    bool found = false;
    batches.each<TaskKind::up>(shape, {}, [&](const ExpertBatch& batch) __attribute__((always_inline)) {
      if (number - batch.at.ticket >= batch.num_tickets) return;
      found = true;
      TaskSlot& slot = block_.slots[0];
      slot.task = shape.task(batch.tasks, number - batch.at.ticket);
      slot.number = 0;
      const std::uint32_t before = slot.task.index - batch.tasks.index;
      const bool last = before + 1 == batch.tasks.size;
      notes_.first_row = before * kTileRows;
      describe_product<false>(slot, call_, static_cast<std::uint32_t>(batch.expert),
                              last ? batch.rows - before * kTileRows : kTileRows, batch.tasks.size, batches.tags(batch.rows),
                              static_cast<std::uint32_t>(args_.decode_rows));
    });
    return any_consumer(found);
  }

  /// The task's rows, in the order of lists: that of routes.
  __device__ void find_rows() const {
    TaskSlot& slot = block_.slots[0];
    std::uint16_t experts[kRoutesEach];
    memcpy(experts, __builtin_assume_aligned(notes_.experts + thread_ * kRoutesEach, 16), sizeof(experts));
    unsigned mine = 0;  // a bit a route
#pragma unroll
    for (int i = 0; i < kRoutesEach; ++i) {
      if (thread_ * kRoutesEach + i < routes_ && experts[i] == slot.local_expert) mine |= 1u << i;
    }
    const Scan scan = scan_consumers(static_cast<std::uint32_t>(__popc(mine)), notes_.sums, thread_);
    std::uint32_t row = scan.before - notes_.first_row;  // below 0, and so above all, in an m-block before
#pragma unroll 1
    for (; mine != 0; mine &= mine - 1, ++row) {
      if (row >= slot.num_rows) continue;
      const int route = thread_ * kRoutesEach + __ffs(static_cast<int>(mine)) - 1;
      slot.rows[row] = reinterpret_cast<std::uint64_t>(call_.x_row(divide_small(route, call_.geometry().top_k)));
      if (call_.math.weight_on_input) slot.weights[row] = call_.topk_weights[route];
    }
  }

  const KernelArgs& args_;
  const Call& call_;
  BlockMemory& block_;
  Notes& notes_;
  int thread_;
  int routes_;
};

}  // namespace flashmoe::cuda_backend::hopper
