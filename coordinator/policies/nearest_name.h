// SPDX-License-Identifier: Apache-2.0
// Which of several names somebody may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace commensal::policies {

/// Returns the name with the fewest inserted, dropped and changed letters; the first of equals, and
/// nothing if there is no name.
[[nodiscard]] std::string nearest_name(std::string_view written,
                                       const std::vector<std::string>& names);

/// The same where anything may be meant: nothing, too, if more than half of the letters differ.
[[nodiscard]] std::string similar_name(std::string_view written,
                                       const std::vector<std::string>& names);

}  // namespace commensal::policies
