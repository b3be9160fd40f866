// SPDX-License-Identifier: Apache-2.0
// Requests from the threads of the server to the one thread that may answer them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"

namespace commensal::page {

/// Hands requests over and waits for their answers.
///
/// Thread safety: any member may be called from any thread.
class RequestBox {
 public:
  using Number = std::uint64_t;
  using Request = std::pair<Number, nlohmann::json>;

  /// @param wake  called from any thread when there is something to take.
  /// @param most  requests that wait at once.
  RequestBox(std::function<void()> wake, std::size_t most);

  /// Waits for the answer. Absent: none within `patience`, too many wait, or it is closed. A
  /// request that was taken already may still have been carried out.
  [[nodiscard]] std::optional<nlohmann::json> ask(nlohmann::json request,
                                                  std::chrono::milliseconds patience);

  /// Returns what has arrived since the last call.
  [[nodiscard]] std::vector<Request> take();
  /// Answers a request; nobody may be waiting for it any more.
  void answer(Number number, nlohmann::json answer);

  /// Lets everybody who waits go, now and from now on.
  void close();

 private:
  const std::function<void()> wake_;
  const std::size_t most_;
  Mutex mutex_;
  std::condition_variable_any answered_;
  std::vector<Request> arrived_ COMMENSAL_GUARDED_BY(mutex_);
  std::map<Number, std::optional<nlohmann::json>> answers_ COMMENSAL_GUARDED_BY(mutex_);  // awaited
  Number next_ COMMENSAL_GUARDED_BY(mutex_) = 1;
  bool closed_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

}  // namespace commensal::page
