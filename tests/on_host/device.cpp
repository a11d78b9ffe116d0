#include "on_host/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace flashmoe::on_host {

const std::vector<std::uint64_t>& Meeting::meet(Fibers& fibers, const char* kind, int place, int threads,
                                                std::uint64_t word) {
  if (num_here_ > 0 && std::strcmp(kind, kind_) != 0) {
    throw std::logic_error(fmt::format("threads that must meet are at a {} and at a {}", kind_, kind));
  }
  kind_ = kind;
  auto& words = words_[round_ % 2];
  words.resize(static_cast<std::size_t>(threads));
  words[static_cast<std::size_t>(place)] = word;
  waiting_.push_back(fibers.current());
  if (++num_here_ == threads) {
    num_here_ = 0;
    ++round_;
    for (const int fiber : std::exchange(waiting_, {})) fibers.wake(fiber);
  }
  fibers.block(kind);
  return words;
}

Block::Block(int index, int num_blocks, int num_threads, std::size_t shared_bytes)
    : index(index),
      num_blocks(num_blocks),
      num_threads(num_threads),
      num_running(num_threads),
      warps(static_cast<std::size_t>((num_threads + kWarpThreads - 1) / kWarpThreads)) {
  constexpr std::size_t kAlignment = 1024;
  memory_ = std::make_unique<char[]>(shared_bytes + kAlignment);
  // As a kernel before may have left it.
  std::fill_n(memory_.get(), shared_bytes + kAlignment, static_cast<char>(0xff));
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  shared = memory_.get() + (kAlignment - address % kAlignment);
}

void Device::add(const Launch& launch) {
  const auto num_blocks = std::make_shared<int>(launch.num_blocks);  // that have threads which run
  for (int index = 0; index < launch.num_blocks; ++index) {
    blocks_.push_back(std::make_unique<Block>(index, launch.num_blocks, launch.num_threads, launch.shared_bytes));
    Block& block = *blocks_.back();
    if (launch.pairs && index % 2 == 1) {
      Block& first = *blocks_[blocks_.size() - 2];
      clusters_.push_back(std::make_unique<Meeting>());
      first.other = &block;
      block.other = &first;
      block.rank = 1;
      first.cluster = block.cluster = clusters_.back().get();
    }
    for (int thread = 0; thread < launch.num_threads; ++thread) {
      if (thread % kWarpThreads == 0) ++num_warps_;
      fibers_.spawn(fmt::format("{} block {} thread {}", launch.name, index, thread), num_warps_ - 1,
                    [this, &block, num_blocks, kernel = launch.kernel, then = launch.then] {
                      kernel();
                      if (--block.num_running > 0) return;
                      tell(&block.copies);
                      if (--*num_blocks == 0) then();
                    });
      threads_.push_back({.block = &block, .index = thread});
    }
    fibers_.spawn(fmt::format("{} block {} copies", launch.name, index), num_warps_++,
                  [this, &block] { run_copies(block); });
    threads_.push_back({.block = &block, .index = launch.num_threads});
  }
}

void Device::copy_later(Work work) {
  Block& block = this->block();
  block.copies.push_back(std::move(work));
  tell(&block.copies);
}

void Device::run_copies(Block& block) {
  while (block.num_running > 0 || !block.copies.empty()) {
    if (block.copies.empty()) {
      await(&block.copies, "copies");
      continue;
    }
    fibers_.sleep_some();
    auto& drawn = block.copies[static_cast<std::size_t>(fibers_.draw(static_cast<int>(block.copies.size())))];
    const Work work = std::exchange(drawn, std::move(block.copies.back()));
    block.copies.pop_back();
    work();
  }
}

void Device::run() {
  running_ = this;
  fibers_.run();
  running_ = nullptr;
}

bool Device::barrier(const char* kind, int name, int threads, bool mine) {
  const Thread& self = thread();
  // The threads of a barrier follow each other, so that each has a place of its own.
  const auto& words = self.block->barriers[name].meet(fibers_, kind, self.index % threads, threads, mine ? 1 : 0);
  return std::all_of(words.begin(), words.end(), [](std::uint64_t word) { return word != 0; });
}

void Device::cluster_barrier() {
  const Thread& self = thread();
  self.block->cluster->meet(fibers_, "cluster barrier", self.block->rank * self.block->num_threads + self.index,
                            2 * self.block->num_threads, 0);
}

void Device::await(const void* word, const char* what) {
  waiting_[word].push_back(fibers_.current());
  fibers_.block(what);
}

void Device::tell(const void* word) {
  const auto found = waiting_.find(word);
  if (found == waiting_.end()) return;
  for (const int fiber : std::exchange(found->second, {})) fibers_.wake(fiber);
}

}  // namespace flashmoe::on_host
