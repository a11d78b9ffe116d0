// Stream sockets between processes of one machine and one user, found by name.
//
// Names lie in the abstract namespace: the kernel frees one with its last socket, however the process ends, so nothing
// stale can stay behind and nothing needs cleaning up, which no file of a temporary folder can promise. It has no
// permissions, so both ends compare users (Peer) instead. Processes meet when they share a network namespace.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>

#include "fabric/unique_fd.hpp"

namespace flashmoe::fabric {

/// CLOCK_MONOTONIC, which the processes of a machine share.
using Deadline = std::chrono::steady_clock::time_point;

/// `seconds` from now, at most some years.
Deadline after_seconds(double seconds);

/// Longest name that an address holds.
inline constexpr std::size_t kMaxSocketName = 106;

/// Listens at `name`; none when a socket has it already. Throws FabricError when the system gives no socket.
std::optional<UniqueFd> listen_at(const std::string& name, int backlog);

/// One attempt; none when nobody listens or the listener is busy. Throws FabricError as listen_at().
std::optional<UniqueFd> connect_to(const std::string& name);

/// The next connection of a listening socket; none when it has gone again.
std::optional<UniqueFd> accept_from(const UniqueFd& listener);

/// Who is at the other end of a connection.
struct Peer {
  pid_t process;
  uid_t user;
};
Peer peer_of(const UniqueFd& connection);

/// Waits until one of `sockets` is ready (their revents say which). False when the deadline passes first.
bool wait_ready(std::span<pollfd> sockets, Deadline deadline);

}  // namespace flashmoe::fabric
