// SPDX-License-Identifier: Apache-2.0
// Levenshtein's distance, row by row.
#include "coordinator/policies/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace commensal::policies {
namespace {

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (const char letter : a) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (letter == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view written, const std::vector<std::string>& names) {
  const auto nearest = std::min_element(
      names.begin(), names.end(),
      [&](const auto& a, const auto& b) { return distance(written, a) < distance(written, b); });
  return nearest == names.end() ? std::string{} : *nearest;
}

std::string similar_name(std::string_view written, const std::vector<std::string>& names) {
  std::string nearest = nearest_name(written, names);
  const std::size_t letters = std::max(written.size(), nearest.size());
  return 2 * distance(written, nearest) > letters ? std::string{} : nearest;
}

}  // namespace commensal::policies
