// SPDX-License-Identifier: Apache-2.0
// Texts that somebody wrote and others see on terminals and on the page.
#pragma once

#include <cstddef>
#include <string_view>

namespace commensal::cluster {

inline constexpr std::size_t kMostName = 255;     ///< bytes of a job's or tenant's name
inline constexpr std::size_t kMostReason = 1000;  ///< bytes of a reason

/// Refuses what is too long, or holds a control character: a terminal obeys these.
/// @param what  begins the message: "the name of a job".
/// @throws std::invalid_argument naming length, or code and place of the character.
void check_plain_text(std::string_view what, std::string_view text, std::size_t most);

/// The same, and nothing that is empty or blanks alone.
void check_plain_name(std::string_view what, std::string_view name, std::size_t most = kMostName);

}  // namespace commensal::cluster
