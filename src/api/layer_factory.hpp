// Layers for callers inside the project, whose experts need not lie in one piece of memory.
#pragma once

#include <memory>

#include "api/backend.hpp"
#include "flashmoe/layer.hpp"

namespace flashmoe {

struct LayerFactory {
  /// A layer as the public constructor makes it, with experts from host memory that are made or read when asked for.
  static Layer make(const Group& group, int rank, const Problem& problem, std::shared_ptr<const ExpertSource> experts,
                    const LayerOptions& options = {});

  /// Experts for several layers of a rank, on any heap: Backend::load().
  static std::shared_ptr<const LoadedExperts> load(const Group& group, int rank, const Problem& problem,
                                                   std::shared_ptr<const ExpertSource> experts);

  /// A layer on experts that load() returned for the same rank and a group of the same options.
  static Layer make(const Group& group, int rank, const Problem& problem, std::shared_ptr<const LoadedExperts> experts,
                    const LayerOptions& options = {});

  /// The tensors of a call of `layer`, ready for timed repetition: RankLayer::prepare_calls(). Throws as forward().
  static std::unique_ptr<PreparedCalls> prepare_calls(const Layer& layer, ConstRows x, RoutingView routing, Rows y,
                                                      const Repetition& repetition);

  /// RankLayer::trace_to().
  static void trace_to(const Layer& layer, RankTrace* trace);

  /// What every constructor does.
  static std::unique_ptr<Layer::State> make_state(const Group& group, int rank, const Problem& problem,
                                                  const RankWeights& weights, const LayerOptions& options);

  /// What the group would build for a problem, without building it. Throws as the Layer's constructor does.
  static LayerInfo plan(const Group& group, const Problem& problem);

  /// Most rows of an m-block of what the group would build. Throws likewise.
  static int m_block_rows(const Group& group, const Problem& problem);
};

}  // namespace flashmoe
