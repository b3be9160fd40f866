// SPDX-License-Identifier: Apache-2.0
// Numbers of heartbeats, so that an answer that is old or was sent before is known.
#pragma once

#include <cstdint>

namespace commensal::node {

/// Numbers heartbeats of one exchange. An answer is taken of each once, and none that is older than
/// one that was taken. Thread safety: none.
class Heartbeats {
 public:
  /// Returns the number of the next one.
  [[nodiscard]] std::uint64_t next() noexcept { return ++sent_; }
  /// Refuses an answer to one that has an answer already, or was not sent.
  /// @throws std::invalid_argument with one sentence.
  void check(std::uint64_t beat) const;
  /// Notes that an answer was taken.
  void answered(std::uint64_t beat) noexcept { answered_ = beat; }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t answered_ = 0;  // the newest one that an answer was taken of
};

}  // namespace commensal::node
