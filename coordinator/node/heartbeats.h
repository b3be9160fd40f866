// SPDX-License-Identifier: Apache-2.0
// Numbers of heartbeats, so that an answer that is old or was sent before is known.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace commensal::node {

/// What each part of an answer that belongs to an exchange begins with.
struct AnswerHead {
  std::uint64_t beat = 0;  ///< the heartbeat that is answered
  std::string run;         ///< of the coordinator; numbers of its own mean nothing beyond it
};

/// Numbers heartbeats of one exchange. An answer is taken of each once, and none that is older than
/// one that was taken. Thread safety: none.
class Heartbeats {
 public:
  /// Returns the number of the next one.
  [[nodiscard]] std::uint64_t next() noexcept { return ++sent_; }
  /// Reads a part of an answer. @param name  of the part, for people.
  /// @throws std::invalid_argument with one sentence unless it answers one that has no answer yet.
  [[nodiscard]] AnswerHead read(const nlohmann::json& part, const char* name) const;
  /// Notes that an answer was taken.
  void answered(std::uint64_t beat) noexcept { answered_ = beat; }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t answered_ = 0;  // the newest one that an answer was taken of
};

/// A field, or null.
[[nodiscard]] nlohmann::json field_of(const nlohmann::json& object, const char* name);

}  // namespace commensal::node
