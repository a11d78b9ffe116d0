// From a problem and an engine's tile to sizes and forms: pure functions, the same on every rank.
#pragma once

#include <cstdint>
#include <string>

#include "core/geometry.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe {

/// What the planner must know about the engine that will run the tiles.
struct EngineTraits {
  TileShape tile;
  int num_m_blocks = 0;  ///< m-blocks of the intermediate ring it wants
  /// Most routes of a rank that its receivers list fast, so that no planners are needed; see Geometry::listed_tokens.
  int listed_routes = 0;
  bool operator==(const EngineTraits&) const = default;
};

/// Rates the automatic choices weigh against each other, of one H100 on NVLink (measured, shared by all peers):
/// all SMs storing 512 B segments to peers; GEMMs under the power cap; HBM read.
struct MachineRates {
  double wire_bytes_per_us = 350e3;
  double flops_per_us = 690e6;
  double memory_bytes_per_us = 3.0e6;
};

/// Most tiles of a task; Task counts them in a byte.
inline constexpr int kMostTilesOfTask = 8;

/// Sizes of a layer. `problem` must have passed validate().
Geometry plan_geometry(const Problem& problem, const EngineTraits& engine);

/// Forms of a call of at most `max_tokens` tokens a rank. Throws InvalidArgument when max_tokens exceeds the geometry's.
CallPlan plan_call(const Problem& problem, const Geometry& geometry, std::int64_t max_tokens);

/// Hash of everything ranks must agree on before they exchange data in this call.
std::uint64_t plan_hash(const Geometry& geometry, const CallPlan& plan);

/// Times, in us, that decide the result form; zero where num_ranks is 1.
struct WireEstimate {
  double per_route_us = 0;
  double pre_reduced_us = 0;
  double ffn_us = 0;
};
WireEstimate estimate_wire(const Problem& problem, std::int64_t tokens_per_rank);

/// One sentence a choice: forms, wave size, engine tile, and why. For `flashmoe info`.
std::string explain_plan(const Problem& problem, const Geometry& geometry, const CallPlan& plan);

}  // namespace flashmoe
