// SPDX-License-Identifier: Apache-2.0
// Both kinds of estimates of the same jobs, side by side.
#include "coordinator/engines/simulator/optimus_errors.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "coordinator/policies/optimus_estimates.h"

namespace commensal::simulator {
namespace {

constexpr std::array<std::string_view, 4> kQuarters{
    "losses, first quarter", "losses, second quarter", "losses, third quarter",
    "losses, last quarter"};

}  // namespace

void OptimusErrors::look(policies::ClusterState& state) {
  const auto& jobs = state.jobs();
  next_epoch_.resize(jobs.size(), 0);
  std::vector<policies::JobIndex> changed;
  for (const policies::JobIndex job : state.running()) {
    if (jobs[job].epoch < next_epoch_[job]) continue;
    next_epoch_[job] = jobs[job].epoch + 1;
    changed.push_back(job);
  }
  if (changed.empty()) return;
  policies::ClusterView view;
  view.jobs = jobs;
  view.models.scaling = &scaling_;
  const auto predicted = policies::predicted_estimates(view, changed, threshold_);
  const auto truth = policies::true_estimates(view);
  for (const policies::JobIndex job : changed) {
    const auto losses = scaling_.losses(jobs[job]);
    const double done = losses.empty() ? 0 : losses.back().step;
    const double left = truth->remaining_steps(job);
    const auto quarter = static_cast<std::size_t>(4 * done / (done + left));
    const bool by_losses = predicted->trust(job) == 1;
    left_.add(by_losses ? kQuarters[std::min<std::size_t>(quarter, 3)] : "ten epochs more",
              by_losses, predicted->remaining_steps(job), left);
    const auto step = predicted->step_seconds(job, jobs[job].held());
    const auto true_step = truth->step_seconds(job, jobs[job].held());
    if (step && true_step) times_.add("step time", true, *step, *true_step);
  }
}

}  // namespace commensal::simulator
