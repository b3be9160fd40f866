// SPDX-License-Identifier: Apache-2.0
// Names of states and classes, to and from text.
#include "coordinator/cluster/job.h"

#include <array>
#include <utility>

namespace commensal::cluster {
namespace {

template <typename Value, std::size_t kCount>
using Names = std::array<std::pair<Value, std::string_view>, kCount>;

constexpr Names<JobState, 11> kStates{{{JobState::kSubmitted, "submitted"},
                                       {JobState::kQueued, "queued"},
                                       {JobState::kReserved, "reserved"},
                                       {JobState::kStarting, "starting"},
                                       {JobState::kRunning, "running"},
                                       {JobState::kParked, "parked"},
                                       {JobState::kUpgrading, "upgrading"},
                                       {JobState::kFinished, "finished"},
                                       {JobState::kFailed, "failed"},
                                       {JobState::kCancelled, "cancelled"},
                                       {JobState::kLost, "lost"}}};

constexpr Names<policies::AskedClass, 3> kClasses{
    {{policies::AskedClass::kGuaranteed, "guaranteed"},
     {policies::AskedClass::kOpportunistic, "opportunistic"},
     {policies::AskedClass::kAuto, "auto"}}};

template <typename Value, std::size_t kCount>
std::string_view name_of(const Names<Value, kCount>& names, Value value) noexcept {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "unknown";
}

template <typename Value, std::size_t kCount>
std::optional<Value> value_of(const Names<Value, kCount>& names, std::string_view name) noexcept {
  for (const auto& [value, known] : names) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(JobState state) noexcept { return name_of(kStates, state); }

std::optional<JobState> job_state(std::string_view name) noexcept {
  return value_of(kStates, name);
}

bool is_end(JobState state) noexcept {
  return state == JobState::kFinished || state == JobState::kFailed ||
         state == JobState::kCancelled || state == JobState::kLost;
}

bool is_placed(JobState state) noexcept {
  return state == JobState::kStarting || state == JobState::kRunning ||
         state == JobState::kUpgrading;
}

bool waits(JobState state) noexcept {
  return state == JobState::kSubmitted || state == JobState::kQueued ||
         state == JobState::kReserved;
}

const std::optional<FlatRule>& flat_rule(const JobSpec& spec) noexcept {
  return spec.park_when_flat ? spec.park_when_flat : spec.end_when_flat;
}

bool is_being_ended(const JobRecord& job) noexcept {
  return is_placed(job.state) && (job.cancel_asked || job.finish_asked || job.park_asked);
}

std::string_view to_string(policies::AskedClass asked) noexcept { return name_of(kClasses, asked); }

std::optional<policies::AskedClass> asked_class(std::string_view name) noexcept {
  return value_of(kClasses, name);
}

}  // namespace commensal::cluster
