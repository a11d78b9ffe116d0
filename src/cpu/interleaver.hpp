// All ranks of a group stepped by one thread, in an order drawn from a seed, over a network that delivers late and out
// of order: the protocol under every kind of bad luck, replayed exactly by its seed.
//
// The order is drawn in phases. In each, some actors, ranks and channels are fast, some slow, and some get no turn at all
// until nothing else in the whole group can move. When then nothing can, not even the starved ones, and no message is
// under way, the group has stopped for good: it is done, or in a deadlock that the result describes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/stall.hpp"
#include "core/expert_source.hpp"
#include "cpu/delayed_fabric.hpp"
#include "cpu/layer.hpp"

namespace flashmoe::cpu {

struct InterleavedRun {
  bool finished = false;      ///< every rank finished every call it was given
  std::uint64_t num_steps = 0;
  std::uint64_t trace = 0;    ///< hash of every step, delivery and result, in order: equal for equal seeds and inputs
  std::vector<Stall> stalls;  ///< [num_ranks] why the rank is inside a call; rank -1 where it is not in one
  std::string waits;          ///< one line for every actor inside a call: what it waits for
  std::vector<Traffic> traffic;  ///< [num_ranks] sent in the calls that finished
};

class Interleaver {
 public:
  /// One rank per roster, on a heap of its own. `geometry` may be any that the problem fits; `problem` has passed
  /// validate(). `flush_after_idle_steps`: see Call.
  Interleaver(const Problem& problem, const Geometry& geometry, std::shared_ptr<const ExpertSource> experts,
              const std::vector<Roster>& rosters, int flush_after_idle_steps);
  ~Interleaver();

  /// Rank r makes calls[r], one after the other, ranks free to run ahead of each other. The heap goes on from run to
  /// run until one does not finish; after that it is dead. Passes on what an engine or the network throws.
  InterleavedRun run(const std::vector<std::vector<CallInput>>& calls, std::uint64_t seed);

  Heap& heap() { return *heap_; }
  const RankContext& context(int rank) const;

 private:
  struct Rank;
  class Turns;

  Problem problem_;
  std::shared_ptr<const ExpertSource> experts_;
  std::shared_ptr<Heap> heap_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace flashmoe::cpu
