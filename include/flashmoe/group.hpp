// The ranks that build layers together, and what they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flashmoe/export.hpp"

namespace flashmoe {

/// Where a group's ranks run, and so where the tensors of a call and the weights lie.
/// cpu: threads of this process, host memory. cuda: GPUs, device memory.
enum class BackendKind : std::uint8_t { cpu, cuda };

constexpr std::string_view to_string(BackendKind backend) { return backend == BackendKind::cpu ? "cpu" : "cuda"; }

/// Throws CudaError, one sentence, when this build or this machine cannot run the backend.
FLASHMOE_API void require_backend(BackendKind backend);

/// Who multiplies on backend cuda. portable: mma.sync, compute capability 8.0 and later. hopper: wgmma, GPUs of compute
/// capability 9.0 and dtype bf16 or fp16. automatic: hopper wherever it can run.
enum class EngineKind : std::uint8_t { automatic, portable, hopper };

constexpr std::string_view to_string(EngineKind engine) {
  constexpr std::string_view names[] = {"automatic", "portable", "hopper"};
  return names[static_cast<int>(engine)];
}

struct GroupOptions {
  BackendKind backend = BackendKind::cpu;
  EngineKind engine = EngineKind::automatic;  ///< the same on all ranks; on backend cpu automatic alone
  int first_device = 0;  ///< backend cuda, all ranks here: rank r is on GPU first_device + r, modulo their number;
                         ///< on backend cpu 0 alone
  double deadline_seconds = 30.0;  ///< a call in which no rank (backend cuda: an actor) gets on for so long ends with
                                   ///< Timeout; above 0
  double meeting_seconds = 120.0;  ///< how long processes wait for each other to join and to create a layer; above 0

  // CPU backend, per rank:
  int num_dispatchers = 1;  ///< actors that push and combine rows, 1..64
  int num_processors = 1;   ///< actors that compute tiles, 1..64
  int num_threads = 1;      ///< threads that step the actors, the caller's among them, 0..256; 0: one an actor

  bool operator==(const GroupOptions&) const = default;
};

/// One process's place in a group of processes.
struct ProcessRank {
  static constexpr std::size_t kMaxGroupId = 48;

  std::string group_id;  ///< 1..kMaxGroupId printable ASCII characters, on this machine no other group's of this user
  int rank = 0;          ///< 0..num_ranks-1, one process each; rank 0 is where the others meet
  int num_ranks = 1;
  int device = 0;        ///< this process's GPU, by its own numbering; another one for every rank
};

class GroupState;

/// A handle; copies stand for the same group. A layer keeps what it needs of its group, so groups and layers may be
/// destroyed in any order. Thread-safe.
class FLASHMOE_API Group {
 public:
  /// All ranks in this process: each calls from a thread of its own. Throws InvalidArgument for options out of range
  /// and CudaError as require_backend().
  static Group local(int num_ranks, const GroupOptions& options = {});

  /// One rank in every process of this machine, backend cuda: returns when all have joined. Creating a layer is then
  /// collective: it returns on all ranks or throws on all, and every rank names itself in it, no other.
  /// Throws InvalidArgument for arguments out of range or backend cpu, CudaError as require_backend() and for a device
  /// that this process does not see; on all ranks Timeout, naming the ranks that did not come within meeting_seconds,
  /// and FabricError when one failed or left, two claim one place or one GPU, or the versions of the library differ.
  static Group join(const ProcessRank& place, const GroupOptions& options);

  int num_ranks() const;
  const GroupOptions& options() const;

 private:
  friend class Layer;
  friend struct LayerFactory;
  explicit Group(std::shared_ptr<GroupState> state) : state_(std::move(state)) {}

  std::shared_ptr<GroupState> state_;
};

}  // namespace flashmoe
