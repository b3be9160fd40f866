// SPDX-License-Identifier: Apache-2.0
// Which event leads from which state to which.
#include "coordinator/cluster/job_life.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

namespace commensal::cluster {
namespace {

using enum JobState;

bool is_one_of(JobState state, std::initializer_list<JobState> states) {
  for (const JobState one : states) {
    if (state == one) return true;
  }
  return false;
}

/// Told by an engine, or about what an engine has: of one attempt.
bool of_attempt(EventKind kind) {
  switch (kind) {
    case EventKind::kBegan:
    case EventKind::kUpgrade:
    case EventKind::kUpgraded:
    case EventKind::kUpgradeFailed:
    case EventKind::kUnheld:
    case EventKind::kHeld:
    case EventKind::kLower:
    case EventKind::kLowered:
    case EventKind::kExited:
    case EventKind::kTakenBack:
    case EventKind::kEndByRule:
    case EventKind::kParkByRule:
    case EventKind::kVanished: return true;
    case EventKind::kAccept:
    case EventKind::kReserve:
    case EventKind::kUnreserve:
    case EventKind::kStart:
    case EventKind::kRetry:
    case EventKind::kResume:
    case EventKind::kCancel: return false;
  }
  return false;
}

class Life {
 public:
  Life(const JobRecord& before, const JobEvent& event, WallTime now)
      : before_(before), event_(event), now_(now) {
    step_.after = before;
  }

  Step step() && {
    if (event_.reason.empty()) {
      refuse("an event has a reason");
    } else if (of_attempt(event_.kind) && !about_this_attempt()) {
      // `about_this_attempt` has said why.
    } else {
      take();
    }
    return std::move(step_);
  }

 private:
  bool about_this_attempt() {
    if (event_.attempt > before_.attempt) {
      refuse(
          fmt::format("attempt {} has not begun: the last is {}", event_.attempt, before_.attempt));
      return false;
    }
    if (event_.attempt == before_.attempt && is_placed(before_.state)) return true;
    set(Applied::kStale, fmt::format("attempt {} is over", event_.attempt));
    return false;
  }

  void take() {
    switch (event_.kind) {
      case EventKind::kAccept: return go({kSubmitted}, kQueued);
      case EventKind::kReserve: return reserve();
      case EventKind::kUnreserve:
        if (before_.state == kReserved) step_.after.placement.clear();
        return go({kReserved}, kQueued);
      case EventKind::kStart: return start();
      case EventKind::kBegan:
        if (before_.state != kStarting) return already();
        return go({kStarting}, kRunning);
      case EventKind::kUpgrade:
        if (before_.state == kRunning && guaranteed()) return already();
        if (before_.lowering)
          return refuse("its nodes are to be told first that it is opportunistic");
        return go({kRunning}, kUpgrading);
      case EventKind::kUpgraded:
        if (before_.state == kRunning && !guaranteed()) return refuse_here();
        if (before_.state == kUpgrading) step_.after.job_class = JobClass::kGuaranteed;
        return go({kUpgrading}, kRunning);
      case EventKind::kUpgradeFailed: return go({kUpgrading}, kRunning);
      case EventKind::kUnheld:
      case EventKind::kHeld: return hold(event_.kind == EventKind::kHeld);
      case EventKind::kLower: return lower();
      case EventKind::kLowered:
        if (!before_.lowering) return already();
        step_.after.lowering = false;
        return change(before_.state);
      case EventKind::kExited: return exited();
      case EventKind::kTakenBack:
        if (is_being_ended(before_)) return end_as_asked();
        step_.after.placement.clear();
        return change(kQueued);
      case EventKind::kVanished:
        if (is_being_ended(before_)) return end_as_asked();
        return change(kLost);
      case EventKind::kEndByRule:
        if (is_being_ended(before_)) return already();
        step_.after.finish_asked = true;
        return change(before_.state);
      case EventKind::kParkByRule:
        if (is_being_ended(before_)) return already();
        step_.after.park_asked = true;
        return change(before_.state);
      case EventKind::kResume: return resume();
      case EventKind::kRetry: return retry();
      case EventKind::kCancel: return cancel();
    }
  }

  void reserve() {
    if (before_.state == kReserved && before_.placement == event_.placement) return already();
    if (!is_one_of(before_.state, {kQueued, kReserved})) return refuse_here();
    step_.after.placement = event_.placement;
    change(kReserved);
  }

  void start() {
    if (event_.attempt <= before_.attempt) {
      if (event_.attempt == before_.attempt && is_placed(before_.state)) return already();
      return set(Applied::kStale, fmt::format("attempt {} is over", event_.attempt));
    }
    if (event_.attempt != before_.attempt + 1 || !is_one_of(before_.state, {kQueued, kReserved})) {
      return refuse_here();
    }
    step_.after.attempt = event_.attempt;
    step_.after.job_class = event_.job_class;
    step_.after.placement = event_.placement;
    step_.after.exit_code.reset();
    change(kStarting);
  }

  /// While it changes its class, or is ended, there is nothing to be said of its devices.
  [[nodiscard]] bool has_devices_of_its_own() const {
    return before_.state == kRunning && guaranteed() && !is_being_ended(before_);
  }

  void hold(bool held) {
    const bool same = held ? !before_.unheld : before_.unheld && before_.reason == event_.reason;
    if (!has_devices_of_its_own() || same) return already();
    step_.after.unheld = !held;
    change(kRunning);
  }

  void lower() {
    if (!has_devices_of_its_own()) return already();
    step_.after.job_class = JobClass::kOpportunistic;
    step_.after.unheld = false;
    step_.after.lowering = true;
    change(kRunning);
  }

  void exited() {
    if (!event_.exit_code) return refuse("an exit has a code");
    step_.after.exit_code = event_.exit_code;
    // One that was to be parked and was quicker to end well by itself has nothing left to do.
    const bool done = !before_.cancel_asked && before_.park_asked && *event_.exit_code == 0;
    if (done) step_.after.park_asked = false;
    if (is_being_ended(before_) && !done) return end_as_asked();
    change(*event_.exit_code == 0 ? kFinished : kFailed);
  }

  /// How the engine ended it says nothing new: why it was asked to stays.
  void end_as_asked() {
    step_.after.park_asked = false;
    const bool parks = before_.park_asked && !before_.cancel_asked;
    if (parks) step_.after.placement.clear();
    const JobState ended = before_.cancel_asked ? kCancelled : kFinished;
    change(parks ? kParked : ended);
    step_.after.reason = before_.reason;
  }

  void resume() {
    if (event_.attempt != before_.attempt) {
      return set(Applied::kStale, fmt::format("attempt {} is over", event_.attempt));
    }
    go({kParked}, kQueued);
  }

  void retry() {
    if (event_.attempt != before_.attempt) {
      return set(Applied::kStale, fmt::format("attempt {} is over", event_.attempt));
    }
    if (waits(before_.state)) return already();
    if (!is_one_of(before_.state, {kFailed, kLost})) return refuse_here();
    ++step_.after.retries;
    step_.after.placement.clear();
    change(kQueued);
  }

  void cancel() {
    if (waits(before_.state) || before_.state == kParked) {
      step_.after.placement.clear();
      return change(kCancelled);
    }
    if (before_.state == kCancelled || before_.cancel_asked) return already();
    if (is_end(before_.state)) return refuse_here();
    step_.after.cancel_asked = true;
    change(before_.state);
  }

  /// Goes from one of `from`; in `to` already it is `kAlready`, elsewhere refused.
  void go(std::initializer_list<JobState> from, JobState to) {
    if (is_one_of(before_.state, from)) return change(to);
    if (before_.state == to) return already();
    // What is accepted has been looked at: wherever it is by now, it was.
    if (event_.kind == EventKind::kAccept) return already();
    refuse_here();
  }

  void change(JobState to) {
    step_.applied = Applied::kChanged;
    if (to != before_.state) step_.after.changed = now_;
    if (!is_placed(to)) step_.after.unheld = step_.after.lowering = false;
    step_.after.state = to;
    step_.after.reason = event_.reason;
  }

  [[nodiscard]] bool guaranteed() const { return before_.job_class == JobClass::kGuaranteed; }

  void already() {
    set(Applied::kAlready, fmt::format("it is {} already", to_string(before_.state)));
  }
  void refuse_here() {
    refuse(fmt::format("\"{}\" cannot happen to a job that is {}", to_string(event_.kind),
                       to_string(before_.state)));
  }
  void refuse(std::string why) { set(Applied::kRefused, std::move(why)); }
  void set(Applied applied, std::string why) {
    step_.applied = applied;
    step_.after = before_;
    step_.reason = std::move(why);
  }

  const JobRecord& before_;
  const JobEvent& event_;
  WallTime now_;
  Step step_;
};

}  // namespace

std::string_view to_string(EventKind kind) noexcept {
  switch (kind) {
    case EventKind::kAccept: return "accept";
    case EventKind::kReserve: return "reserve";
    case EventKind::kUnreserve: return "unreserve";
    case EventKind::kStart: return "start";
    case EventKind::kBegan: return "began";
    case EventKind::kUpgrade: return "upgrade";
    case EventKind::kUpgraded: return "upgraded";
    case EventKind::kUpgradeFailed: return "upgrade failed";
    case EventKind::kUnheld: return "unheld";
    case EventKind::kHeld: return "held";
    case EventKind::kLower: return "lower";
    case EventKind::kLowered: return "lowered";
    case EventKind::kExited: return "exited";
    case EventKind::kTakenBack: return "taken back";
    case EventKind::kVanished: return "vanished";
    case EventKind::kEndByRule: return "end by rule";
    case EventKind::kParkByRule: return "park by rule";
    case EventKind::kResume: return "resume";
    case EventKind::kRetry: return "retry";
    case EventKind::kCancel: return "cancel";
  }
  return "";
}

Step apply(const JobRecord& before, const JobEvent& event, WallTime now) {
  return Life(before, event, now).step();
}

}  // namespace commensal::cluster
