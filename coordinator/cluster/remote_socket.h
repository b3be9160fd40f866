// SPDX-License-Identifier: Apache-2.0
// The coordinator's socket for other machines.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/keys/key_pair.h"

namespace commensal::cluster {

/// A ZeroMQ ROUTER on TCP that encrypts, proves its own key and asks for that of everybody who
/// connects (CURVE, with the answers of ZeroMQ's authentication protocol given here).
///
/// Nothing that a peer does holds it up or makes it grow: who does not read is not waited for, a
/// frame above its bound ends the connection, and so does one that was seen before (CURVE counts
/// them), and a message of which no end comes (`bound_messages`); who has not proven a key within
/// five seconds is cut off. Thread safety: none.
class RemoteSocket {
 public:
  /// Decides whether a key may connect. It is asked at each new connection, not at each message.
  using Admits = std::function<bool(const keys::Key& key)>;

  /// Binds it. @param address  "tcp://ADDRESS:PORT"; port 0: any that is free.
  /// @throws std::runtime_error with one sentence: the address cannot be used, or is in use.
  RemoteSocket(const std::string& address, const keys::KeyPair& own, Admits admits);
  RemoteSocket(const RemoteSocket&) = delete;
  RemoteSocket& operator=(const RemoteSocket&) = delete;
  ~RemoteSocket();

  /// Where it listens, with the port.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

  /// For zmq::poll: messages, newcomers.
  [[nodiscard]] std::array<void*, 2> handles();

  /// Lets newcomers in or not, those that wait, up to a bound.
  void admit_newcomers();

  struct Received {
    std::string peer;  ///< to answer to
    keys::Key sender;  ///< proven
    std::vector<std::string> frames;
  };
  /// Receives one message. False: none is there.
  [[nodiscard]] bool receive(Received& message);

  /// Ends connections that have sent more than 32 MiB without the end of a message. To be called
  /// every now and then while there are connections, also if nothing was received.
  /// @param at_most  looks at so many of them, in turn.
  /// @return how many it has ended.
  std::size_t bound_messages(std::size_t at_most);
  /// How many there are.
  [[nodiscard]] std::size_t connections();

  /// @return false if the peer is gone or does not read.
  [[nodiscard]] bool send(const std::string& peer, const std::string& frame);

 private:
  struct Sockets;
  std::unique_ptr<Sockets> sockets_;
  Admits admits_;
  std::string address_;
};

}  // namespace commensal::cluster
