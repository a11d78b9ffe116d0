#include "expert_shelf.hpp"

#include <numeric>

#include "api/layer_factory.hpp"
#include "execute.hpp"
#include "io/synthetic_experts.hpp"
#include "make_experts.hpp"

namespace flashmoe::cli {

namespace {

/// What an expert's values and size depend on.
Problem layer_alone(Problem problem) {
  problem.num_ranks = 1;
  problem.max_tokens = 0;
  problem.wire_form = WireForm::automatic;
  problem.result_form = ResultForm::automatic;
  problem.wave_tokens = 0;
  problem.wave_ring = 0;
  problem.batch_invariant = false;
  return problem;
}

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

const ExpertShelf::Experts& ExpertShelf::experts(const Group& group, const Job& job, const MemoryPlan& memory,
                                                 int num_threads) {
  const Problem layer = layer_alone(job.problem);
  if (!experts_.source || layer_ != layer || seed_ != job.seed || cache_bytes_ > memory.expert_cache_bytes) {
    experts_ = {};  // its memory first
    experts_.source = std::make_shared<GeneratedExperts>(job.problem, job.seed, memory.expert_cache_bytes);
    layer_ = layer;
    seed_ = job.seed;
    cache_bytes_ = memory.expert_cache_bytes;
  }
  const auto num_ranks = static_cast<std::size_t>(job.problem.num_ranks);
  if (experts_.loaded.size() == num_ranks) return experts_;
  experts_.loaded.clear();
  if (job.group.backend == BackendKind::cuda && memory.holds(static_cast<std::size_t>(job.problem.num_experts))) {
    make_experts(*experts_.source, first_numbers(job.problem.num_experts), num_threads, nullptr);
  }
  std::vector<std::shared_ptr<const LoadedExperts>> loaded(num_ranks);
  on_every_rank(first_numbers(job.problem.num_ranks), [&](int rank) {
    loaded[static_cast<std::size_t>(rank)] = LayerFactory::load(group, rank, job.problem, experts_.source);
  });
  experts_.loaded = std::move(loaded);
  return experts_;
}

}  // namespace flashmoe::cli
