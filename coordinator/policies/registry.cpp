// SPDX-License-Identifier: Apache-2.0
// Every policy of the cluster, one line each.
#include "coordinator/policies/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "coordinator/policies/makers.h"

namespace commensal::policies {

double Options::number(const std::string& name, double fallback) {
  const auto found = given_.find(name);
  if (found == given_.end()) return fallback;
  const std::string text = found->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    throw std::invalid_argument(fmt::format("option {} is no number: {}", name, text));
  }
  given_.erase(found);
  return value;
}

std::string Options::choice(const std::string& name, std::string_view fallback,
                            const std::vector<std::string>& choices) {
  const auto found = given_.find(name);
  if (found == given_.end()) return std::string(fallback);
  std::string value = found->second;
  if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
    throw std::invalid_argument(
        fmt::format("option {} is none of {}: {}", name, fmt::join(choices, ", "), value));
  }
  given_.erase(found);
  return value;
}

std::vector<std::string> Options::left() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : given_) names.push_back(name);
  return names;
}

const std::vector<PolicyEntry>& all_policies() {
  static const std::vector<PolicyEntry> policies{
      {"2d-gittins", "least likely to go on first, from past GPU-times (Tiresias)", make_gittins},
      {"2d-las", "least GPU-time so far first, in three queues (Tiresias)", make_2d_las},
      {"antman", "guaranteed jobs within quotas, opportunistic ones beside them (AntMan)",
       make_antman},
      {"fifo", "in the order of arrival; nobody passes who does not fit", make_fifo},
      {"fit-first", "in the order of arrival; who does not fit is passed", make_fit_first},
      {"gandiva", "equal time, and pairs on the same GPUs while that pays (Gandiva)", make_gandiva},
      {"gavel", "shares of time on each type of GPU by linear programs (Gavel)", make_gavel},
      {"las", "least time so far first, in three queues (Tiresias)", make_las},
      {"muri-antman", "AntMan as Muri's simulator models it: a baseline", make_muri_antman},
      {"sjf", "shortest duration first, nobody is stopped (Helios)", make_sjf},
      {"smallest-first", "fewest GPUs first, others are stopped (Tiresias)", make_smallest_first},
      {"srsf", "least remaining GPU-time first, others are stopped", make_srsf},
      {"srtf", "least remaining time first, others are stopped", make_srtf},
  };
  return policies;
}

std::unique_ptr<ClusterPolicy> make_policy(std::string_view name,
                                           const std::map<std::string, std::string>& options) {
  for (const PolicyEntry& entry : all_policies()) {
    if (entry.name != name) continue;
    Options given(options);
    std::unique_ptr<ClusterPolicy> policy = entry.make(given);
    if (const auto left = given.left(); !left.empty()) {
      throw std::invalid_argument(
          fmt::format("policy {} has no option {}", name, fmt::join(left, ", ")));
    }
    return policy;
  }
  std::vector<std::string_view> names;
  for (const PolicyEntry& entry : all_policies()) names.push_back(entry.name);
  throw std::invalid_argument(
      fmt::format("no policy {}; there are {}", name, fmt::join(names, ", ")));
}

}  // namespace commensal::policies
