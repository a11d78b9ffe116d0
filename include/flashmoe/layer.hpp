// One rank's end of a distributed MoE layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flashmoe/call_stats.hpp"
#include "flashmoe/export.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe {

struct LayerOptions {
  double deadline_seconds = 0;  ///< of this layer's calls; 0: the group's
};

/// Where and how a call is launched.
struct StreamCall {
  void* stream = nullptr;                    ///< a cudaStream_t of the rank's GPU; null: its default stream
  std::int64_t max_tokens = 0;               ///< as of forward()
  const std::int64_t* num_tokens = nullptr;  ///< GPU memory: rows of x that count, at most x.num_rows; null: all
};

struct HeapRegionInfo {
  std::string name;
  std::size_t offset_bytes = 0;
  std::size_t bytes = 0;
};

/// What a layer holds and how it will run.
struct LayerInfo {
  std::string engine;                        ///< who computes the tiles
  int device = -1;                           ///< the rank's GPU; -1 on backend cpu
  std::string plan;                          ///< forms and sizes of a call of max_tokens, and why, in one sentence
  WireForm wire_form = WireForm::counted;         ///< of a call of max_tokens
  ResultForm result_form = ResultForm::per_route; ///< the same
  std::int64_t wave_tokens = 0;              ///< most tokens of a wave (counted form)
  int wave_ring = 0;                         ///< waves in flight per source
  std::int64_t lined_tokens = 0;             ///< most tokens of a call in lined form; 0: never
  std::size_t heap_bytes = 0;                ///< symmetric memory of one rank; layers of one geometry share it
  std::size_t local_bytes = 0;               ///< scratch memory of one rank, shared like the heap
  std::vector<HeapRegionInfo> heap_regions;  ///< in memory order
};

/// A layer exists once on every rank of its group. The ranks create their layers in the same order, each on its own
/// thread or one after another: creation waits for nobody, except in a group of processes (Group::join). The n-th layer
/// of a rank belongs with the n-th of the others; layers of one geometry share a heap and run one after another, in the
/// same order on every rank.
/// Calls of one Layer object do not overlap: a second thread waits. Movable; a moved-from layer may only be destroyed
/// or assigned to.
class FLASHMOE_API Layer {
 public:
  /// `local_weights`: this rank's experts, in the backend's memory, unchanged and alive as long as the layer.
  /// Throws InvalidArgument when the problem breaks a rule, is for another number of ranks than the group's, `rank` is
  /// not one of them, or the weights lack a tensor the problem has; FabricError when another rank's layer of the same
  /// number has another problem, naming the first field that differs; Error when there is no memory. A creation that
  /// throws does not count, and may be tried again. In a group of processes what one rank cannot do (no memory, say) is
  /// thrown on all, and a rank whose arguments are refused is waited for.
  Layer(const Group& group, int rank, const Problem& problem, const WeightsView& local_weights,
        const LayerOptions& options = {});
  ~Layer();
  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;

  /// Collective: every rank calls, with its own tokens (none, too), and gets its own results.
  ///   x        [num_tokens][hidden], num_tokens = x.num_rows in 0..max_tokens; not changed
  ///   routing  [num_tokens][top_k]: global expert ids (-1: none) and fp32 weights
  ///   y        [num_tokens][hidden] out; may not overlap the others
  /// `max_tokens`: at least every rank's num_tokens and the same on all ranks; 0: the problem's.
  /// Blocks until this rank's y is done. Throws InvalidArgument on arguments that do not fit, before anything is
  /// sent (the call may be repeated); InvalidArgument on a wrong id, FabricError when ranks disagree about the call or
  /// another one failed, and Timeout when nobody gets on for the deadline: after these three the heap is dead, every
  /// later call on it throws Timeout with the first record, and new layers get a new heap.
  CallStats forward(ConstRows x, RoutingView routing, Rows y, std::int64_t max_tokens = 0);

  /// Backend cuda: launches the call on a stream and returns at once; y is done in the order of the stream. The call is
  /// one launch and allocates nothing. It may be captured into a graph, which reads tensors and *num_tokens when it is
  /// replayed; the layer must outlive the graph. Nothing orders a replay and other calls of layers that share a heap
  /// but the caller's streams: they must not run at once (forward() has a stream of its own: synchronize before it).
  /// Several ranks of one process on one GPU: nothing may synchronise the device (cudaDeviceSynchronize) between the
  /// first rank's launch and the last's, since their kernels wait for each other. Throws InvalidArgument as forward(),
  /// and on backend cpu. What goes wrong later (a wrong id, ranks that disagree, nobody gets on for the deadline)
  /// leaves y undefined and the heap dead: the next call of a layer on it throws it, and check_calls() does.
  void enqueue(ConstRows x, RoutingView routing, Rows y, const StreamCall& where);

  /// Throws what a call that has finished by now ended with; waits for none.
  void check_calls() const;

  const LayerInfo& info() const;
  const Problem& problem() const;
  int rank() const;

 private:
  friend struct LayerFactory;
  struct State;
  explicit Layer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace flashmoe
