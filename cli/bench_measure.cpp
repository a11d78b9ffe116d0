#include "bench_measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "api/layer_factory.hpp"
#include "batch.hpp"
#include "execute.hpp"
#include "memory_plan.hpp"

namespace flashmoe::cli {

namespace {

std::vector<RankWork> work_of(const Batch& batch) {
  std::vector<RoutingView> routing;
  std::vector<std::int64_t> tokens;
  for (int rank = 0; rank < batch.problem.num_ranks; ++rank) {
    routing.push_back(batch.routing_of(rank));
    tokens.push_back(batch.num_tokens(rank));
  }
  return count_work(batch.problem, routing, tokens);
}

/// Timed calls that fit the budget when one takes what the last before them took.
int num_repeats(const BenchOptions& options, const std::vector<TimedCalls>& warm_up) {
  constexpr int kFewest = 10;
  if (options.budget_ms == 0) return options.repeats;
  double us = 0;
  for (const TimedCalls& rank : warm_up) us = std::max(us, rank.us.back());
  const auto fitting = static_cast<int>(std::min(1e3 * options.budget_ms / us, 1.0 * options.repeats));
  return std::clamp(fitting, std::min(kFewest, options.repeats), options.repeats);
}

/// Every rank calls its layer; fills in what only running tells.
void time_calls(const BenchCase& bench_case, const BenchOptions& options, const Group& group,
                const ExpertShelf::Experts& experts, Batch& batch, GpuMonitor* monitor, Measurement& measurement) {
  const auto num_ranks = static_cast<std::size_t>(batch.problem.num_ranks);
  std::vector<int> ranks(num_ranks);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::optional<Layer>> layers(num_ranks);
  std::vector<std::unique_ptr<PreparedCalls>> calls(num_ranks);
  std::vector<TimedCalls> timed(num_ranks);
  on_every_rank(ranks,
                [&](int rank) { layers[rank] = LayerFactory::make(group, rank, batch.problem, experts.loaded[rank]); });
  on_every_rank(ranks, [&](int rank) {
    calls[rank] = LayerFactory::prepare_calls(
        *layers[rank], batch.x_of(rank), batch.routing_of(rank), batch.y_of(rank),
        {.replay = bench_case.replay, .most_calls = std::max(options.warm_up, options.repeats)});
  });
  if (options.warm_up > 0) on_every_rank(ranks, [&](int rank) { timed[rank] = calls[rank]->run(options.warm_up); });
  const int repeats = num_repeats(options, timed);
  if (monitor != nullptr) monitor->take();
  std::this_thread::sleep_for(std::chrono::milliseconds(options.rest_ms));
  on_every_rank(ranks, [&](int rank) { timed[rank] = calls[rank]->run(repeats); });
  if (monitor != nullptr) measurement.conditions = monitor->take();

  measurement.call_us.assign(static_cast<std::size_t>(repeats), 0.0);
  std::set<int> devices;
  for (const TimedCalls& rank : timed) {
    for (std::size_t i = 0; i < rank.us.size(); ++i)
      measurement.call_us[i] = std::max(measurement.call_us[i], rank.us[i]);
    measurement.stats.push_back(rank.stats);
    if (rank.device >= 0) devices.insert(rank.device);
  }
  measurement.num_gpus = static_cast<int>(devices.size());
}

}  // namespace

Measurement measure(BenchCase& bench_case, const BenchOptions& options, const Machine& machine, ExpertShelf& shelf,
                    std::int64_t num_compared, GpuMonitor* monitor) {
  Job& job = bench_case.job;
  const Group group = Group::local(job.problem.num_ranks, job.group);
  Measurement measurement;
  measurement.info = LayerFactory::plan(group, job.problem);
  const MemoryPlan memory =
      plan_memory(job, measurement.info, num_compared, machine.num_cores, machine.available_bytes);
  const ExpertShelf::Experts& experts = shelf.experts(group, job, memory, machine.num_cores);
  Batch batch = make_batch(job, std::nullopt);
  measurement.weights_in_memory = job.group.backend == BackendKind::cuda || memory.holds(batch.used_experts().size());
  measurement.work = work_of(batch);
  time_calls(bench_case, options, group, experts, batch, monitor, measurement);

  std::vector<int> ranks(static_cast<std::size_t>(job.problem.num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  measurement.comparison =
      judge(job.problem,
            compare(batch, *experts.source,
                    {.num_tokens = num_compared, .seed = job.seed, .ranks = ranks, .num_threads = machine.num_cores}));
  return measurement;
}

double quantile(std::vector<double> values, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::clamp<std::size_t>(rank, 1, values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace flashmoe::cli
