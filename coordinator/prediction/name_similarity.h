// SPDX-License-Identifier: Apache-2.0
// How alike two names are, as Python's difflib sees it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace commensal::prediction {

/// Returns twice the letters that match by the letters of both (Ratcliff and Obershelp, 1988): the
/// longest common part, and then what is left and right of it; of equally long ones the first in
/// `known`, then in `name`. As difflib.SequenceMatcher(None, known, name, autojunk=False).ratio().
[[nodiscard]] double similarity(std::string_view known, std::string_view name);

/// Returns up to `most` names with the highest similarity to `name`, of at least `least`; of equals
/// the last in the alphabet. As difflib.get_close_matches for names of less than 200 letters.
[[nodiscard]] std::vector<std::string_view> closest_names(std::string_view name,
                                                          const std::vector<std::string>& names,
                                                          std::size_t most, double least);

}  // namespace commensal::prediction
