// SPDX-License-Identifier: Apache-2.0
// The page, the state as JSON, live events, changes and metrics over HTTP.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/page/address.h"
#include "coordinator/page/board.h"
#include "coordinator/page/request_box.h"

namespace commensal::page {

struct HttpOptions {
  Address address;
  std::vector<std::string> hosts;            ///< further HOST:PORT that it is known by
  std::optional<std::uint16_t> port_before;  ///< tried first where `address` leaves the port open
  std::string token;
  std::chrono::milliseconds patience{5000};  ///< for an answer of the coordinator
  std::chrono::milliseconds quiet{10'000};   ///< between two signs of life to a listener
  std::chrono::seconds slow{5};              ///< a reader that takes nothing for so long is dropped
};

/// What the server has from the rest of the coordinator. All of it is called from any thread.
struct HttpSources {
  Board* board = nullptr;          ///< not owned
  RequestBox* requests = nullptr;  ///< not owned
  std::function<void()> look;      ///< somebody wants the state: what is not asked for yet, may be
  std::function<std::string()> metrics;
  std::function<void(const std::string& path, int status)> served;  ///< for the metrics
};

/// Most listeners, and most threads beside theirs.
inline constexpr int kMostListeners = 24;

/// Serves until it ends. Whatever goes wrong with a connection ends that connection.
///
/// `GET /` and its files; `GET /api/v1/state`, `/api/v1/{coordinator,summary,jobs,nodes,tenants,
/// events,load,node,reports}`; `GET /api/v1/live`; `POST /api/v1/requests`; `GET /metrics`
/// (docs/cluster.md has them).
class HttpServer {
 public:
  /// Binds and begins. @throws std::runtime_error, one sentence, if the address cannot be used.
  HttpServer(HttpOptions options, HttpSources sources);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  /// Closes board and box, so that everybody who waits for them goes.
  ~HttpServer();

  /// Where it listens, with the port that it got.
  [[nodiscard]] const Address& address() const noexcept;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace commensal::page
