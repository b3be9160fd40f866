// SPDX-License-Identifier: Apache-2.0
// How clients on other machines ask a cluster coordinator: one request, one reply.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>

#include "coordinator/keys/key_pair.h"
#include "coordinator/wire/control_client.h"

namespace zmq {
class socket_t;
}

namespace commensal::keys {

/// Raised when the coordinator does not allow the key of this side.
class KeyRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Checks an address as people write it: "tcp://HOST:PORT". Asks no name server.
/// @throws KeyProblem naming the value.
void check_address(std::string_view address);

/// Gives a socket the keys of this side and of the coordinator, before it connects.
/// @throws zmq::error_t.
void use_keys(zmq::socket_t& socket, const KeyPair& own, const Key& server);

/// Asks a coordinator over TCP, encrypted and with proof of both keys (ZeroMQ's CURVE). Each
/// request has a connection of its own. Thread safety: any member may be called from any thread.
class RemoteClient {
 public:
  /// Opens nothing yet. @param timeout  longest wait of one request.
  RemoteClient(std::string address, const KeyPair& own, const Key& server,
               std::chrono::milliseconds timeout)
      : address_(std::move(address)), own_(own), server_(server), timeout_(timeout) {}

  /// Sends one frame and returns the answer's.
  /// @throws KeyRefused, at once if it says so; wire::CoordinatorUnreachable if nobody listens, it
  /// is not the coordinator that the key belongs to, or no answer comes within the timeout.
  [[nodiscard]] std::string request_frame(std::string_view frame) const;

 private:
  std::string address_;
  KeyPair own_;
  Key server_;
  std::chrono::milliseconds timeout_;
};

}  // namespace commensal::keys
