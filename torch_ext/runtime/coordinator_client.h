// SPDX-License-Identifier: Apache-2.0
// The line from a training process to its node coordinator: one thread, two sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/messages.h"

namespace commensal {

/// What the client needs from its process, and tells it. Every call comes on the client's thread.
class ClientHost {
 public:
  virtual ~ClientHost() = default;

  /// Who this process is and what it holds now; asked at each connection and `register_again`.
  [[nodiscard]] virtual wire::Register registration() = 0;
  /// The object of docs/stats.md.
  [[nodiscard]] virtual nlohmann::json statistics() = 0;
  virtual void on_registered(const wire::Registered& answer) = 0;
  virtual void on_change(const wire::Change& change) = 0;
  virtual void on_set_reply(const wire::SetReply& reply) = 0;
  /// An answer to something that was asked, or a complaint about a message.
  virtual void on_error(const wire::Error& error) = 0;
  /// Somebody asks where memory lies: post a MapReply with the same ticket.
  virtual void on_map_request(const wire::MapRequest& /*request*/) {}
  virtual void on_disconnected() = 0;
  /// @throws std::runtime_error if a page cannot be used; the client keeps the reason.
  virtual void on_device_page(wire::MappedPage page) = 0;
  virtual void on_peer_added(std::int64_t pid, wire::MappedPage page) = 0;
  virtual void on_peer_gone(std::int64_t pid) = 0;
  /// Called at each wake-up, at the latest after what it returned last time.
  [[nodiscard]] virtual Duration on_tick() = 0;
};

struct ClientOptions {
  std::filesystem::path runtime_dir;  ///< empty: never connects, only ticks
  std::string instance;
  int page_fd = -1;  ///< handed over; in our own table (own_descriptors.h); not owned
  std::chrono::milliseconds connect_timeout{1000};
  std::chrono::milliseconds retry{500};  ///< between attempts to connect
};

/// What became of the connection.
struct ClientStatus {
  bool connected = false;
  std::int64_t coordinator_pid = 0;
  std::string instance;
  std::string reason;  ///< why not connected; empty when connected
  std::uint64_t malformed_frames = 0;
};

/// Registers with the coordinator, keeps the line up, and connects again when a new daemon
/// appears. Nothing that a coordinator does or leaves undone stops the process from training.
///
/// The thread blocks all signals (they are for the program's own threads) and writes no managed
/// memory; it is known as our own, so that moves need not stop it. All that it opens is in our own
/// table of descriptors: what the program closes or opens does not reach the line. Never used in a
/// forked child. Thread safety: `post`, `register_again`, `wake` and `status` from any thread.
class CoordinatorClient {
 public:
  CoordinatorClient(ClientOptions options, ClientHost& host);
  ~CoordinatorClient();
  CoordinatorClient(const CoordinatorClient&) = delete;
  CoordinatorClient& operator=(const CoordinatorClient&) = delete;

  /// Starts the thread and waits until the first attempt to connect has ended.
  void start();
  /// Sends the last statistics and ends the thread. Idempotent.
  void stop() noexcept;
  /// Sends a message as soon as the thread gets to it; dropped when there is no connection.
  void post(wire::Message message);
  /// Registers anew on the line that there is; what changes is what `registration` then says.
  void register_again() noexcept;
  void wake() noexcept;
  [[nodiscard]] ClientStatus status() const;
  [[nodiscard]] bool connected() const noexcept;
  [[nodiscard]] bool on_client_thread() const noexcept;
  /// Kernel id of the thread; 0 before `start`.
  [[nodiscard]] int thread_id() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace commensal
