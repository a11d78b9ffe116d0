// A GPU's threads as fibers of the host: blocks of warps, their shared memory, barriers and collectives. It checks more
// than a GPU does: all threads of a warp must come to the same collective, all of a barrier to the same kind of it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "on_host/fibers.hpp"

namespace flashmoe::on_host {

inline constexpr int kWarpThreads = 32;

using Work = std::function<void()>;

/// Where so many threads meet, and bring a word each.
class Meeting {
 public:
  /// The words of all, by their places in the meeting; valid until the caller comes again. `kind`: the same of all.
  const std::vector<std::uint64_t>& meet(Fibers& fibers, const char* kind, int place, int threads, std::uint64_t word);

 private:
  const char* kind_ = nullptr;
  int num_here_ = 0;
  std::uint64_t round_ = 0;
  /// Of even and odd rounds: who is late reads one while the next fills.
  std::array<std::vector<std::uint64_t>, 2> words_;
  std::vector<int> waiting_;
};

struct Block {
  Block(int index, int num_blocks, int num_threads, std::size_t shared_bytes);
  int index;
  int num_blocks;
  int num_threads;
  Block* other = nullptr;  ///< of its cluster of two
  int rank = 0;            ///< in it
  char* shared;
  int num_running;  ///< threads
  std::vector<Meeting> warps;
  std::map<int, Meeting> barriers;  ///< by name
  Meeting* cluster = nullptr;       ///< of both blocks' threads
  std::vector<Work> copies;         ///< under way

 private:
  std::unique_ptr<char[]> memory_;
};

/// The thread that a fiber is.
struct Thread {
  Block* block;
  int index;
  std::vector<Work> copies{};              ///< that it has asked for, but not told to arrive anywhere
  std::vector<Work> products{};            ///< that it has not committed
  std::deque<std::vector<Work>> groups{};  ///< of products, committed and not waited for
};

class Device {
 public:
  /// `neighbours`: see Fibers.
  Device(std::uint64_t seed, std::uint64_t most_turns, std::vector<std::size_t> neighbours)
      : fibers_(seed, most_turns, std::move(neighbours)) {}

  struct Launch {
    std::string name;
    int num_blocks;
    int num_threads;
    std::size_t shared_bytes;
    bool pairs = false;  ///< clusters of two blocks
    std::function<void()> kernel;
    std::function<void()> then;  ///< when all of its threads have ended
  };
  /// Before or while others run.
  void add(const Launch& launch);
  /// All that was added, side by side; see Fibers::run().
  void run();

  /// That runs.
  static Device& now() { return *running_; }
  Fibers& fibers() { return fibers_; }
  Thread& thread() { return threads_[static_cast<std::size_t>(fibers_.current())]; }
  Block& block() { return *thread().block; }

  /// All threads of the warp: what each brings.
  template <class T>
  std::array<T, kWarpThreads> all_of_warp(const char* kind, T value) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    const Thread& self = thread();
    const auto& words = self.block->warps[static_cast<std::size_t>(self.index / kWarpThreads)].meet(
        fibers_, kind, self.index % kWarpThreads, kWarpThreads, word);
    std::array<T, kWarpThreads> values;
    for (std::size_t i = 0; i < values.size(); ++i) std::memcpy(&values[i], &words[i], sizeof(T));
    return values;
  }

  /// Barrier `name` of so many threads of the block; whether all say yes.
  bool barrier(const char* kind, int name, int threads, bool mine = true);
  /// All threads of both blocks of a cluster.
  void cluster_barrier();

  /// What has been done by any device, so that tests can tell that nothing was left out.
  static void note(std::string what) { done().insert(std::move(what)); }
  static std::set<std::string>& done() {
    static std::set<std::string> things;
    return things;
  }

  /// Does it at some time, in any order: as what copies beside the threads.
  void copy_later(Work work);

  /// Until somebody calls tell(word). `what`: see Fibers::block().
  void await(const void* word, const char* what);
  void tell(const void* word);

 private:
  void run_copies(Block& block);

  static inline Device* running_ = nullptr;

  Fibers fibers_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Meeting>> clusters_;
  std::deque<Thread> threads_;  ///< of each fiber
  std::size_t num_warps_ = 0;
  std::unordered_map<const void*, std::vector<int>> waiting_;
};

}  // namespace flashmoe::on_host
