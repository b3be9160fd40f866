// SPDX-License-Identifier: Apache-2.0
// Wait statuses to exit codes and sentences.
#include "coordinator/engines/local/ending.h"

#include <string.h>
#include <sys/wait.h>

namespace commensal::cluster::local {
namespace {

using Kind = EngineEvent::Kind;

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string end_of(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return "ended with " + std::to_string(WEXITSTATUS(wait_status));
  const int number = WTERMSIG(wait_status);
  const char* name = ::sigabbrev_np(number);
  return "was killed by " +
         (name != nullptr ? "SIG" + std::string{name} : "signal " + std::to_string(number));
}

}  // namespace

void Ending::set(Outcome cause) {
  if (!cause_) cause_ = std::move(cause);
}

void Ending::rank_ended(std::size_t rank, int wait_status) {
  ++ended_;
  const int code = exit_code_of(wait_status);
  if (code != 0 && !first_code_) first_code_ = code;
  std::string reason = named_ ? "rank " + std::to_string(rank) + ' ' : "";
  if (code != 0) set({Kind::kExited, code, reason + end_of(wait_status)});
  if (ended_ == ranks_) {
    set({Kind::kExited, 0, named_ ? "all ranks ended with 0" : "ended with 0"});
  }
}

void Ending::start_failed(int exit_code, std::string reason) {
  set({Kind::kExited, exit_code, std::move(reason)});
}

void Ending::taken_back() { set({Kind::kTakenBack, std::nullopt, "taken back"}); }

void Ending::time_limit(std::chrono::seconds limit) {
  set({Kind::kExited, kTimeLimitExit,
       "reached its time limit of " + std::to_string(limit.count()) + " s"});
}

void Ending::keeper_told_to_end() {
  set({Kind::kVanished, std::nullopt,
       "its keeper got SIGTERM, but not from the coordinator (does the machine go down?)"});
}

void Ending::head_gone() {
  set({Kind::kVanished, std::nullopt, "the first keeper of its gang is gone"});
}

Outcome Ending::outcome(const std::string& note) const {
  Outcome outcome = cause_.value_or(Outcome{Kind::kVanished, std::nullopt, "no rank was started"});
  if (outcome.kind == Kind::kTakenBack) outcome.exit_code = first_code_.value_or(0);
  if (!note.empty()) outcome.reason += "; " + note;
  return outcome;
}

}  // namespace commensal::cluster::local
