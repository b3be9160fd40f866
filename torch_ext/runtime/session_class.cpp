// SPDX-License-Identifier: Apache-2.0
// The class of the job, which may change while it runs. All on the client's thread.
#include <utility>

#include "torch_ext/runtime/idle_class.h"
#include "torch_ext/runtime/session_impl.h"

namespace commensal {

JobClass Session::Impl::class_now() const {
  const MutexLock lock(mutex);
  return job_class;
}

Bytes Session::Impl::memory_minimum() const {
  const MutexLock lock(mutex);
  return terms.memory.min;
}

void Session::Impl::use_class(JobClass wanted_class, const std::string& why) {
  bool changed = false;
  {
    const MutexLock lock(mutex);
    reason = why;
    changed = std::exchange(job_class, wanted_class) != wanted_class;
  }
  if (!why.empty() && has_grant(first_device)) note(why);
  follow_class();
  choose_who_brings_back();
  if (changed) follow_activity();
}

std::string Session::Impl::obstacle_to(JobClass wanted_class) const {
  const bool gives_way = wanted_class == JobClass::kOpportunistic;
  if (!gives_way || on_host() || config.job_class == JobClass::kOpportunistic) return {};
  return "it began as guaranteed, and what it launches on its GPU beside ops (graphs, kernels of "
         "Triton) passes no gate";
}

std::string Session::Impl::change_class(const wire::Change& change) {
  const JobClass wanted_class = *change.job_class;
  if (std::string why = obstacle_to(wanted_class); !why.empty()) return why;
  JobClass before = wanted_class;
  bool was_idle = false;
  {
    const MutexLock lock(mutex);
    before = std::exchange(job_class, wanted_class);
    was_idle = in_idle_class;
  }
  follow_class();
  std::string why;
  {
    const MutexLock lock(mutex);
    // Whoever stays behind all others is not guaranteed anything.
    if (wanted_class == JobClass::kGuaranteed && in_idle_class) {
      why = "its threads cannot leave the kernel's idle class: " + idle_class_reason;
      job_class = before;
    } else {
      asked_class = wanted_class;
      if (change.terms.memory) terms.memory.min = change.terms.memory->min;
    }
  }
  if (!why.empty()) {
    (void)enter_idle_class();  // those that could
    return why;
  }
  if (change.terms.memory) {
    const std::optional<Bytes> max = change.terms.memory->max;
    for (const auto& device : devices.all()) device->limits.take_max(max);
  }
  if (before == wanted_class) return {};
  if (const bool idle = is_idle(); idle != was_idle) move_children(idle);
  choose_who_brings_back();
  follow_activity();
  note(std::string("now ") + std::string(to_string(wanted_class)) + ": " + change.reason);
  return {};
}

bool Session::Impl::is_idle() const {
  const MutexLock lock(mutex);
  return in_idle_class;
}

// They have inherited the class of this process, and nobody tells them.
void Session::Impl::move_children(bool idle) {
  const IdleClassResult result = idle ? children_enter_idle_class() : children_leave_idle_class();
  if (result.failed > 0) note("not all child processes changed the idle class: " + result.reason);
}

void Session::Impl::follow_activity() {
  if (class_now() == JobClass::kOpportunistic) {
    activity.stop_finding_requests();
    activity.rest_end();
  } else if (role.load() != MemberRole::kHelper && steps.state().number == 0) {
    activity.find_requests();  // one that ends steps shows its waits by itself
  }
}

}  // namespace commensal
