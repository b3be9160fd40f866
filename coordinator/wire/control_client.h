// SPDX-License-Identifier: Apache-2.0
// How the command line asks a node coordinator: one request, one reply.
#pragma once

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "coordinator/wire/messages.h"

namespace commensal::wire {

/// Raised when no coordinator answers; the message names the socket.
class CoordinatorUnreachable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns if somebody listens on a control socket, without a word to him. Does not wait.
/// @throws CoordinatorUnreachable naming the socket and why not.
void check_listener(const std::filesystem::path& socket_path);

/// Asks a node coordinator through its control socket (a ZeroMQ DEALER, one frame a message).
///
/// Each request has a connection of its own, so that a late answer is never taken for the next
/// one's. Thread safety: any member may be called from any thread.
class ControlClient {
 public:
  /// @param socket_path  RUNTIME_DIR/INSTANCE.sock; nothing is opened yet.
  /// @param timeout      longest wait of one request.
  ControlClient(std::filesystem::path socket_path, std::chrono::milliseconds timeout);

  /// Sends one message and returns the answer, which may be an `Error`.
  /// @throws CoordinatorUnreachable if nobody listens on the socket (at once) or no answer comes
  /// within the timeout; BadMessage if the answer cannot be used.
  [[nodiscard]] Message request(const Message& message) const;
  /// The same with frames as they are, for tools and tests.
  [[nodiscard]] std::string request_frame(std::string_view frame) const;

  [[nodiscard]] const std::filesystem::path& socket_path() const noexcept { return socket_path_; }

 private:
  std::filesystem::path socket_path_;
  std::chrono::milliseconds timeout_;
};

}  // namespace commensal::wire
