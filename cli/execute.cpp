#include "execute.hpp"

#include <exception>
#include <thread>

#include "api/layer_factory.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

/// Whether an error only tells that some other rank is in trouble.
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

void throw_first(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr chosen;
  for (const std::exception_ptr& error : errors) {
    if (error && (!chosen || (is_second_hand(chosen) && !is_second_hand(error)))) chosen = error;
  }
  if (chosen) std::rethrow_exception(chosen);
}

}  // namespace

std::vector<CallStats> execute(const Group& group, const std::shared_ptr<const ExpertSource>& experts, Batch& batch) {
  const Problem& problem = batch.problem;
  const auto num_ranks = static_cast<std::size_t>(problem.num_ranks);
  std::vector<Layer> layers;
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    layers.push_back(LayerFactory::make(group, rank, problem, experts));
  }
  std::vector<CallStats> stats(num_ranks);
  std::vector<std::exception_ptr> errors(num_ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        stats[rank] = layers[rank].forward(batch.x_of(rank), batch.routing_of(rank), batch.y_of(rank));
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  threads.clear();
  throw_first(errors);
  return stats;
}

}  // namespace flashmoe::cli
