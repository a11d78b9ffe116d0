// What a backend gives a group: heaps all its ranks reach, and each rank's end of a layer on one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "actors/rank_trace.hpp"
#include "api/timed_calls.hpp"
#include "core/expert_source.hpp"
#include "core/heap_layout.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/rank_gpus.hpp"
#include "flashmoe/call_stats.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/layer.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"
#include "planner/plan.hpp"

namespace flashmoe {

/// One rank's experts where the layers of a backend read them: Backend::load(). What the rank's layers share.
class LoadedExperts {
 public:
  virtual ~LoadedExperts() = default;
};

/// One rank's experts: dense in the backend's memory, which the caller keeps; or from a source of host memory, loaded with
/// the layer or before, and then the tensors of the layer's calls lie in host memory too.
using RankWeights =
    std::variant<WeightsView, std::shared_ptr<const ExpertSource>, std::shared_ptr<const LoadedExperts>>;

/// One rank's tensors of one call.
struct LayerCall {
  ConstRows x;
  RoutingView routing;
  Rows y;
  std::int64_t max_tokens = 0;
};

/// One rank's end of a layer. Keeps its heap alive.
class RankLayer {
 public:
  virtual ~RankLayer() = default;

  /// Layer::forward() of include/flashmoe/layer.hpp, arguments already checked against each other.
  virtual CallStats forward(const LayerCall& call, double deadline_seconds) = 0;

  /// Layer::enqueue(), arguments checked likewise. By default throws InvalidArgument: the backend has no streams.
  virtual void enqueue(const LayerCall& call, const StreamCall& where, double deadline_seconds);

  /// Layer::check_calls(). By default nothing: calls have thrown already.
  virtual void check_calls() const {}

  /// Has the tensors of a call ready for timed repetition. Not while another rank runs. By default run() is forward() again
  /// and again. Throws InvalidArgument for a replay that the backend lacks.
  virtual std::unique_ptr<PreparedCalls> prepare_calls(const LayerCall& call, const Repetition& repetition);

  /// Has the calls of forward() from now on record what every actor does when, each anew, and so the last call of every
  /// run of tensors prepared from now on; null: no longer. Not while another rank runs; not before prepared calls that
  /// record are gone.
  virtual void trace_to(RankTrace* trace) = 0;
};

/// The symmetric heaps of all ranks for one geometry, as this process sees them.
class SharedHeap {
 public:
  virtual ~SharedHeap() = default;
  virtual const HeapLayout& layout() const = 0;

  /// Whether a call on it was aborted, so that no other can succeed.
  virtual bool dead() const = 0;

  /// `layer_id`: the same on all ranks, never repeated on this heap. `rank` lives in this process. Thread-safe.
  virtual std::unique_ptr<RankLayer> make_layer(int rank, const Problem& problem, const RankWeights& weights,
                                                std::uint64_t layer_id) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string engine_name(const Problem& problem) const = 0;

  /// The GPU of a rank of this process; -1 on backend cpu.
  virtual int device_of(int rank) const = 0;

  /// What tells that GPU from those of other processes; zeros on backend cpu.
  virtual fabric::GpuUuid gpu_uuid(int rank) const = 0;

  virtual EngineTraits engine_traits(const Problem& problem) const = 0;

  /// The experts of a rank of this process, for any number of its layers on any of this backend's heaps; their problems
  /// agree with this one in all that experts depend on, num_ranks included. Not while another rank runs.
  virtual std::shared_ptr<const LoadedExperts> load(int rank, const Problem& problem,
                                                    std::shared_ptr<const ExpertSource> experts) const = 0;

  /// Scratch memory of one rank, which all its layers of this geometry share.
  virtual std::size_t local_bytes(const Geometry& geometry) const = 0;

  /// `meeting`: the processes of all ranks, for this heap alone; null: all ranks live in this process.
  virtual std::shared_ptr<SharedHeap> make_heap(const Geometry& geometry,
                                                std::unique_ptr<fabric::Bootstrap> meeting) const = 0;
};

/// The backend a group's options ask for. `device`, with backend cuda: this process has one rank, on that GPU; none: it has
/// all of them. Throws CudaError as require_backend(), and for a device that this process does not see.
std::unique_ptr<Backend> make_backend(const GroupOptions& options, std::optional<int> device = {});

}  // namespace flashmoe
