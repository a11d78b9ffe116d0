#include "io/expert_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

namespace flashmoe {
namespace {

// A cache of experts that count how often they are made and how many are alive.
class CountedCache {
 public:
  CountedCache(int num_experts, std::size_t budget) : cache_(num_experts, 10, budget) {}

  ExpertCache::Handle get(int index) {
    return cache_.get(index, [&] {
      ++made;
      ++alive;
      return ExpertCache::Handle(new ExpertParameters, [this](const ExpertParameters* parameters) {
        delete parameters;
        --alive;
      });
    });
  }

  std::atomic<int> made = 0;
  std::atomic<int> alive = 0;

 private:
  ExpertCache cache_;
};

TEST(ExpertCache, KeepsTheMostRecentlyUsedWithinItsBudget) {
  CountedCache cache(5, 25);  // room for two of 10 bytes
  cache.get(0);
  cache.get(1);
  EXPECT_EQ(cache.alive, 2);
  cache.get(0);  // now 1 is the older one
  cache.get(2);
  EXPECT_EQ(cache.alive, 2);
  EXPECT_EQ(cache.made, 3);
  cache.get(0);
  EXPECT_EQ(cache.made, 3);
  cache.get(1);
  EXPECT_EQ(cache.made, 4);
}

TEST(ExpertCache, WithoutRoomKeepsNothing) {
  for (const std::size_t budget : {0, 9}) {
    CountedCache cache(2, budget);
    cache.get(0);
    EXPECT_EQ(cache.alive, 0);
    cache.get(0);
    EXPECT_EQ(cache.made, 2);
  }
}

TEST(ExpertCache, HandsOutWhatSomebodyStillHolds) {
  CountedCache cache(2, 0);
  const ExpertCache::Handle held = cache.get(0);
  EXPECT_EQ(cache.get(0), held);
  EXPECT_EQ(cache.made, 1);
}

TEST(ExpertCache, HandlesOutliveTheCache) {
  ExpertCache::Handle handle;
  {
    ExpertCache cache(1, 10, 100);
    handle = cache.get(0, [] { return std::make_shared<const ExpertParameters>(); });
  }
  EXPECT_EQ(handle->up, nullptr);
  EXPECT_EQ(handle.use_count(), 1);
}

TEST(ExpertCache, MemoryStaysFlatOverManyRounds) {
  CountedCache cache(50, 100);
  for (int round = 0; round < 100; ++round) {
    for (int index = 0; index < 50; ++index) cache.get(index);
    EXPECT_LE(cache.alive, 10);
  }
}

TEST(ExpertCache, AFailedMakeLeavesItUsable) {
  ExpertCache cache(1, 10, 100);
  EXPECT_THROW(cache.get(0, []() -> ExpertCache::Handle { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_NE(cache.get(0, [] { return std::make_shared<const ExpertParameters>(); }), nullptr);
}

TEST(ExpertCache, ThreadsThatAskForOneExpertGetOne) {
  CountedCache cache(3, 100);
  constexpr int num_threads = 8;
  std::latch start(num_threads);
  std::vector<ExpertCache::Handle> handles(num_threads);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < num_threads; ++thread) {
      threads.emplace_back([&, thread] {
        start.arrive_and_wait();
        for (int index = 0; index < 3; ++index) handles[static_cast<std::size_t>(thread)] = cache.get(index);
      });
    }
  }
  EXPECT_EQ(cache.made, 3);
  for (const ExpertCache::Handle& handle : handles) EXPECT_EQ(handle, handles[0]);
}

TEST(ExpertCache, ThreadsThatEvictEachOtherStayWithinTheBudget) {
  CountedCache cache(40, 80);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 2000; ++i) cache.get((i * (thread + 3)) % 40);
      });
    }
  }
  EXPECT_LE(cache.alive, 8);
}

}  // namespace
}  // namespace flashmoe
