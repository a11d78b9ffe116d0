// The Hopper kernel on fibers of the host: all of it but its instructions, see substitutes/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/geometry.hpp"
#include "cpu/layer.hpp"
#include "cuda/kernel_args.hpp"
#include "support/dense_experts.hpp"
#include "support/local_weights.hpp"

namespace flashmoe::on_host {

struct Options {
  int num_blocks = 4;         ///< of each rank
  bool pairs = false;         ///< blocks take tasks in pairs, whatever the plan says; an even number of blocks then
  int down_tiles = 0;         ///< of a task; 0: what the plan says
  int halved_down_tiles = 0;  ///< where down_tiles is not 0
  bool early_push = true;
  bool early_cut = true;
  bool counts_on_device = false;  ///< of tokens; behind them lie ids that no expert has
  int decode_rows = 96;
  double deadline_seconds = 3e-3;  ///< of the fibers' clock
  int flush_after_idle_steps = 8;
};

/// All ranks of a group.
class Ranks {
 public:
  /// `problem`: of bf16 or fp16. `geometry`: of Hopper's tile, any that the problem fits.
  Ranks(const Problem& problem, const Geometry& geometry, std::shared_ptr<const ExpertSource> experts,
        const Options& options);
  ~Ranks();

  /// Rank r makes calls[r], one after the other, ranks free to run ahead of each other; a rank without calls does not
  /// come. Throws std::runtime_error where threads wait for ever, std::logic_error where they disagree.
  void run(const std::vector<std::vector<cpu::CallInput>>& calls, std::uint64_t seed);

  cpu::Heap& heap() { return *heap_; }
  const cpu::RankContext& context(int rank) const { return *contexts_[static_cast<std::size_t>(rank)]; }
  const cuda_backend::KernelState& state(int rank) const { return states_[static_cast<std::size_t>(rank)]; }
  const cuda_backend::Outcome& outcome(int rank) const { return outcomes_[static_cast<std::size_t>(rank)]; }
  /// Why a rank gave up, in words; empty where it has not.
  std::string failure(int rank) const;

 private:
  class Counted;
  class Run;

  Problem problem_;
  Options options_;
  std::shared_ptr<const ExpertSource> experts_;
  std::shared_ptr<cpu::Heap> heap_;
  std::vector<std::unique_ptr<cpu::RankContext>> contexts_;
  std::vector<test::LocalWeights> weights_;
  std::vector<cuda_backend::KernelState> states_;
  std::vector<cuda_backend::Outcome> outcomes_;
};

}  // namespace flashmoe::on_host
