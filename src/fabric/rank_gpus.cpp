#include "fabric/rank_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "flashmoe/error.hpp"

namespace flashmoe::fabric {

namespace {

/// "a", "a and b", "a, b and c"
std::string enumerate(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

/// Pairs that a sentence has room for.
constexpr std::size_t kMostPairs = 8;

}  // namespace

void require_own_gpus(std::string_view group_id, std::span<const RankGpu> gpus) {
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    std::vector<std::string> sharing;
    for (std::size_t other = rank; other < gpus.size(); ++other) {
      if (gpus[other].uuid == gpus[rank].uuid) sharing.push_back(std::to_string(other));
    }
    if (sharing.size() == 1) continue;
    throw FabricError(
        fmt::format("ranks {} of group '{}' have chosen one GPU (device {} of rank {}), where kernels of two "
                    "processes do not run at once: give every process another device, such as its local rank "
                    "(in torch by torch.cuda.set_device), or run the ranks as threads of one process",
                    enumerate(sharing), group_id, gpus[rank].device, rank));
  }
}

PeerLinks ask_peer_links(int device, std::span<const int> peers, const AskPeerLink& ask) {
  PeerLinks links{};
  for (std::size_t rank = 0; rank < peers.size(); ++rank) {
    if (peers[rank] >= 0 && peers[rank] != device) links[rank] = ask(device, peers[rank]);
  }
  return links;
}

void require_peer_links(std::span<const int> devices, std::span<const PeerLinks> links) {
  PeerLink worst = PeerLink::full;
  std::vector<std::string> pairs;  // of the worst link
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    for (std::size_t peer = rank + 1; peer < devices.size(); ++peer) {
      const PeerLink link = std::max(links[rank][peer], links[peer][rank]);
      if (link == PeerLink::full || link < worst) continue;
      if (link > worst) pairs.clear();
      worst = link;
      pairs.push_back(fmt::format("GPUs {} and {} (ranks {} and {})", devices[rank], devices[peer], rank, peer));
    }
  }
  if (pairs.empty()) return;
  if (pairs.size() > kMostPairs) {
    const std::size_t more = pairs.size() - kMostPairs;
    pairs.resize(kMostPairs);
    pairs.push_back(fmt::format("{} more pairs", more));
  }
  throw FabricError(fmt::format("{} {}: use GPUs joined by NVLink (nvidia-smi topo -m shows which)", enumerate(pairs),
                                worst == PeerLink::none
                                    ? "cannot reach each other's memory"
                                    : "reach each other's memory, but cannot add to it atomically"));
}

void compare_peer_links(Bootstrap& meeting, std::span<const int> devices, std::span<const int> peers,
                        const AskPeerLink& ask) {
  const int own = devices[static_cast<std::size_t>(meeting.rank())];
  require_peer_links(devices, meeting.allgather_values(ask_peer_links(own, peers, ask)));
}

}  // namespace flashmoe::fabric
