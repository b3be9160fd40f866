// SPDX-License-Identifier: Apache-2.0
// The way in for other machines: socket, keys, and a log that nobody can flood.
#pragma once

#include <spdlog/fwd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "coordinator/cluster/remote_socket.h"
#include "coordinator/keys/key_ring.h"

namespace commensal::cluster {

struct ClusterOptions;

/// Receives what holders of allowed keys send. A key that is revoked does not connect from then on,
/// and what it sends over connections that it has is refused. Thread safety: none.
class RemoteDoor {
 public:
  /// Listens, with the coordinator's pair, which is made if there is none.
  /// @throws keys::KeyProblem, std::runtime_error with one sentence.
  RemoteDoor(const std::string& address, const keys::KeyFolder& folder,
             std::shared_ptr<spdlog::logger> log);

  [[nodiscard]] const std::string& address() const noexcept { return socket_.address(); }

  /// Adds what is to be waited for.
  void add_to(std::vector<zmq::pollitem_t>& items);

  /// Looks whether the list of keys has changed, admits newcomers, and ends messages that have no
  /// end. Call before `receive`.
  void look();
  /// When `look` should be called if nothing happens before.
  [[nodiscard]] std::chrono::steady_clock::time_point next_wake();

  struct Asked {
    std::string peer;
    /// Whose key it came with; null: it is not allowed any more. Valid until the next call.
    const keys::AllowedKey* caller = nullptr;
    std::vector<std::string> frames;
  };
  /// False: nothing is there.
  [[nodiscard]] bool receive(Asked& asked);
  [[nodiscard]] bool send(const std::string& peer, const std::string& frame) {
    return socket_.send(peer, frame);
  }

 private:
  [[nodiscard]] bool admits(const keys::Key& key);
  void tell_of_refused();
  void bound_messages();

  std::shared_ptr<spdlog::logger> log_;
  keys::KeyRing ring_;
  RemoteSocket socket_;
  std::uint64_t refused_ = 0;  // connections, since the log was told
  std::string last_refused_;
  std::chrono::steady_clock::time_point next_line_;
  std::chrono::steady_clock::time_point next_bound_;  // when messages are to be bounded again
};

/// @return null if nothing is to be listened on. @throws as the constructor.
[[nodiscard]] std::unique_ptr<RemoteDoor> make_remote_door(const ClusterOptions& options,
                                                           std::shared_ptr<spdlog::logger> log);

}  // namespace commensal::cluster
