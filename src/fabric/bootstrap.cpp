#include "fabric/bootstrap.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe::fabric {

namespace {

/// How long a verdict may travel after the deadline that it reports.
constexpr std::chrono::seconds kGrace{1};

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string text_of(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size());
}

void append(std::vector<std::byte>& payload, std::span<const std::byte> bytes) {
  payload.insert(payload.end(), bytes.begin(), bytes.end());
}

/// "rank 2", "ranks 1, 2 and 3"
std::string list_ranks(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    list += fmt::format("{} {}", i == 0 ? "" : i + 1 == ranks.size() ? " and" : ",", ranks[i]);
  }
  return list;
}

}  // namespace

Bootstrap::Bootstrap(std::string group_id, int rank, int num_ranks, double deadline_seconds)
    : group_id_(std::move(group_id)), rank_(rank), num_ranks_(num_ranks), deadline_seconds_(deadline_seconds) {
  const bool plain = std::all_of(group_id_.begin(), group_id_.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (group_id_.empty() || group_id_.size() > kMaxGroupId || !plain) {
    throw InvalidArgument(fmt::format("group_id must have 1..{} printable ASCII characters, got {} ('{}')", kMaxGroupId,
                                      group_id_.size(), printable(group_id_)));
  }
  if (num_ranks < 1 || num_ranks > Limits::num_ranks) {
    throw InvalidArgument(fmt::format("num_ranks must be 1..{}, got {}", Limits::num_ranks, num_ranks));
  }
  if (rank < 0 || rank >= num_ranks) {
    throw InvalidArgument(fmt::format("rank must be 0..{} in a group of {} ranks, got {}", num_ranks - 1, num_ranks, rank));
  }
  if (!(deadline_seconds > 0)) {
    throw InvalidArgument(fmt::format("deadline_seconds must be above 0, got {}", deadline_seconds));
  }
  peers_.resize(static_cast<std::size_t>(rank == 0 ? num_ranks : 1));
  const Deadline deadline = after_seconds(deadline_seconds);
  if (rank > 0) {
    join_rank_0(deadline);
  } else if (num_ranks > 1) {
    gather_ranks(deadline);
  }
}

// ---- steps

std::vector<std::vector<std::byte>> Bootstrap::allgather(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxGatheredBytes) {
    throw InvalidArgument(fmt::format("a rank may give 0..{} bytes to a step, got {}", kMaxGatheredBytes, bytes.size()));
  }
  const Frame result = run_step(FrameKind::allgather, bytes, {});
  // Every part follows its length.
  std::vector<std::vector<std::byte>> parts;
  std::span<const std::byte> rest = result.payload;
  for (int r = 0; r < num_ranks_; ++r) {
    std::uint64_t length = 0;
    require_size(std::min(rest.size(), sizeof(length)), sizeof(length));
    std::memcpy(&length, rest.data(), sizeof(length));
    rest = rest.subspan(sizeof(length));
    require_size(std::min<std::size_t>(rest.size(), length), length);
    parts.emplace_back(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(length));
    rest = rest.subspan(length);
  }
  return parts;
}

std::vector<UniqueFd> Bootstrap::exchange_fds(int fd) {
  if (fcntl(fd, F_GETFD) < 0) throw InvalidArgument(fmt::format("fd must be an open file, got {}", fd));
  Frame result = run_step(FrameKind::exchange_fds, {}, {&fd, 1});
  require_size(result.fds.size(), static_cast<std::size_t>(num_ranks_));
  return std::move(result.fds);
}

void Bootstrap::barrier() { run_step(FrameKind::barrier, {}, {}); }

Frame Bootstrap::run_step(FrameKind step, std::span<const std::byte> payload, std::span<const int> fds) {
  if (!failure_.empty()) throw_failure();
  const Deadline deadline = after_seconds(deadline_seconds_);
  if (rank_ == 0) return run_as_hub(step, payload, fds, deadline);
  // Where rank 0 has closed its end, its last words are still there to be read.
  if (peers_[0].send(step, deadline, payload, fds, deadline) == Transfer::late) fail_missing({0});
  return await_rank_0(FrameKind::result, deadline);
}

Frame Bootstrap::run_as_hub(FrameKind step, std::span<const std::byte> payload, std::span<const int> fds,
                            Deadline deadline) {
  std::vector<Frame> parts = collect(step, deadline);
  parts[0].payload.assign(payload.begin(), payload.end());
  for (const int fd : fds) {
    parts[0].fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    check_part(0, step, parts[0].fds.back() ? Transfer::done : Transfer::fds_lost, parts[0]);
  }
  Frame result{.kind = FrameKind::result, .deadline = deadline, .payload = {}, .fds = {}};
  std::vector<int> all_fds;
  for (Frame& part : parts) {
    const std::uint64_t length = part.payload.size();
    append(result.payload, std::as_bytes(std::span(&length, 1)));
    append(result.payload, part.payload);
    for (UniqueFd& fd : part.fds) {
      all_fds.push_back(fd.get());
      result.fds.push_back(std::move(fd));
    }
  }
  tell_all(FrameKind::result, result.payload, all_fds, after_seconds(deadline_seconds_));
  return result;
}

/// Every other rank's part of a step; that of rank 0 is left empty.
std::vector<Frame> Bootstrap::collect(FrameKind step, Deadline deadline) {
  std::vector<Frame> parts(static_cast<std::size_t>(num_ranks_));
  std::vector<int> missing;
  for (int r = 1; r < num_ranks_; ++r) {
    if (!peer(r)) check_part(r, step, Transfer::closed, {});
    missing.push_back(r);
  }
  while (!missing.empty()) {
    // Ranks that have given their part are watched too: their end is everybody's.
    std::vector<pollfd> sockets;
    for (const Connection& connection : peers_) sockets.push_back({connection.fd(), POLLIN, 0});
    if (!wait_ready(sockets, deadline)) fail_missing(missing);
    for (int r = 1; r < num_ranks_; ++r) {
      const auto index = static_cast<std::size_t>(r);
      if (sockets[index].revents == 0) continue;
      Frame frame;
      const Transfer transfer = peers_[index].receive(frame, deadline);
      if (transfer == Transfer::late) fail_missing(missing);
      check_part(r, step, transfer, frame);
      deadline = std::min(deadline, frame.deadline);
      parts[index] = std::move(frame);
      std::erase(missing, r);
    }
  }
  return parts;
}

/// Fails the group unless a rank's frame is its part of the step.
void Bootstrap::check_part(int rank, FrameKind step, Transfer transfer, const Frame& frame) {
  const bool gave_up = frame.kind == FrameKind::refused || frame.kind == FrameKind::expired;
  const bool left = transfer == Transfer::closed || frame.kind == FrameKind::leave;
  std::string wrong;
  if (transfer == Transfer::fds_lost) {
    wrong = fmt::format("rank 0 of group '{}' may open no more files: raise its limit of open files (ulimit -n)", group_id_);
  } else if (left) {
    wrong = fmt::format("{} left or died before {}: check its own error", name_of(rank), to_string(step));
  } else if (transfer == Transfer::done && gave_up) {
    wrong = fmt::format("{} gave up: {}", name_of(rank), text_of(frame));
  } else if (transfer == Transfer::garbled) {
    wrong = fmt::format("{} speaks another protocol: use one version of flashmoe on all ranks", name_of(rank));
  } else if (rank != 0 && frame.kind != step) {
    wrong = fmt::format("{} came to {} while rank 0 came to {}: every rank must make the same steps in the same order",
                        name_of(rank), to_string(frame.kind), to_string(step));
  }
  if (!wrong.empty()) fail(FrameKind::refused, wrong);
}

/// The others' wait for rank 0. A verdict that it sends instead is thrown.
Frame Bootstrap::await_rank_0(FrameKind wanted, Deadline deadline) {
  Frame frame;
  switch (peers_[0].receive(frame, deadline + kGrace)) {
    case Transfer::done: break;
    case Transfer::late: fail_missing({0});
    case Transfer::closed: fail(FrameKind::refused, fmt::format("{} left or died: check its own error", name_of(0)));
    case Transfer::garbled: frame.kind = FrameKind::hello; break;
    case Transfer::fds_lost:
      fail(FrameKind::refused, fmt::format("rank {} of group '{}' may open no more files: raise its limit of open files "
                                           "(ulimit -n)", rank_, group_id_));
  }
  if (frame.kind == FrameKind::refused || frame.kind == FrameKind::expired) {
    end_group(frame.kind, text_of(frame));
    throw_failure();
  }
  if (frame.kind != wanted) {
    fail(FrameKind::refused,
         fmt::format("{} speaks another protocol: use one version of flashmoe on all ranks", name_of(0)));
  }
  return frame;
}

// ---- the end of a group

void Bootstrap::give_up(std::string_view reason) noexcept {
  if (!failure_.empty()) return;
  try {
    const std::string text(reason);
    const std::string told = rank_ == 0 ? fmt::format("rank 0 of group '{}' gave up: {}", group_id_, text) : text;
    tell_all(FrameKind::refused, bytes_of(told), {}, std::chrono::steady_clock::now() + kGrace);
    end_group(FrameKind::refused, fmt::format("this rank gave up group '{}': {}", group_id_, text));
  } catch (...) {
    peers_.clear();  // the others see this rank's end instead
  }
}

bool Bootstrap::leave(double deadline_seconds) noexcept {
  if (!failure_.empty()) return false;
  try {
    const Deadline deadline = after_seconds(deadline_seconds);
    bool all = false;
    if (rank_ == 0) {
      all = await_leavers(deadline);
      if (all) tell_all(FrameKind::left, {}, {}, deadline);
    } else {
      Frame frame;
      Transfer transfer = peers_[0].send(FrameKind::leave, deadline, {}, {}, deadline);
      while (transfer == Transfer::done && frame.kind != FrameKind::left) transfer = peers_[0].receive(frame, deadline);
      all = transfer == Transfer::done;
    }
    end_group(FrameKind::refused, fmt::format("rank {} has left group '{}'", rank_, group_id_));
    return all;
  } catch (...) {
    peers_.clear();
    return false;
  }
}

/// Whether every other rank is leaving or gone. What else they still say is too late.
bool Bootstrap::await_leavers(Deadline deadline) {
  std::vector<bool> leaving(peers_.size());
  while (true) {
    std::vector<pollfd> sockets;
    for (std::size_t r = 0; r < peers_.size(); ++r) sockets.push_back({leaving[r] ? -1 : peers_[r].fd(), POLLIN, 0});
    if (std::none_of(sockets.begin(), sockets.end(), [](const pollfd& socket) { return socket.fd >= 0; })) return true;
    if (!wait_ready(sockets, deadline)) return false;
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      if (sockets[r].revents == 0) continue;
      Frame frame;
      const Transfer transfer = peers_[r].receive(frame, deadline);
      if (transfer != Transfer::done) peers_[r].close();
      leaving[r] = frame.kind == FrameKind::leave;
    }
  }
}

void Bootstrap::tell_all(FrameKind kind, std::span<const std::byte> payload, std::span<const int> fds, Deadline deadline) {
  // Whoever cannot be told has gone or hangs; the next step finds that out.
  for (std::vector<Connection>* connections : {&peers_, &strangers_}) {
    for (Connection& connection : *connections) {
      if (connection && connection.send(kind, deadline, payload, fds, deadline) != Transfer::done) connection.close();
    }
  }
}

void Bootstrap::fail(FrameKind how, const std::string& text) {
  tell_all(how, bytes_of(text), {}, std::chrono::steady_clock::now() + kGrace);
  end_group(how, text);
  throw_failure();
}

void Bootstrap::fail_missing(const std::vector<int>& missing) {
  fail(FrameKind::expired,
       fmt::format("{} of group '{}' did not come within {:.3g} s: check that every rank runs on this machine, under this "
                   "user and with this group id, and makes the same steps", list_ranks(missing), group_id_,
                   deadline_seconds_));
}

void Bootstrap::end_group(FrameKind how, const std::string& text) {
  failure_kind_ = how;
  failure_ = text;
  peers_.clear();
  strangers_.clear();
}

void Bootstrap::throw_failure() const {
  if (failure_kind_ == FrameKind::expired) throw Timeout(failure_);
  throw FabricError(failure_);
}

void Bootstrap::require_size(std::size_t got, std::size_t wanted) const {
  if (got == wanted) return;
  throw FabricError(fmt::format("ranks of group '{}' gave {} where {} was wanted: use one version of flashmoe on all ranks",
                                group_id_, got, wanted));
}

std::string Bootstrap::name_of(int rank) const {
  return fmt::format("rank {} (process {}) of group '{}'", rank, peer(rank).peer().process, group_id_);
}

}  // namespace flashmoe::fabric
