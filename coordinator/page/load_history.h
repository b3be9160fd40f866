// SPDX-License-Identifier: Apache-2.0
// How many jobs ran and waited in the last minutes: whoever opens the page sees where it came from.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>

#include "allocator/base/clock.h"

namespace commensal::page {

/// Jobs at one moment.
struct Load {
  std::int64_t guaranteed = 0;     ///< that have devices as such
  std::int64_t opportunistic = 0;  ///< the same
  std::int64_t waiting = 0;
  bool operator==(const Load&) const = default;
};

/// Keeps what changed in the last `kKept`, a point each `kStep` at most.
///
/// Has no clock: time is an argument. It is on nobody's disk: a coordinator that starts begins
/// anew. Thread safety: none.
class LoadHistory {
 public:
  static constexpr Duration kStep = std::chrono::seconds{5};
  static constexpr Duration kKept = std::chrono::minutes{15};

  /// Whether `add` takes a point now, or it is too early for another one.
  [[nodiscard]] bool is_due(TimePoint now) const noexcept { return now >= due(); }
  /// When it is.
  [[nodiscard]] TimePoint due() const noexcept;

  /// Notes how it is from now on; nothing is noted if it is as before, or too early.
  /// @param at  the same moment, for people.
  /// @return whether there is another list now.
  bool add(const Load& load, TimePoint now, std::chrono::milliseconds at);

  /// Returns [{"at_ms", "guaranteed", "opportunistic", "waiting"}], the oldest first: each is how
  /// it was from then to the next one.
  [[nodiscard]] nlohmann::json list() const;

 private:
  struct Point {
    TimePoint when;
    std::chrono::milliseconds at;  // since 1970, UTC
    Load load;
  };
  std::deque<Point> points_;
};

}  // namespace commensal::page
