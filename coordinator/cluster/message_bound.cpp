// SPDX-License-Identifier: Apache-2.0
// TCP_INFO counts what has come; what still lies in the kernel is not anybody's memory yet.
#include "coordinator/cluster/message_bound.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>

namespace commensal::cluster {

bool TcpConnections::is_ours(int connection) const {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(connection, reinterpret_cast<sockaddr*>(&own), &size) != 0) return false;
  if (own.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(own).sin_port) == port_;
  }
  return own.ss_family == AF_INET6 &&
         ntohs(reinterpret_cast<const sockaddr_in6&>(own).sin6_port) == port_;
}

std::optional<std::uint64_t> TcpConnections::bytes_read(int connection) {
  tcp_info info{};
  socklen_t size = sizeof info;
  int unread = 0;
  if (!is_ours(connection) || ::getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received ||
      ::ioctl(connection, SIOCINQ, &unread) != 0) {
    return std::nullopt;
  }
  const std::uint64_t all = info.tcpi_bytes_received;
  return all - std::min(all, static_cast<std::uint64_t>(unread));
}

void TcpConnections::end(int connection) {
  // It may be gone by now: then there is nothing to end.
  if (is_ours(connection)) (void)::shutdown(connection, SHUT_RDWR);
}

void MessageBound::message_came(int connection) {
  const auto found = marks_.find(connection);
  if (found != marks_.end()) found->second.reset();
}

std::size_t MessageBound::look(std::size_t at_most) {
  std::size_t ended = 0;
  auto entry = marks_.upper_bound(last_);
  for (std::size_t left = std::min(at_most, marks_.size()); left > 0; --left) {
    if (entry == marks_.end()) entry = marks_.begin();
    auto& [connection, mark] = *entry;
    last_ = connection;
    const std::optional<std::uint64_t> read = connections_.bytes_read(connection);
    const bool counts = read && mark && *read >= *mark;
    const bool too_much = counts && *read - *mark > most_;
    if (too_much) {
      connections_.end(connection);
      ++ended;
    }
    if (!counts) mark = read;
    entry = !read || too_much ? marks_.erase(entry) : std::next(entry);
  }
  return ended;
}

}  // namespace commensal::cluster
