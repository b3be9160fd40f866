// SPDX-License-Identifier: Apache-2.0
// A ZeroMQ context whose threads are known as this project's own.
#pragma once

#include <deque>
#include <string>
#include <zmq.hpp>

#include "allocator/host/own_threads.h"

namespace commensal {

/// ZeroMQ starts threads of its own that block all signals and write no managed memory. They are
/// found once, while they start, by a name that nobody can guess; from then on by their numbers,
/// and bear the name "commensal-zmq". One that is not found counts as any other thread. For one
/// thread.
class ZmqContext {
 public:
  /// Starts the threads, and waits until they are found, a second at most.
  /// @throws zmq::error_t if there is no context or no socket to be had.
  ZmqContext();

  [[nodiscard]] zmq::context_t& context() noexcept { return context_; }
  [[nodiscard]] std::size_t known_threads() const noexcept { return own_.size(); }

 private:
  zmq::context_t context_;
  std::deque<OwnThread> own_;  // ends first: the context's end ends the threads
};

}  // namespace commensal
