// SPDX-License-Identifier: Apache-2.0
// The pacing laws by name, in messages and commands, and by number, on the pages.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace commensal::wire {

/// A pacing law on a page (torch_ext/gate has the laws themselves).
enum class LawId : std::uint64_t {
  kOpen = 0,
  kDutyCycle = 1,
  kGap = 2,
  kAntman = 3,
  kRateAimd = 4,
  kTokenWindow = 5
};

/// All laws, in the order in which people are told of them.
inline constexpr std::array kLaws{LawId::kGap,      LawId::kDutyCycle,   LawId::kAntman,
                                  LawId::kRateAimd, LawId::kTokenWindow, LawId::kOpen};

/// Returns a law's name in commands: "rate_aimd". Empty for a number that is no law.
[[nodiscard]] std::string_view to_string(LawId law) noexcept;
/// Returns the law of that name; nothing if there is none.
[[nodiscard]] std::optional<LawId> to_law(std::string_view name) noexcept;
/// Returns all names for a sentence: "gap, duty_cycle, ..."
[[nodiscard]] std::string law_names();

}  // namespace commensal::wire
