// The ranks of a group come together: rank 0 listens, the others say hello, all are welcomed at once.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "fabric/bootstrap.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::fabric {

namespace {

constexpr auto kRetryInterval = std::chrono::milliseconds(5);

struct Hello {
  std::int32_t rank;
  std::int32_t num_ranks;
};

}  // namespace

std::string Bootstrap::socket_name() const { return fmt::format("flashmoe/{}/{}", geteuid(), group_id_); }

void Bootstrap::gather_ranks(Deadline deadline) {
  const std::optional<UniqueFd> listener = listen_at(socket_name(), 2 * num_ranks_);
  if (!listener) {
    const std::optional<UniqueFd> holder = connect_to(socket_name());
    const std::string who =
        holder ? fmt::format(" by process {} of user {}", peer_of(*holder).process, peer_of(*holder).user) : "";
    end_group(FrameKind::refused,
              fmt::format("rank 0 of group '{}' is already taken{}: give every process its own rank, and every group an id "
                          "of its own", group_id_, who));
    throw_failure();
  }
  while (true) {
    std::vector<int> missing;
    for (int r = 1; r < num_ranks_; ++r) {
      if (!peer(r)) missing.push_back(r);
    }
    if (missing.empty()) break;

    std::vector<pollfd> sockets{{listener->get(), POLLIN, 0}};
    for (const Connection& seated : peers_) sockets.push_back({seated.fd(), POLLIN, 0});  // poll() passes over -1
    for (const Connection& stranger : strangers_) sockets.push_back({stranger.fd(), POLLIN, 0});
    if (!wait_ready(sockets, deadline)) fail_missing(missing);

    for (int r = 1; r < num_ranks_; ++r) {
      // A rank has nothing to say before it is welcomed.
      if (sockets[1 + static_cast<std::size_t>(r)].revents == 0) continue;
      fail(FrameKind::refused, fmt::format("{} left or died while the group was forming: check its own error", name_of(r)));
    }
    for (std::size_t i = 0; i < strangers_.size(); ++i) {
      if (sockets[1 + peers_.size() + i].revents != 0) welcome(strangers_[i], deadline);
    }
    std::erase_if(strangers_, [](const Connection& stranger) { return !stranger; });
    if (sockets[0].revents != 0) {
      std::optional<UniqueFd> accepted = accept_from(*listener);
      // Other users' processes are none of the group's, whatever they say.
      if (accepted && peer_of(*accepted).user == geteuid()) strangers_.emplace_back(std::move(*accepted));
    }
  }
  strangers_.clear();
  tell_all(FrameKind::welcome, {}, {}, deadline);
}

/// Reads what a stranger says and seats it; closes it when it went away without a word.
void Bootstrap::welcome(Connection& stranger, Deadline& deadline) {
  Frame frame;
  const Transfer transfer = stranger.receive(frame, deadline);
  if (transfer == Transfer::closed) return stranger.close();
  const std::string reason = why_unwelcome(transfer, frame, stranger.peer().process);
  if (!reason.empty()) fail(FrameKind::refused, reason);
  Hello hello;
  std::memcpy(&hello, frame.payload.data(), sizeof(hello));
  deadline = std::min(deadline, frame.deadline);
  peers_[static_cast<std::size_t>(hello.rank)] = std::move(stranger);
}

std::string Bootstrap::why_unwelcome(Transfer transfer, const Frame& frame, pid_t process) const {
  if (transfer != Transfer::done || frame.kind != FrameKind::hello || frame.payload.size() != sizeof(Hello)) {
    return fmt::format("process {} came to group '{}' and speaks another protocol: use one version of flashmoe on all ranks",
                       process, group_id_);
  }
  Hello hello;
  std::memcpy(&hello, frame.payload.data(), sizeof(hello));
  if (hello.num_ranks != num_ranks_) {
    return fmt::format("rank {} (process {}) says that group '{}' has {} ranks, and rank 0 says {}: give all the same "
                       "num_ranks", hello.rank, process, group_id_, hello.num_ranks, num_ranks_);
  }
  if (hello.rank < 1 || hello.rank >= num_ranks_) {
    return fmt::format("process {} came to group '{}' as rank {}, wanted 1..{}", process, group_id_, hello.rank,
                       num_ranks_ - 1);
  }
  if (peer(hello.rank)) {
    return fmt::format("rank {} of group '{}' is claimed by processes {} and {}: give every process its own rank, and every "
                       "group an id of its own", hello.rank, group_id_, peer(hello.rank).peer().process, process);
  }
  return {};
}

void Bootstrap::join_rank_0(Deadline deadline) {
  while (!peers_[0]) {
    std::optional<UniqueFd> connected = connect_to(socket_name());
    if (connected) {
      peers_[0] = Connection(std::move(*connected));
    } else if (std::chrono::steady_clock::now() >= deadline) {
      fail_missing({0});
    } else {
      std::this_thread::sleep_for(kRetryInterval);
    }
  }
  const Peer& holder = peers_[0].peer();
  if (holder.user != geteuid()) {
    end_group(FrameKind::refused,
              fmt::format("the socket of group '{}' belongs to process {} of user {}, wanted user {}: choose another group id",
                          group_id_, holder.process, holder.user, geteuid()));
    throw_failure();
  }
  const Hello hello{rank_, num_ranks_};
  peers_[0].send(FrameKind::hello, deadline, std::as_bytes(std::span(&hello, 1)), {}, deadline);
  await_rank_0(FrameKind::welcome, deadline);
}

}  // namespace flashmoe::fabric
