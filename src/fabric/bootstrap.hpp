// How the ranks of one machine, one process each, meet before they share memory: by a group id, through rank 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fabric/connection.hpp"
#include "fabric/unique_fd.hpp"
#include "flashmoe/group.hpp"

namespace flashmoe::fabric {

/// One rank's end of a group. Its steps (allgather, exchange_fds, barrier) are collective: every rank makes the same
/// ones in the same order. Rank 0 collects; the others talk to it alone.
///
/// Every step ends within the deadline of the rank that entered it first (and a second for the answer to travel). Errors
/// are one sentence, the same on all ranks that are still there, and final: the group is of no more use and later steps
/// repeat it.
///   Timeout      ranks that did not come, by number
///   FabricError  a rank that left, died or gave up, named at once; ranks that disagree (num_ranks, a rank claimed
///                twice, another step); another user's or program's socket
/// Not thread-safe. No threads of its own, so ranks learn of a death in their next step.
class Bootstrap {
 public:
  static constexpr std::size_t kMaxGroupId =
      ProcessRank::kMaxGroupId + 16;                                      ///< characters: a group's, and what it is for
  static constexpr std::size_t kMaxGatheredBytes = std::size_t{1} << 20;  ///< from one rank in one step

  /// Returns when all ranks have come. `group_id`: 1..kMaxGroupId printable ASCII characters that no other group of
  /// this user on this machine has now. Throws InvalidArgument for arguments out of range.
  Bootstrap(std::string group_id, int rank, int num_ranks, double deadline_seconds);
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  const std::string& group_id() const { return group_id_; }
  int rank() const { return rank_; }
  int num_ranks() const { return num_ranks_; }

  /// Of this rank's steps from now on. Ranks that die or leave are noticed at once, whatever it is.
  void set_deadline(double deadline_seconds) { deadline_seconds_ = deadline_seconds; }

  /// Every rank's bytes, by rank; lengths may differ. Throws InvalidArgument above kMaxGatheredBytes.
  std::vector<std::vector<std::byte>> allgather(std::span<const std::byte> bytes);

  /// Every rank's value, by rank. Throws FabricError when the sizes differ: another version of the library.
  template <class T>
  std::vector<T> allgather_values(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto gathered = allgather(std::as_bytes(std::span(&value, 1)));
    std::vector<T> values(gathered.size());
    for (std::size_t r = 0; r < gathered.size(); ++r) {
      require_size(gathered[r].size(), sizeof(T));
      std::memcpy(&values[r], gathered[r].data(), sizeof(T));
    }
    return values;
  }

  /// A descriptor of every rank's open file, by rank, its own included. `fd` stays the caller's.
  std::vector<UniqueFd> exchange_fds(int fd);

  void barrier();

  /// Ends the group from this rank's side with a reason, which the others' next step throws. Not collective.
  void give_up(std::string_view reason) noexcept;

  /// The last step. Waits until every other rank has come here too, has died or has left; false when some had not by the
  /// deadline, when rank 0 was lost on the way, or when the group had failed before.
  bool leave(double deadline_seconds) noexcept;

 private:
  // bootstrap_meeting.cpp
  void gather_ranks(Deadline deadline);  // rank 0
  void welcome(Connection& stranger, Deadline& deadline);
  std::string why_unwelcome(Transfer transfer, const Frame& frame, pid_t process) const;
  void join_rank_0(Deadline deadline);  // the others
  std::string socket_name() const;

  Frame run_step(FrameKind step, std::span<const std::byte> payload, std::span<const int> fds);
  Frame run_as_hub(FrameKind step, std::span<const std::byte> payload, std::span<const int> fds, Deadline deadline);
  std::vector<Frame> collect(FrameKind step, Deadline deadline);
  void check_part(int rank, FrameKind step, Transfer transfer, const Frame& frame);
  Frame await_rank_0(FrameKind wanted, Deadline deadline);
  bool await_leavers(Deadline deadline);
  void tell_all(FrameKind kind, std::span<const std::byte> payload, std::span<const int> fds, Deadline deadline);

  /// Tells all who are connected, closes and throws.
  [[noreturn]] void fail(FrameKind how, const std::string& text);
  [[noreturn]] void fail_missing(const std::vector<int>& missing);
  void end_group(FrameKind how, const std::string& text);
  [[noreturn]] void throw_failure() const;
  void require_size(std::size_t got, std::size_t wanted) const;
  const Connection& peer(int rank) const { return peers_[static_cast<std::size_t>(rank_ == 0 ? rank : 0)]; }
  std::string name_of(int rank) const;

  std::string group_id_;
  int rank_;
  int num_ranks_;
  double deadline_seconds_;
  std::vector<Connection> peers_;  // rank 0: [num_ranks], none for itself; others: rank 0 alone
  std::vector<Connection> strangers_;  // rank 0, while the group forms: connected, not yet known by rank
  FrameKind failure_kind_ = FrameKind::refused;
  std::string failure_;            // empty while the group is whole
};

}  // namespace flashmoe::fabric
