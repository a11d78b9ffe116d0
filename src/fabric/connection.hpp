// Frames between two processes: a kind, bytes and file descriptors, whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fabric/local_socket.hpp"
#include "fabric/unique_fd.hpp"

namespace flashmoe::fabric {

enum class FrameKind : std::uint16_t {
  hello,         ///< a rank to rank 0: who it is
  welcome,       ///< rank 0 to each: all have come
  allgather,     ///< a rank's part of a step, to rank 0
  exchange_fds,
  barrier,
  result,        ///< of a step, to each
  refused,       ///< text: the group has failed
  expired,       ///< text: somebody waited too long
  leave,         ///< a rank to rank 0: it will go
  left,          ///< rank 0 to each: all are leaving or gone
};

constexpr std::string_view to_string(FrameKind kind) {
  constexpr std::string_view names[] = {"hello",  "welcome", "allgather", "exchange_fds", "barrier",
                                        "result", "refused", "expired",   "leave",        "left"};
  return names[static_cast<int>(kind)];
}

struct Frame {
  FrameKind kind{};
  Deadline deadline{};              ///< when the sender stops waiting for the answer
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;
};

/// How sending or receiving ended. After anything but `done` the connection is of no more use.
enum class Transfer : std::uint8_t {
  done,
  late,      ///< the deadline passed
  closed,    ///< the other process closed its end, or ended
  garbled,   ///< what came is no frame of this version of the library
  fds_lost,  ///< this process may open no more files
};

/// Longest payload of a frame.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{65} << 20;

class Connection {
 public:
  Connection() = default;
  explicit Connection(UniqueFd socket) : socket_(std::move(socket)), peer_(peer_of(socket_)) {}

  explicit operator bool() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  const Peer& peer() const { return peer_; }
  void close() { socket_.reset(); }

  /// `fds` stay the caller's. At most 253 of them.
  Transfer send(FrameKind kind, Deadline frame_deadline, std::span<const std::byte> payload, std::span<const int> fds,
                Deadline deadline);
  Transfer receive(Frame& frame, Deadline deadline);

 private:
  Transfer send_some(std::span<const std::byte> bytes, std::span<const int> fds, Deadline deadline);
  Transfer receive_some(std::span<std::byte> bytes, std::vector<UniqueFd>* fds, Deadline deadline);

  UniqueFd socket_;
  Peer peer_{};
};

}  // namespace flashmoe::fabric
