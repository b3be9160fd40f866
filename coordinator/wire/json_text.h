// SPDX-License-Identifier: Apache-2.0
// The one way from text to JSON: bounded, for it may be anybody's.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace commensal::wire {

/// What a text may hold. Copying and printing a value recurse, so its depth is bounded by a stack;
/// each element takes up to 100 bytes, whatever its text is, so their number bounds the memory.
struct JsonBounds {
  std::size_t bytes = std::size_t{1} << 20U;
  std::size_t depth = 32;                      ///< containers within the outermost one
  std::size_t values = std::size_t{1} << 17U;  ///< of all depths: containers, texts, numbers, ...
};
/// Of files that this user wrote: as large as they are, and a little deeper than what came in a
/// message and was kept in them.
inline constexpr JsonBounds kOwnFile{.bytes = std::numeric_limits<std::size_t>::max(),
                                     .depth = 64,
                                     .values = std::numeric_limits<std::size_t>::max()};

/// Raised for a text that cannot be used; `what` goes on after the name of the text: "is not JSON:
/// ...", "nests deeper than 32".
class BadJson : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads a text, all of which must be one value. @throws BadJson.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const JsonBounds& bounds = {});
/// The same where it does not matter what is wrong; nothing: something is.
[[nodiscard]] std::optional<nlohmann::json> try_parse_json(std::string_view text,
                                                           const JsonBounds& bounds = {});

/// Returns a text of an object; an empty one where there is none of that name.
[[nodiscard]] inline std::string text_of(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace commensal::wire
