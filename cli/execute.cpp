#include "execute.hpp"

#include <optional>
#include <thread>

#include "api/layer_factory.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

void throw_first(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr chosen;
  for (const std::exception_ptr& error : errors) {
    if (error && (!chosen || (is_second_hand(chosen) && !is_second_hand(error)))) chosen = error;
  }
  if (chosen) std::rethrow_exception(chosen);
}

}  // namespace

bool is_second_hand(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const FabricError&) {
    return true;
  } catch (const Timeout&) {
    return true;
  } catch (...) {
    return false;
  }
}

void on_every_rank(const std::vector<int>& ranks, const std::function<void(int)>& work) {
  std::vector<std::exception_ptr> errors(ranks.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        work(ranks[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  threads.clear();
  throw_first(errors);
}

std::vector<CallStats> execute(const Group& group, const std::shared_ptr<const ExpertSource>& experts, Batch& batch,
                               const std::vector<int>& ranks) {
  const auto num_ranks = static_cast<std::size_t>(batch.problem.num_ranks);
  std::vector<std::optional<Layer>> layers(num_ranks);
  for (const int rank : ranks) layers[rank] = LayerFactory::make(group, rank, batch.problem, experts);
  std::vector<CallStats> stats(num_ranks);
  on_every_rank(ranks, [&](int rank) {
    stats[rank] = layers[rank]->forward(batch.x_of(rank), batch.routing_of(rank), batch.y_of(rank));
  });
  return stats;
}

}  // namespace flashmoe::cli
