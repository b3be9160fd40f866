// SPDX-License-Identifier: Apache-2.0
// Stands between one client and a server on this machine, and holds back what the client sends.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>

#include "coordinator/wire/handover.h"

namespace commensal::cluster {

/// Hands on what the server says, and of what the client says the first bytes, until `release`.
class HoldingProxy {
 public:
  HoldingProxy(int port, std::size_t bytes) : port_(port), left_(bytes) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.get(), generic, size) != 0 || ::listen(listener_.get(), 1) != 0 ||
        ::getsockname(listener_.get(), generic, &size) != 0) {
      throw std::runtime_error("no socket to listen on");
    }
    address_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread{[this] { run(); }};
  }
  HoldingProxy(const HoldingProxy&) = delete;
  HoldingProxy& operator=(const HoldingProxy&) = delete;
  ~HoldingProxy() {
    stop_ = true;
    thread_.join();
  }

  [[nodiscard]] const std::string& address() const { return address_; }
  /// All bytes that it was to hand on were.
  [[nodiscard]] bool holds() const { return left_ == 0; }
  /// Hands on so many more, then holds again.
  void release(std::size_t bytes = std::numeric_limits<std::size_t>::max()) { left_ = bytes; }
  /// The server has ended the connection.
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }

  void run() {
    wire::UniqueFd client;
    while (!stop_ && !client) {
      pollfd newcomer{listener_.get(), POLLIN, 0};
      if (::poll(&newcomer, 1, 10) > 0) {
        client = wire::UniqueFd{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
      }
    }
    const wire::UniqueFd server{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const sockaddr_in address = loopback(port_);
    if (!client ||
        ::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return;
    }
    while (!stop_ && !ended_) {
      const auto asks = static_cast<short>(left_ > 0 ? POLLIN : 0);
      std::array<pollfd, 2> ends{{{client.get(), asks, 0}, {server.get(), POLLIN, 0}}};
      (void)::poll(ends.data(), ends.size(), 10);
      if ((ends[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0 &&
          hand_on(server.get(), client.get(), buffer_.size()) == 0) {
        ended_ = true;
      }
      if ((ends[0].revents & POLLIN) != 0) {
        const std::size_t most = std::min(left_.load(), buffer_.size());
        const std::size_t handed = hand_on(client.get(), server.get(), most);
        if (left_ != std::numeric_limits<std::size_t>::max())
          left_ -= std::min(handed, left_.load());
      }
    }
  }

  std::size_t hand_on(int from, int to, std::size_t most) {
    const ssize_t got = ::recv(from, buffer_.data(), most, 0);
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t now =
          ::send(to, buffer_.data() + sent, static_cast<std::size_t>(got - sent), MSG_NOSIGNAL);
      if (now <= 0) return 0;
      sent += now;
    }
    return got > 0 ? static_cast<std::size_t>(got) : 0;
  }

  const int port_;
  const wire::UniqueFd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string address_;
  std::array<char, 65536> buffer_{};
  std::atomic<std::size_t> left_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace commensal::cluster
