// A group of one backend with the reference beside it: runs calls on poisoned memory and compares results.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "support/batch.hpp"

namespace flashmoe::test {

/// Backend::World holds all ranks: World(problem, experts), call(batches, max_tokens), poison() of all memory that a call
/// must write before it reads it, message(rank) of what the last call threw.
template <class Backend>
class Group {
 public:
  explicit Group(const Problem& problem, std::uint64_t seed = 1, Values values = Values::real)
      : problem_(problem), experts_(std::make_shared<DenseExperts>(problem, seed, values)), world_(problem, experts_) {
    validate(problem);
  }

  /// Runs a call; fails the test when a rank throws.
  void call(std::vector<Batch>& batches) { call(batches, problem_.max_tokens); }
  void call(std::vector<Batch>& batches, std::int64_t max_tokens) {
    std::vector<Batch*> pointers;
    for (Batch& batch : batches) {
      batch.poison();
      pointers.push_back(&batch);
    }
    world_.poison();
    world_.call(pointers, max_tokens);
    for (std::size_t rank = 0; rank < batches.size(); ++rank) ASSERT_EQ(world_.message(rank), "") << "rank " << rank;
  }

  void expect_right(const std::vector<Batch>& batches) const {
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      const Batch& batch = batches[rank];
      const auto wanted = reference::layer(problem_, *experts_, batch.x_view(), batch.routing());
      EXPECT_LE(error_in_bars(problem_, batch, wanted), 1.0)
          << "rank " << rank << " of " << to_string(problem_);
    }
  }

  /// Runs a call and compares every rank's result with the reference.
  void check(std::vector<Batch> batches) {
    call(batches);
    expect_right(batches);
  }

  const Problem& problem() const { return problem_; }
  const ExpertSource& experts() const { return *experts_; }
  typename Backend::World& world() { return world_; }

 private:
  Problem problem_;
  std::shared_ptr<DenseExperts> experts_;
  typename Backend::World world_;
};

}  // namespace flashmoe::test
