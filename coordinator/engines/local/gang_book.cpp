// SPDX-License-Identifier: Apache-2.0
// Reports of parts to one outcome.
#include "coordinator/engines/local/gang_book.h"

#include <algorithm>
#include <utility>

namespace commensal::cluster::local {

GangBook::GangBook(std::vector<std::string> nodes) {
  for (std::string& node : nodes) parts_.push_back({.node = std::move(node), .outcome = {}});
}

void GangBook::note(const Report& report) {
  const std::size_t group = std::visit([](const auto& word) { return word.group; }, report);
  if (group >= parts_.size()) return;
  Part& part = parts_[group];
  if (const auto* ended = std::get_if<PartEnded>(&report)) {
    if (!part.outcome) note_end(part, ended->outcome);
    return;
  }
  part.ready = true;
  if (group == 0 && port_ == 0) port_ = std::get<PartReady>(report).port;
}

void GangBook::note_end(Part& part, const Outcome& outcome) {
  part.outcome = outcome;
  Outcome named = outcome;
  named.reason += " (node " + part.node + ')';
  const bool failed = outcome.kind == EngineEvent::Kind::kExited && outcome.exit_code != 0;
  if (failed && !cause_) cause_ = named;
  if (outcome.kind == EngineEvent::Kind::kVanished && !weak_) weak_ = named;
  if (all_ended() && !has_cause())
    cause_ = Outcome{EngineEvent::Kind::kExited, 0, "all ranks ended with 0"};
}

void GangBook::taken_back() {
  if (!has_cause()) cause_ = Outcome{EngineEvent::Kind::kTakenBack, std::nullopt, "taken back"};
}

void GangBook::told_to_end() {
  if (has_cause()) return;
  cause_ =
      Outcome{EngineEvent::Kind::kVanished, std::nullopt,
              "its keeper got SIGTERM, but not from the coordinator (was its job ended, or does "
              "the machine go down?)"};
}

void GangBook::waited_in_vain(std::chrono::seconds time) {
  if (has_cause()) return;
  cause_ = Outcome{EngineEvent::Kind::kVanished, std::nullopt,
                   "its ranks were not started: no keeper on " +
                       nodes_without([](const Part& part) { return part.ready; }) + " within " +
                       std::to_string(time.count()) + " s"};
}

bool GangBook::all_ready() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.ready; });
}

bool GangBook::all_ended() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.outcome.has_value(); });
}

std::string GangBook::nodes_without(bool (*has)(const Part&)) const {
  std::string names;
  for (const Part& part : parts_) {
    if (!has(part)) names += (names.empty() ? "" : ", ") + part.node;
  }
  return names;
}

Outcome GangBook::outcome(const std::string& launcher_end) const {
  if (cause_) {
    Outcome outcome = *cause_;
    if (outcome.kind != EngineEvent::Kind::kTakenBack) return outcome;
    outcome.exit_code = 0;
    for (const Part& part : parts_) {
      const int code = part.outcome ? part.outcome->exit_code.value_or(0) : 0;
      if (code != 0 && outcome.exit_code == 0) outcome.exit_code = code;
    }
    return outcome;
  }
  if (all_ended()) {
    return weak_.value_or(
        Outcome{EngineEvent::Kind::kVanished, std::nullopt, "no rank was started"});
  }
  const bool began = all_ready();
  const std::string names =
      nodes_without([](const Part& part) { return part.outcome.has_value(); });
  return {EngineEvent::Kind::kVanished, std::nullopt,
          began ? "its keeper on " + names + " is gone and left no outcome (" + launcher_end + ')'
                : "its ranks were not started: no keeper on " +
                      nodes_without([](const Part& part) { return part.ready; }) + " (" +
                      launcher_end + ')'};
}

}  // namespace commensal::cluster::local
