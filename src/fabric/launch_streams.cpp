#include "fabric/launch_streams.hpp"

#include <fmt/format.h>

#include "flashmoe/error.hpp"

namespace flashmoe::fabric {

void LaunchStreams::note(int rank, int device, const void* stream) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t call = launches_[static_cast<std::size_t>(rank)].num_calls + 1;
  for (std::size_t other = 0; other < launches_.size(); ++other) {
    const Launch& launch = launches_[other];
    if (stream == nullptr || static_cast<int>(other) == rank || launch.device != device || launch.stream != stream ||
        launch.num_calls != call) {
      continue;
    }
    throw InvalidArgument(fmt::format("stream of rank {}'s call {} is that of rank {}'s on GPU {}, where each would wait for "
                                      "the other: give every rank of a GPU a stream of its own",
                                      rank, call - 1, other, device));
  }
  launches_[static_cast<std::size_t>(rank)] = {call, device, stream};
}

}  // namespace flashmoe::fabric
