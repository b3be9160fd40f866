// SPDX-License-Identifier: Apache-2.0
// Jobs as a predictor knows them.
#include "coordinator/cluster/run_times.h"

#include <algorithm>
#include <string>

namespace commensal::cluster {
namespace {

/// Of jobs that do the same: the program's folder and what its user calls it, which is the
/// script's name unless said otherwise. Arguments differ from run to run.
std::string group_of(const JobSpec& spec) { return spec.directory + '\n' + spec.name; }

}  // namespace

void RunTimes::learn(const JobSpec& spec, double seconds) {
  if (spec.pre_run) return;  // says nothing of others
  const std::string group = group_of(spec);
  predictor_->learn({.user = spec.tenant, .group = group, .name = spec.name, .gpus = spec.gpus},
                    std::max(seconds, 0.0));
}

std::optional<ExpectedTime> RunTimes::expect(const JobSpec& spec) const {
  if (spec.pre_run) return ExpectedTime{static_cast<double>(spec.pre_run->count()), true};
  const std::string group = group_of(spec);
  const prediction::Prediction found = predictor_->predict(
      {.user = spec.tenant, .group = group, .name = spec.name, .gpus = spec.gpus});
  const bool nothing = found.key == prediction::Prediction::kNothing;
  if (!spec.time_limit) {
    if (nothing) return std::nullopt;
    return ExpectedTime{found.seconds, found.alike};
  }
  const auto limit = static_cast<double>(spec.time_limit->count());
  if (!found.alike) return ExpectedTime{limit, true};  // its user's word is nearer than a mean
  return ExpectedTime{std::min(found.seconds, limit), true};
}

}  // namespace commensal::cluster
