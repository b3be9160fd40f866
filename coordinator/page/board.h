// SPDX-License-Identifier: Apache-2.0
// What the page shows, between the one thread that knows it and the many that are asked for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/base/mutex.h"

namespace commensal::page {

/// Something to read, a JSON text, and the version of the state that it came with.
struct Part {
  std::shared_ptr<const std::string> text;
  std::uint64_t version = 0;
};

/// The state at one moment; never changes.
struct Snapshot {
  std::uint64_t version = 0;  ///< 0: nothing was put yet
  std::map<std::string, Part, std::less<>> parts;

  /// Returns one JSON object: `version`, and each part that is newer than `after`.
  [[nodiscard]] std::string json(std::uint64_t after = 0) const;
};

/// Holds the newest snapshot. Making one costs something, so it is made when somebody looks:
/// readers ask (`fresh`, `Listener`), which wakes the writer, who puts what there is and says up to
/// which question that is the answer.
///
/// Thread safety: any member may be called from any thread.
class Board {
 public:
  /// @param wake  called from any thread whenever somebody asks; must not call this object.
  /// @param most_listeners  at once.
  Board(std::function<void()> wake, int most_listeners);

  // The writer.
  /// Replaces parts; those with the same text stay as old as they are. Nothing new, no new version.
  void put(std::map<std::string, std::string> parts);
  /// Number of the last question.
  [[nodiscard]] std::uint64_t asked() const;
  /// Says that the snapshot answers all questions up to `question`.
  void answered(std::uint64_t question);
  [[nodiscard]] int listeners() const;

  // Readers.
  /// Asks, and waits for the answer; after `patience` what there is must do.
  [[nodiscard]] std::shared_ptr<const Snapshot> fresh(std::chrono::milliseconds patience);
  /// Waits for a version above `after`; null: there was none within `patience`, or it is closed.
  [[nodiscard]] std::shared_ptr<const Snapshot> newer(std::uint64_t after,
                                                      std::chrono::milliseconds patience);

  /// Somebody who looks on until this ends.
  class Listener {
   public:
    explicit Listener(Board& board) : board_(&board) {}
    Listener(Listener&& other) noexcept : board_(std::exchange(other.board_, nullptr)) {}
    Listener& operator=(Listener&&) = delete;
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    ~Listener();

   private:
    Board* board_;
  };
  /// Absent: as many as may be listen already, or it is closed.
  [[nodiscard]] std::optional<Listener> listen();

  /// Lets everybody who waits go, now and from now on.
  void close();
  [[nodiscard]] bool closed() const;

 private:
  const std::function<void()> wake_;
  const int most_listeners_;
  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::shared_ptr<const Snapshot> snapshot_ COMMENSAL_GUARDED_BY(mutex_);
  std::uint64_t asked_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  std::uint64_t answered_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  int listeners_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  bool closed_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

}  // namespace commensal::page
