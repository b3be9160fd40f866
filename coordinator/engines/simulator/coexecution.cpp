// SPDX-License-Identifier: Apache-2.0
// Speeds of jobs that share a GPU, by who divides its time.
#include "coordinator/engines/simulator/coexecution.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "coordinator/policies/nearest_name.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator {
namespace {

SharingSpeeds behind_the_gate(const SharingModel& model, double guaranteed_busy,
                              std::span<const double> others) {
  SharingSpeeds speeds;
  if (others.empty()) return speeds;
  double free = 1;
  if (guaranteed_busy > 0) {
    speeds.guaranteed = 1 / (1 + model.slo);
    free = model.efficiency * (1 - guaranteed_busy / (1 + model.slo));
  }
  // Each wants its own busy share of the time; together they want this much.
  const double wanted = std::accumulate(others.begin(), others.end(), 0.0);
  speeds.opportunistic = wanted > 0 ? std::min(1.0, free / wanted) : 1.0;
  return speeds;
}

/// Without classes: everybody is slowed alike.
SharingSpeeds all_alike(double guaranteed_busy, std::span<const double> others, bool loses_idle) {
  double wanted = guaranteed_busy + std::accumulate(others.begin(), others.end(), 0.0);
  const std::size_t jobs = others.size() + (guaranteed_busy > 0 ? 1 : 0);
  if (loses_idle && jobs > 1) wanted = static_cast<double>(jobs);
  const double speed = wanted > 1 ? 1 / wanted : 1.0;
  return {.guaranteed = speed, .opportunistic = speed};
}

/// Takes an option that is a number out of `options`.
void take_number(std::map<std::string, std::string>& options, const std::string& name, double least,
                 double most, double& value) {
  const auto found = options.find(name);
  if (found == options.end()) return;
  policies::Options only(std::map<std::string, std::string>{*found});
  value = only.number(name, value);
  if (!(value >= least && value <= most)) {
    throw std::invalid_argument(
        fmt::format("option {} is not from {:g} to {:g}: {}", name, least, most, found->second));
  }
  options.erase(found);
}

}  // namespace

SharingSpeeds speeds_on_gpu(const SharingModel& model, double guaranteed_busy,
                            std::span<const double> others) {
  switch (model.sharing) {
    case Sharing::kGate: return behind_the_gate(model, guaranteed_busy, others);
    case Sharing::kDefault: return all_alike(guaranteed_busy, others, true);
    case Sharing::kMps:
    case Sharing::kPairs: return all_alike(guaranteed_busy, others, false);
  }
  return {};
}

double part_in_memory(const SharingModel& model, double guaranteed, double others) {
  if (model.gpu_memory_gib <= 0 || others <= 0) return 1;
  return std::clamp((model.gpu_memory_gib - guaranteed) / others, 0.0, 1.0);
}

double speed_with(const SharingModel& model, double part) {
  const double away = 2 * (1 - part);
  return 1 / (1 + (1 / model.half_memory - 1) * away * away);
}

std::vector<double> pair_speeds(const policies::ThroughputTable& table, std::uint32_t type,
                                std::span<const PairedJob> jobs) {
  const auto part = [&](std::size_t job, double rate) {
    return rate / table.reference(jobs[job].profile);
  };
  const auto alone = [&](std::size_t job) {
    return part(job, table.alone(type, jobs[job].profile));
  };
  // As measured; zero if they do not fit.
  const auto together = [&](std::size_t a, std::size_t b) {
    const auto rates = table.together(type, jobs[a].profile, jobs[b].profile);
    if (rates.first <= 0 || rates.second <= 0) return std::pair{0.0, 0.0};
    return std::pair{part(a, rates.first), part(b, rates.second)};
  };
  std::vector<double> speeds(jobs.size(), 0);
  if (jobs.size() == 1) return {alone(0)};
  const auto first =
      std::find_if(jobs.begin(), jobs.end(), [](const PairedJob& job) { return job.guaranteed; });
  if (first != jobs.end()) {
    const auto guaranteed = static_cast<std::size_t>(first - jobs.begin());
    const double turn = 1 / static_cast<double>(jobs.size() - 1);
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      if (job == guaranteed) continue;
      const auto [its, other] = together(guaranteed, job);
      speeds[guaranteed] += turn * (other > 0 ? its : alone(guaranteed));
      speeds[job] = turn * other;
    }
    return speeds;
  }
  const double turn = 2 / static_cast<double>(jobs.size() * (jobs.size() - 1));
  for (std::size_t a = 0; a < jobs.size(); ++a) {
    for (std::size_t b = a + 1; b < jobs.size(); ++b) {
      auto [its, other] = together(a, b);
      if (other <= 0) std::tie(its, other) = std::pair{alone(a) / 2, alone(b) / 2};
      speeds[a] += turn * its;
      speeds[b] += turn * other;
    }
  }
  return speeds;
}

SharingModel read_sharing(std::string_view sharing, std::map<std::string, std::string>& options) {
  static const std::vector<std::pair<std::string, Sharing>> known{{"gate", Sharing::kGate},
                                                                  {"slices", Sharing::kDefault},
                                                                  {"mps", Sharing::kMps},
                                                                  {"pairs", Sharing::kPairs}};
  SharingModel model;
  const std::string name(sharing.empty() ? "gate" : sharing);
  const auto found = std::find_if(known.begin(), known.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == known.end()) {
    std::vector<std::string> names;
    names.reserve(known.size());
    for (const auto& entry : known) names.push_back(entry.first);
    throw std::invalid_argument(fmt::format("no sharing {}; did you mean {}? There are {}", name,
                                            policies::nearest_name(name, names),
                                            fmt::join(names, ", ")));
  }
  model.sharing = found->second;
  take_number(options, "slo", 0, 10, model.slo);
  take_number(options, "harvest", 0.001, 1, model.efficiency);
  take_number(options, "busy", 0, 1, model.busy);
  take_number(options, "restart", 0, 1e6, model.restart);
  if (model.sharing != Sharing::kGate) return model;  // the others cannot move memory
  take_number(options, "gpu-memory", 0, 1e6, model.gpu_memory_gib);
  take_number(options, "half-memory", 0.001, 1, model.half_memory);
  return model;
}

}  // namespace commensal::simulator
