// M-blocks cut as soon as all ids are there (Call::listed_from_ids), by the consumers of the scheduler's block, which have no task
// yet: how many rows every expert will have follows from ids. Their tasks are published while lists are made and rows are on their
// way, so that weights are, too; foremen wait for the rows. What comes out are the m-blocks that the scheduler would cut once all
// has landed, but that a group of them may take more than a third of the ring.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/id_lines.hpp"
#include "actors/m_blocks.hpp"
#include "cuda/groups.cuh"
#include "cuda/hopper/block.cuh"
#include "cuda/hopper/task_batches.cuh"

namespace flashmoe::cuda_backend::hopper {

class EarlyCut {
 public:
  /// Whether a call's m-blocks are cut so, if the ids of other ranks come in time and are few, and if TaskBatches::fit().
  __device__ static bool applies(const Call& call) {
    const Geometry& g = call.geometry();
    const int words = 2 * kConsumerWarps * kIdWords + TaskBatches::kSums + kMostRanks + 2 * g.num_ranks * g.num_local_experts;
    const bool few_tokens = call.num_tokens == 0 || call.listed_from_ids(call.num_tokens);
    return few_tokens && !call.pre_reduced() && g.num_ranks <= kMostRanks && words * 4 <= kStages * kStageBytes;
  }

  /// `warp`: of the consumer warps.
  __device__ EarlyCut(const Call& call, BlockMemory& block, int warp)
      : call_(call), block_(block), warp_(warp), thread_(warp * 32 + static_cast<int>(threadIdx.x % 32)),
        num_experts_(call.geometry().num_local_experts) {}

  /// All consumers of the scheduler's block, before they take tasks. The stages are theirs. `cuts` counts calls that they cut.
  __device__ void run(bool wanted, unsigned long long& cuts) {
    const TaskCursor first = call_.task_ring(1).first();  // on its way beside the ids
    const bool done = wanted && applies(call_) && count_all(first) && cut(first);
    if (thread_ == 0 && !done) block_.cut_desk.refuse();
    if (thread_ == 0 && done) atomicAdd(&cuts, 1ull);
    fence_async_shared();
    block_.listed.arrive();
  }

 private:
  /// Most of a warp's share of a source's ids, which goes by lines.
  static constexpr int kIdWords = kMostListedRoutes / 2 / kConsumerWarps + 2 * Line::kDataWords;
  static constexpr int kMostRanks = MBlock::kMaxSegments;  ///< an m-block may have rows of each
  static constexpr int kThreads = kConsumerThreads;

  // What the stages hold: ids as a warp reads them, sums of warps, wave slots of sources; of every source and expert how many
  // routes there are, and where in the source's list they begin.
  __device__ std::uint64_t* ids() const { return reinterpret_cast<std::uint64_t*>(block_.stages[0]) + warp_ * kIdWords; }
  __device__ std::uint32_t* sums() const {
    return reinterpret_cast<std::uint32_t*>(reinterpret_cast<std::uint64_t*>(block_.stages[0]) + kConsumerWarps * kIdWords);
  }
  __device__ int* slots() const { return reinterpret_cast<int*>(sums() + TaskBatches::kSums); }
  __device__ std::uint32_t* counts() const { return reinterpret_cast<std::uint32_t*>(slots() + kMostRanks); }
  __device__ std::uint32_t* firsts() const { return counts() + call_.geometry().num_ranks * num_experts_; }

  /// Counts every source's routes as its ids come. False where a source has too many, or the scheduler waits no longer.
  __device__ bool count_all(const TaskCursor& first) const {
    const int all_counts = call_.geometry().num_ranks * num_experts_;
#pragma unroll 1
    for (int i = thread_; i < all_counts; i += kThreads) counts()[i] = 0;
    await_consumers();
    bool rehearsed = false;
#pragma unroll 1
    for (int offset = 0; offset < call_.geometry().num_ranks; ++offset) {
      const int source = call_.peer_at(offset);
      Ids seen = Ids::awaited;
      while (true) {
        if (seen == Ids::awaited) seen = source == call_.rank ? count_own() : count_lines(source);
        if (all_consumers(seen == Ids::counted)) break;
        // Before anything is cut a task can only be the exit of a rank that gives up: nobody refuses then.
        if (any_consumer(seen == Ids::refused || block_.cut_desk.refused() || block_.filled[0].test(0))) return false;
        if (rehearsed) {
          __nanosleep(kLookPauseNs);
        } else {
          rehearse(first);
          rehearsed = true;
        }
      }
    }
    return true;
  }

  enum class Ids : std::uint8_t { awaited, counted, refused };

  __device__ void count(int source, std::int32_t id) const {
    const std::uint32_t expert = static_cast<std::uint32_t>(id) - static_cast<std::uint32_t>(call_.rank * num_experts_);
    if (expert >= static_cast<std::uint32_t>(num_experts_)) return;
    atomicAdd(&counts()[source * num_experts_ + static_cast<int>(expert)], 1u);
  }

  __device__ Ids count_own() const {
    const auto routes = static_cast<int>(call_.num_tokens) * call_.geometry().top_k;
#pragma unroll 4
    for (int route = thread_; route < routes; route += kThreads) count(call_.rank, call_.topk_ids[route]);
    return Ids::counted;
  }

  /// This warp's share of another rank's ids, if all of its lines have come.
  __device__ Ids count_lines(int source) const {
    const WarpGroup warp;
    const auto* header_line = call_.heap_at<const Line>(call_.heap.header(source, call_.epoch));
    if (!try_load_lines(warp, header_line, kHeaderWords, line_tag(call_.generation, call_.epoch), ids())) return Ids::awaited;
    warp.sync();
    const bool same = ids()[1] == call_.layer_id && ids()[2] == call_.plan_hash;  // else the subscriber says so
    const auto num_tokens = static_cast<std::int64_t>(ids()[3]);
    warp.sync();
    if (!same) return Ids::refused;
    if (num_tokens == 0) return Ids::counted;
    if (!call_.listed_from_ids(num_tokens)) return Ids::refused;
    const std::uint64_t sequence = call_.epoch_state().wave_sequence[source];
    const std::int64_t routes = num_tokens * call_.geometry().top_k;
    const std::int64_t words = id_words(call_.geometry(), num_tokens, false);
    const TokenRange share = share_of(num_lines(words), kConsumerWarps, warp_);
    const std::int64_t begin = share.begin * Line::kDataWords;
    const std::int64_t end = share.end * Line::kDataWords < words ? share.end * Line::kDataWords : words;
    if (begin >= end) return Ids::counted;
    if (end - begin > kIdWords) return Ids::refused;
    const auto* lines = call_.heap_at<const Line>(call_.id_lines(source, sequence)) + share.begin;
    if (!try_load_lines(warp, lines, end - begin, call_.id_tag(sequence), ids())) return Ids::awaited;
    warp.sync();
    const auto last = static_cast<int>(2 * end < routes ? 2 * end : routes);
    const auto* first = reinterpret_cast<const std::int32_t*>(ids());
#pragma unroll 4
    for (int route = static_cast<int>(2 * begin) + warp.index(); route < last; route += warp.size()) {
      count(source, first[route - static_cast<int>(2 * begin)]);
    }
    return Ids::counted;
  }

  /// Cuts nothing: the code is fetched while there is time.
  __device__ void rehearse(const TaskCursor& first) const {
    await_consumers();
    find_firsts();
    fill(TaskBatches(call_, counts(), sums(), thread_), first, true);
    await_consumers();
  }

  /// False where the m-blocks need more places than there are, or the scheduler waits no longer.
  __device__ bool cut(const TaskCursor& first) const {
    await_consumers();
    find_firsts();
    const TaskBatches batches(call_, counts(), sums(), thread_);
    if (!batches.fit() || !all_consumers(thread_ != 0 || block_.cut_desk.begin())) return false;
    const TaskCursor end = fill(batches, first, false);
    await_consumers();
    if (thread_ == 0) {
      call_.task_ring(1).end_at(end);
      block_.cut_desk.tell_made(batches.num_blocks());
    }
    if (thread_ % 128 == 0) block_.logs[kFirstConsumerRow + warp_ / 4].worked();
    return true;
  }

  /// A warp has every eighth source.
  __device__ void find_firsts() const {
    const WarpGroup warp;
#pragma unroll 1
    for (int source = warp_; source < call_.geometry().num_ranks; source += kConsumerWarps) {
      const int ring_slot = call_.lined() ? 0 : call_.ring_slot(call_.epoch_state().wave_sequence[source]);
      if (warp.leader()) slots()[source] = call_.wave_slot(source, ring_slot);
      std::uint32_t before = 0;
#pragma unroll 1
      for (int base = 0; base < num_experts_; base += warp.size()) {
        const int expert = base + warp.index();
        const Scan routes = warp.scan(expert < num_experts_ ? counts()[source * num_experts_ + expert] : 0);
        if (expert < num_experts_) firsts()[source * num_experts_ + expert] = before + routes.before;
        before += routes.total;
      }
    }
  }

  /// Fills the m-blocks and publishes their tasks, from `first` on; rehearsing it does neither.
  __device__ __forceinline__ TaskCursor fill(const TaskBatches& batches, const TaskCursor& first, bool rehearsing) const {
    const TaskRing ring = call_.task_ring(1);
    const TaskCursor downs = batches.each<TaskKind::up>(ring.shape(), first, [&](const ExpertBatch& ups)
                                                        __attribute__((always_inline)) {
      const std::uint32_t size = rehearsing ? 0 : ups.tasks.size;
      if (size == 0 && (!rehearsing || ups.expert >= num_experts_)) return;
      const RowsByCounts counted{counts() + ups.expert, firsts() + ups.expert, slots(), num_experts_, call_.geometry().wave_ring};
      fill_m_blocks(call_, {ups.expert, ups.tasks.index, size, ups.rows, rehearsing, true, batches.tags(ups.rows)}, counted);
      if (rehearsing) return;
      fence_release<Scope::device>();
      ring.place(ups.at, ups.tasks);
    });
    return batches.each<TaskKind::down>(ring.shape(), downs, [&](const ExpertBatch& of_expert) __attribute__((always_inline)) {
      if (of_expert.tasks.size > 0 && !rehearsing) ring.place(of_expert.at, of_expert.tasks);
    });
  }

  const Call& call_;
  BlockMemory& block_;
  int warp_;
  int thread_;
  int num_experts_;
};

}  // namespace flashmoe::cuda_backend::hopper
