// What the GPUs of a group's ranks must be to each other.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "fabric/bootstrap.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe::fabric {

/// What tells a GPU from all others, whatever number a process knows it by.
using GpuUuid = std::array<char, 16>;

/// The GPU of a rank that is a process of its own.
struct RankGpu {
  GpuUuid uuid;
  int device;  // by that process's numbering
};

/// Throws FabricError, naming the ranks and the GPU, where two ranks have chosen one; gpus[rank]. Kernels of two
/// processes do not run at once on one GPU, so they would wait for each other until the deadline; MPS promises no
/// residency either.
void require_own_gpus(std::string_view group_id, std::span<const RankGpu> gpus);

/// What a GPU can do with another's memory, the worst last.
enum class PeerLink : std::uint8_t {
  full,             ///< load, store and add to it atomically, as signals do
  without_atomics,  ///< load and store
  none,
};

/// Between two GPUs of this process.
using AskPeerLink = std::function<PeerLink(int device, int peer)>;

/// Of a rank's GPU, to that of every rank.
using PeerLinks = std::array<PeerLink, Limits::num_ranks>;

/// Those of GPU `device`; peers[rank]: what this process calls that rank's GPU, -1 where it does not see it. What
/// cannot be asked about counts as full: mapping its memory fails if it cannot be reached. A GPU and itself are full.
PeerLinks ask_peer_links(int device, std::span<const int> peers, const AskPeerLink& ask);

/// Throws FabricError, naming every pair of GPUs that cannot share heaps, unless all links are full; links[rank] and
/// devices[rank], each by the rank's own process.
void require_peer_links(std::span<const int> devices, std::span<const PeerLinks> links);

/// Collective: every rank asks about its own GPU, devices[rank], and all throw alike as require_peer_links().
/// peers[rank]: as of ask_peer_links().
void compare_peer_links(Bootstrap& meeting, std::span<const int> devices, std::span<const int> peers,
                        const AskPeerLink& ask);

}  // namespace flashmoe::fabric
