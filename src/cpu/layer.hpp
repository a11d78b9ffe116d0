// One rank's end of a layer on the CPU backend: runs the rank's actors for a call in the caller's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "actors/rank_trace.hpp"
#include "core/expert_source.hpp"
#include "cpu/engine.hpp"
#include "cpu/fabric.hpp"
#include "cpu/heap.hpp"
#include "flashmoe/call_stats.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"
#include "planner/plan.hpp"

namespace flashmoe::cpu {

/// The tile of the CPU engine and the m-blocks it keeps.
EngineTraits engine_traits();

struct RankOptions {
  Roster roster{.num_dispatchers = 1, .num_processors = 1};
  int num_threads = 1;             ///< threads that step the rank's actors; 0: one an actor
  int flush_after_idle_steps = 64;  ///< see Scheduler
};

/// What every layer of a rank on one heap shares: its scratch memory, and that one call runs at a time.
class RankContext {
 public:
  RankContext(std::shared_ptr<Heap> heap, int rank, const RankOptions& options);

  Heap& heap() const { return *heap_; }
  int rank() const { return rank_; }
  const RankOptions& options() const { return options_; }
  std::size_t local_bytes() const { return local_layout_.total_bytes; }
  std::mutex& mutex() { return mutex_; }

  /// A call's common part; the layer adds its own.
  Call make_call() const;

 private:
  std::shared_ptr<Heap> heap_;
  int rank_;
  RankOptions options_;
  LocalLayout local_layout_;
  Pages local_;
  std::mutex mutex_;
};

/// One rank's tensors of one call.
struct CallInput {
  ConstRows x;              // [num_tokens][hidden]
  RoutingView routing;      // [num_tokens][top_k]
  Rows y;                   // [num_tokens][hidden]
  std::int64_t max_tokens = 0;  ///< the same on all ranks
};

struct CallStats {
  CallPlan plan;
  std::uint64_t epoch = 0;
  Traffic traffic;
  PhaseTimes phases;
};

/// The arithmetic of a problem's experts.
ExpertMath expert_math(const Problem& problem);

/// One rank's part of one call, as its actors see it. Throws as plan_call().
Call make_call(const RankContext& context, const Problem& problem, std::uint64_t layer_id, const CallInput& input);

class Layer {
 public:
  /// `problem` has passed validate(); `geometry` is the heap's. layer_id: the same on all ranks, one a layer of a heap.
  Layer(std::shared_ptr<RankContext> context, const Problem& problem, std::shared_ptr<const ExpertSource> experts,
        std::uint64_t layer_id);

  /// Collective: every rank of the heap calls. Blocks until this rank's y is done. Throws InvalidArgument on bad
  /// arguments before anything is sent (the call may be repeated), and on a wrong id in the middle of it; Timeout when
  /// `deadline_seconds` pass in which no rank gets on; FabricError when ranks disagree or another one failed.
  /// `trace`: where every actor's steps are recorded, or null.
  CallStats forward(const CallInput& input, double deadline_seconds, RankTrace* trace = nullptr);

 private:
  std::shared_ptr<RankContext> context_;
  Problem problem_;
  std::shared_ptr<const ExpertSource> experts_;
  std::uint64_t layer_id_;
  std::vector<Engine> engines_;
};

}  // namespace flashmoe::cpu
