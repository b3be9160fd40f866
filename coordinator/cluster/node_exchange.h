// SPDX-License-Identifier: Apache-2.0
// Parts of heartbeats that belong to an exchange: which start of the coordinator they are about.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace commensal::cluster {

inline constexpr std::size_t kLongestRun = 64;  ///< bytes of the word for a start

/// What each such part begins with.
struct NodeTold {
  nlohmann::json beat;  ///< a number: it goes back with the answer
  std::string run;      ///< of the coordinator that the node heard last; empty: of none
};

/// Reads it. @param name  of the part, for people.
/// @throws std::invalid_argument with one sentence.
[[nodiscard]] NodeTold read_told(const nlohmann::json& part, const char* name);

/// Whether an object has a whole number that is not negative.
[[nodiscard]] bool has_number(const nlohmann::json& object, const char* name);
/// Whether an object has a text of at most so many bytes.
[[nodiscard]] bool has_text(const nlohmann::json& object, const char* name, std::size_t longest);

/// Returns a word for a start of a coordinator, by the machine's source of randomness.
[[nodiscard]] std::string new_run();

}  // namespace commensal::cluster
