#include "fabric/local_socket.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "flashmoe/error.hpp"

namespace flashmoe::fabric {

namespace {

struct Address {
  sockaddr_un bytes{};
  socklen_t length = 0;
};

Address address_of(const std::string& name) {
  Address address;
  address.bytes.sun_family = AF_UNIX;
  // A leading zero byte makes the name abstract.
  std::copy_n(name.data(), std::min(name.size(), kMaxSocketName), address.bytes.sun_path + 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::min(name.size(), kMaxSocketName));
  return address;
}

[[noreturn]] void throw_system_error(const char* what, const std::string& name) {
  const int error = errno;
  throw FabricError(fmt::format("no socket for {}: {} failed with '{}'{}", name, what, std::strerror(error),
                                error == EMFILE || error == ENFILE ? "; raise the limit of open files (ulimit -n)" : ""));
}

UniqueFd make_socket(const std::string& name) {
  UniqueFd made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) throw_system_error("socket", name);
  return made;
}

}  // namespace

Deadline after_seconds(double seconds) {
  constexpr double kLongest = 1e8;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(std::min(seconds, kLongest)));
}

std::optional<UniqueFd> listen_at(const std::string& name, int backlog) {
  UniqueFd listener = make_socket(name);
  const Address address = address_of(name);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.length) != 0) {
    if (errno == EADDRINUSE) return std::nullopt;
    throw_system_error("bind", name);
  }
  if (listen(listener.get(), backlog) != 0) throw_system_error("listen", name);
  return listener;
}

std::optional<UniqueFd> connect_to(const std::string& name) {
  UniqueFd connection = make_socket(name);
  const Address address = address_of(name);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address.bytes), address.length) == 0) {
    return connection;
  }
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return std::nullopt;
  throw_system_error("connect", name);
}

std::optional<UniqueFd> accept_from(const UniqueFd& listener) {
  UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection) return connection;
  if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return std::nullopt;
  throw_system_error("accept", "a rank that has come");
}

Peer peer_of(const UniqueFd& connection) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    throw_system_error("getsockopt", "a rank that has come");
  }
  return {credentials.pid, credentials.uid};
}

bool wait_ready(std::span<pollfd> sockets, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    const int timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
    const int num_ready = poll(sockets.data(), sockets.size(), timeout_ms);
    if (num_ready > 0) return true;
    if (num_ready == 0 && std::chrono::steady_clock::now() >= deadline) return false;
    if (num_ready < 0 && errno != EINTR) throw_system_error("poll", "the ranks of a group");
  }
}

}  // namespace flashmoe::fabric
