// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/peer_user.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "coordinator/wire/handover.h"

namespace commensal::page {
namespace {

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

bool put_address(int family, const std::string& text, __be32 (&into)[4]) {
  return inet_pton(family, text.c_str(), static_cast<void*>(into)) == 1;
}

}  // namespace

std::optional<uid_t> user_of_peer(const std::string& peer, std::uint16_t peer_port,
                                  const std::string& own, std::uint16_t own_port) {
  const int family = peer.find(':') == std::string::npos ? AF_INET : AF_INET6;
  Question question{};
  inet_diag_req_v2& request = question.request;
  request.sdiag_family = static_cast<__u8>(family);
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0U;
  request.id.idiag_sport = htons(peer_port);
  request.id.idiag_dport = htons(own_port);
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (!put_address(family, peer, request.id.idiag_src)) return std::nullopt;
  if (!put_address(family, own, request.id.idiag_dst)) return std::nullopt;
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;

  const wire::UniqueFd fd{::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)};
  if (!fd) return std::nullopt;
  const timeval patience{.tv_sec = 1, .tv_usec = 0};  // the kernel answers at once
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
      ::send(fd.get(), &question, sizeof question, 0) != sizeof question) {
    return std::nullopt;
  }
  alignas(nlmsghdr) std::array<char, 4096> answer{};
  const ssize_t size = ::recv(fd.get(), answer.data(), answer.size(), 0);
  if (size < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) return std::nullopt;
  nlmsghdr header{};
  std::memcpy(&header, answer.data(), sizeof header);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  inet_diag_msg found{};
  std::memcpy(&found, answer.data() + NLMSG_HDRLEN, sizeof found);
  // The kernel takes a listener where there is no such connection.
  if (found.id.idiag_sport != request.id.idiag_sport ||
      found.id.idiag_dport != request.id.idiag_dport) {
    return std::nullopt;
  }
  return found.idiag_uid;
}

}  // namespace commensal::page
