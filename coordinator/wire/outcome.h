// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "allocator/base/enum_names.h"

namespace commensal::wire {

/// What became of something that was asked for.
enum class Outcome : std::uint8_t {
  kApplied,
  kDeferred,  ///< it goes on; the reason says what it waits for
  kStale,     ///< something newer has been done already
  kRefused    ///< nothing has changed; the reason says why
};
constexpr EnumNames<Outcome, 4> names_of(Outcome) noexcept {
  return {{{Outcome::kApplied, "applied"},
           {Outcome::kDeferred, "deferred"},
           {Outcome::kStale, "stale"},
           {Outcome::kRefused, "refused"}}};
}
[[nodiscard]] constexpr std::string_view to_string(Outcome outcome) noexcept {
  return name_of(outcome);
}

}  // namespace commensal::wire
