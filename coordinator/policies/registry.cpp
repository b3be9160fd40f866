// SPDX-License-Identifier: Apache-2.0
// Every policy of the cluster, one line each.
#include "coordinator/policies/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "coordinator/policies/makers.h"
#include "coordinator/policies/nearest_name.h"

namespace commensal::policies {

double Options::number(const std::string& name, double fallback) {
  known_.push_back(name);
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

std::string Options::text(const std::string& name, std::string_view fallback) {
  known_.push_back(name);
  auto found = given_.extract(name);
  return found.empty() ? std::string(fallback) : std::move(found.mapped());
}

std::string Options::choice(const std::string& name, std::string_view fallback,
                            const std::vector<std::string>& choices) {
  known_.push_back(name);
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
  names.reserve(given_.size());
  for (const auto& [name, value] : given_) names.push_back(name);
  return names;
}

const std::vector<PolicyEntry>& all_policies() {
  static const std::vector<PolicyEntry> policies{
      {"2d-gittins", "least likely to go on first, from past GPU-times (Tiresias)", make_gittins},
      {"2d-las", "least GPU-time so far first, in three queues (Tiresias)", make_2d_las},
      {"antman", "guaranteed jobs within quotas, opportunistic ones beside them (AntMan)",
       make_antman},
      {"best-fit", "on one node, where least is left behind (FGD's baselines)", make_best_fit},
      {"capacity", "a queue a tenant within its quota, least used first (YARN)", make_capacity},
      {"dot-product", "on one node, smallest product of free and asked (Tetris)", make_dot_product},
      {"dragon", "elastic jobs: fewer workers when others wait, more when not (DRAGON)",
       make_dragon},
      {"fgd", "on one node, where fragments grow least for typical jobs (FGD)", make_fgd},
      {"fifo", "in the order of arrival; nobody passes who does not fit", make_fifo},
      {"fit-first", "in the order of arrival; who does not fit is passed", make_fit_first},
      {"gandiva", "equal time, and pairs on the same GPUs while that pays (Gandiva)", make_gandiva},
      {"gavel", "shares of time on each type of GPU by linear programs (Gavel)", make_gavel},
      {"gpu-clustering", "on one node, beside jobs that ask alike (Gandiva)", make_gpu_clustering},
      {"gpu-packing", "on one node, GPUs in use before free ones", make_gpu_packing},
      {"las", "least time so far first, in three queues (Tiresias)", make_las},
      {"muri-antman", "AntMan as Muri's simulator models it: a baseline", make_muri_antman},
      {"optimus", "GPUs to who gains most, by fits of speed and loss (Optimus)", make_optimus},
      {"optimus+oracle", "GPUs to who gains most, true step times and steps (Pollux' Optimus)",
       make_optimus_oracle},
      {"pai", "fractions of GPUs, high-end machines for jobs that need them (PAI)", make_pai},
      {"philly", "fair share of quotas, locality that relaxes with time (Philly)", make_philly},
      {"qssf", "least predicted GPU-time first, nobody is stopped (Helios)", make_qssf},
      {"random", "on any node and GPU that will do, by a seed", make_random},
      {"sjf", "shortest duration first, nobody is stopped (Helios)", make_sjf},
      {"smallest-first", "fewest GPUs first, others are stopped (Tiresias)", make_smallest_first},
      {"srsf", "least remaining GPU-time first, others are stopped", make_srsf},
      {"srtf", "least remaining time first, others are stopped", make_srtf},
      {"tiresias", "least GPU-time so far first, in two queues, in place (Pollux' Tiresias)",
       make_tiresias},
  };
  return policies;
}

std::unique_ptr<ClusterPolicy> make_policy(std::string_view name,
                                           const std::map<std::string, std::string>& options,
                                           std::optional<std::uint64_t> seed) {
  for (const PolicyEntry& entry : all_policies()) {
    if (entry.name != name) continue;
    std::map<std::string, std::string> all = options;
    const bool seeded = seed && all.emplace("seed", std::to_string(*seed)).second;
    Options given(std::move(all));
    std::unique_ptr<ClusterPolicy> policy = entry.make(given);
    std::vector<std::string> left = given.left();
    if (seeded) std::erase(left, "seed");
    if (!left.empty()) {
      throw std::invalid_argument(fmt::format(
          "policy {} has no option {}{}", name, left.front(),
          given.known().empty()
              ? "; it has none"
              : fmt::format("; did you mean {}?", nearest_name(left.front(), given.known()))));
    }
    return policy;
  }
  std::vector<std::string> names;
  for (const PolicyEntry& entry : all_policies()) names.emplace_back(entry.name);
  throw std::invalid_argument(fmt::format("no policy {}; did you mean {}? There are {}", name,
                                          nearest_name(name, names), fmt::join(names, ", ")));
}

}  // namespace commensal::policies
