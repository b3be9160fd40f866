// SPDX-License-Identifier: Apache-2.0
// The socket of a coordinator that many talk to.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace commensal::wire {

/// A ZeroMQ ROUTER. Nothing that a peer does holds it up: who does not read is not waited for, and
/// a frame above 16 MiB ends its connection. Thread safety: none.
class RouterSocket {
 public:
  /// Binds it. @throws zmq::error_t, a std::exception.
  explicit RouterSocket(const std::string& endpoint);
  RouterSocket(const RouterSocket&) = delete;
  RouterSocket& operator=(const RouterSocket&) = delete;
  ~RouterSocket();

  /// Binds it once more, where another file has the name of the one before or at another endpoint;
  /// those that are connected stay so. @throws zmq::error_t, a std::exception.
  void bind(const std::string& endpoint);

  /// For zmq::poll.
  [[nodiscard]] void* handle();

  /// Receives one message: who sent it, and its frames. False: none is there.
  [[nodiscard]] bool receive(std::string& peer, std::vector<std::string>& frames);

  /// @return false if the peer is gone or does not read.
  [[nodiscard]] bool send(const std::string& peer, const std::string& frame);

 private:
  struct Sockets;
  std::unique_ptr<Sockets> sockets_;
};

}  // namespace commensal::wire
