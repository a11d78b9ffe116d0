#include "fabric/connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace flashmoe::fabric {

namespace {

/// Linux passes at most so many descriptors in one message (SCM_MAX_FD).
constexpr std::size_t kMaxFds = 253;

struct Header {
  std::uint32_t magic;      // names the wire format: changes with it
  FrameKind kind;
  std::uint16_t num_fds;
  std::int64_t deadline_ns;
  std::uint64_t payload_bytes;
};
constexpr std::uint32_t kMagic = 0x464d4201;  // "FMB", version 1
constexpr FrameKind kLastKind = FrameKind::left;

/// Room for the ancillary data that carries descriptors.
struct FdBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> bytes{};
};

}  // namespace

Transfer Connection::send_some(std::span<const std::byte> bytes, std::span<const int> fds, Deadline deadline) {
  FdBuffer buffer;
  while (!bytes.empty()) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = buffer.bytes.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* control = CMSG_FIRSTHDR(&message);
      control->cmsg_level = SOL_SOCKET;
      control->cmsg_type = SCM_RIGHTS;
      control->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(control), fds.data(), fds.size_bytes());
    }
    const ssize_t sent = sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
      fds = {};  // they went with the first byte
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Transfer::closed;
    pollfd ready{fd(), POLLOUT, 0};
    if (!wait_ready({&ready, 1}, deadline)) return Transfer::late;
  }
  return Transfer::done;
}

Transfer Connection::receive_some(std::span<std::byte> bytes, std::vector<UniqueFd>* fds, Deadline deadline) {
  FdBuffer buffer;
  while (!bytes.empty()) {
    iovec part{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fds != nullptr) {
      message.msg_control = buffer.bytes.data();
      message.msg_controllen = buffer.bytes.size();
    }
    const ssize_t received = recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
    if (received > 0) {
      for (cmsghdr* control = fds != nullptr ? CMSG_FIRSTHDR(&message) : nullptr; control != nullptr;
           control = CMSG_NXTHDR(&message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
          int passed;
          std::memcpy(&passed, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
          fds->emplace_back(passed);
        }
      }
      bytes = bytes.subspan(static_cast<std::size_t>(received));
      continue;
    }
    if (received == 0) return Transfer::closed;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Transfer::closed;
    pollfd ready{fd(), POLLIN, 0};
    if (!wait_ready({&ready, 1}, deadline)) return Transfer::late;
  }
  return Transfer::done;
}

Transfer Connection::send(FrameKind kind, Deadline frame_deadline, std::span<const std::byte> payload,
                          std::span<const int> fds, Deadline deadline) {
  const Header header{.magic = kMagic,
                      .kind = kind,
                      .num_fds = static_cast<std::uint16_t>(fds.size()),
                      .deadline_ns = std::chrono::nanoseconds(frame_deadline.time_since_epoch()).count(),
                      .payload_bytes = payload.size()};
  const Transfer transfer = send_some(std::as_bytes(std::span(&header, 1)), fds, deadline);
  return transfer == Transfer::done ? send_some(payload, {}, deadline) : transfer;
}

Transfer Connection::receive(Frame& frame, Deadline deadline) {
  Header header;
  frame.fds.clear();
  Transfer transfer = receive_some(std::as_writable_bytes(std::span(&header, 1)), &frame.fds, deadline);
  if (transfer != Transfer::done) return transfer;
  if (header.magic != kMagic || header.kind > kLastKind || header.payload_bytes > kMaxFrameBytes) return Transfer::garbled;
  frame.kind = header.kind;
  frame.deadline = Deadline(std::chrono::nanoseconds(header.deadline_ns));
  frame.payload.resize(header.payload_bytes);
  transfer = receive_some(frame.payload, nullptr, deadline);
  if (transfer != Transfer::done) return transfer;
  return frame.fds.size() == header.num_fds ? Transfer::done : Transfer::fds_lost;
}

}  // namespace flashmoe::fabric
