// SPDX-License-Identifier: Apache-2.0
// What this machine's node coordinator says of its devices, for the page.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"
#include "coordinator/page/board.h"

namespace commensal::page {

/// Asks a node coordinator when somebody looks, not more often than each `period`, and puts the
/// answer on the board as the part `node`: `{"name": ..., "status": ..., "problem": ""}`, the
/// status as docs/stats.md describes it, or null and why there is none.
///
/// Thread safety: any member may be called from any thread. One of them asks; the others go on with
/// what there is.
class NodeStatus {
 public:
  /// Returns the status, a JSON text. @throws std::exception with why there is none.
  using Ask = std::function<std::string()>;

  /// @param name  of the node that is asked.
  NodeStatus(Board& board, Ask ask, Duration period, std::string name = "");

  /// Asks, if it is time to. May wait as long as `Ask` does.
  void refresh(TimePoint now);

 private:
  Board& board_;
  const Ask ask_;
  const Duration period_;
  const std::string name_;
  Mutex mutex_;
  bool asking_ COMMENSAL_GUARDED_BY(mutex_) = false;
  bool asked_ COMMENSAL_GUARDED_BY(mutex_) = false;
  TimePoint last_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal::page
