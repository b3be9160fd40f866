// SPDX-License-Identifier: Apache-2.0
// Ratcliff and Obershelp's matching, and bounds that spare most of it.
#include "coordinator/prediction/name_similarity.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>

namespace commensal::prediction {
namespace {

struct Common {
  std::size_t known = 0;
  std::size_t name = 0;
  std::size_t size = 0;
};

/// The longest common part; of equals the first in `known`, then in `name`.
Common longest_common(std::string_view known, std::string_view name) {
  Common best;
  std::vector<std::size_t> before(name.size() + 1, 0);  // lengths of parts that end at a letter
  std::vector<std::size_t> here(name.size() + 1, 0);
  for (std::size_t i = 0; i < known.size(); ++i) {
    for (std::size_t j = 0; j < name.size(); ++j) {
      here[j + 1] = known[i] == name[j] ? before[j] + 1 : 0;
      if (here[j + 1] > best.size) best = {i + 1 - here[j + 1], j + 1 - here[j + 1], here[j + 1]};
    }
    std::swap(before, here);
  }
  return best;
}

double ratio(std::size_t matched, std::size_t letters) {
  if (letters == 0) return 1;
  return 2.0 * static_cast<double>(matched) / static_cast<double>(letters);
}

using Letters = std::array<std::int32_t, 256>;

Letters letters_of(std::string_view text) {
  Letters count{};
  for (const char c : text) ++count[static_cast<unsigned char>(c)];
  return count;
}

/// No similarity is higher: each letter matches wherever it stands.
double bound(std::string_view known, std::string_view name, const Letters& of_name) {
  Letters left = of_name;
  std::size_t matched = 0;
  for (const char c : known) {
    if (left[static_cast<unsigned char>(c)]-- > 0) ++matched;
  }
  return ratio(matched, known.size() + name.size());
}

}  // namespace

double similarity(std::string_view known, std::string_view name) {
  std::size_t matched = 0;
  std::vector<std::pair<std::string_view, std::string_view>> parts{{known, name}};
  while (!parts.empty()) {
    const auto [left, right] = parts.back();
    parts.pop_back();
    const Common common = longest_common(left, right);
    if (common.size == 0) continue;
    matched += common.size;
    parts.emplace_back(left.substr(0, common.known), right.substr(0, common.name));
    parts.emplace_back(left.substr(common.known + common.size),
                       right.substr(common.name + common.size));
  }
  return ratio(matched, known.size() + name.size());
}

std::vector<std::string_view> closest_names(std::string_view name,
                                            const std::vector<std::string>& names, std::size_t most,
                                            double least) {
  using Scored = std::pair<double, std::string_view>;
  std::vector<Scored> best;  // highest first
  const Letters letters = letters_of(name);
  for (const std::string& known : names) {
    const double needed = best.size() < most ? least : std::max(least, best.back().first);
    if (ratio(std::min(known.size(), name.size()), known.size() + name.size()) < needed) continue;
    if (bound(known, name, letters) < needed) continue;
    const Scored scored{similarity(known, name), known};
    if (scored.first < needed) continue;
    best.insert(std::upper_bound(best.begin(), best.end(), scored, std::greater<>()), scored);
    if (best.size() > most) best.pop_back();
  }
  std::vector<std::string_view> closest;
  closest.reserve(best.size());
  for (const auto& [score, known] : best) closest.push_back(known);
  return closest;
}

}  // namespace commensal::prediction
