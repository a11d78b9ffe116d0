// On which streams the ranks of one process launched their latest calls.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace flashmoe::fabric {

class LaunchStreams {
 public:
  explicit LaunchStreams(int num_ranks) : launches_(static_cast<std::size_t>(num_ranks)) {}

  /// Notes the next call of `rank`, on a stream of its GPU `device`. `stream`: what tells it from others; null: a stream that
  /// is no other rank's. Throws InvalidArgument, and notes nothing, where another rank of that GPU has launched the same
  /// call there: the second of the two would begin when the first has ended, which waits for it.
  void note(int rank, int device, const void* stream);

 private:
  struct Launch {
    std::uint64_t num_calls = 0;
    int device = -1;
    const void* stream = nullptr;
  };
  std::mutex mutex_;
  std::vector<Launch> launches_;  // [num_ranks]
};

}  // namespace flashmoe::fabric
