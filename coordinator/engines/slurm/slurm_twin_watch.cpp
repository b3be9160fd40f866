// SPDX-License-Identifier: Apache-2.0
// From what squeue shows to the next command.
#include "coordinator/engines/slurm/slurm_twin_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/engines/slurm/slurm_notes.h"

namespace commensal::cluster::slurm {
namespace {

using StepKind = TwinStep::Kind;
using local::AttemptFolder;

bool waits(const JobLine& job) { return job.state == "PENDING" || job.state == "CONFIGURING"; }

}  // namespace

TwinStep next_step(const std::vector<TwinSeen>& seen, bool may_submit, bool out_of_patience) {
  for (const TwinSeen& twin : seen) {
    if (twin.line.state != "RUNNING" || twin.wrong) continue;
    return {StepKind::kAsk, twin.line.id,
            fmt::format("job {} of Slurm has begun, and its devices are not known", twin.line.id)};
  }
  if (out_of_patience) {
    return {StepKind::kGiveBack, 0,
            "Slurm gives other devices of its nodes than those that it runs on"};
  }
  for (const TwinSeen& twin : seen) {
    if (!waits(twin.line)) continue;
    return {is_held(twin.line) ? StepKind::kLetGo : StepKind::kNothing, twin.line.id,
            fmt::format("waits for them in Slurm's queue, as job {} ({})", twin.line.id,
                        twin.line.reason)};
  }
  if (seen.size() >= kMostTwins || !may_submit) {
    return {StepKind::kNothing, 0, "Slurm is asked for them again soon"};
  }
  return {StepKind::kSubmit, 0, "Slurm is asked for them again"};
}

void TwinWatch::meet(const AttemptFolder& folder) {
  if (TwinNotes{folder}.is_told()) known_.try_emplace(folder.attempt());
}

void TwinWatch::look(const std::filesystem::path& state, const Jobs& jobs,
                     std::vector<EngineEvent>& news) {
  // Who has a twin may have been upgraded since.
  for (auto entry = jobs.begin(); entry != jobs.end(); entry = jobs.upper_bound(entry->first)) {
    if (!known_.contains(entry->first)) meet(AttemptFolder{state, entry->first});
  }
  for (auto entry = known_.begin(); entry != known_.end();) {
    const bool stays = look_at(AttemptFolder{state, entry->first}, entry->second, jobs, news);
    entry = stays ? std::next(entry) : known_.erase(entry);
  }
}

bool TwinWatch::look_at(const AttemptFolder& folder, Known& known, const Jobs& jobs,
                        std::vector<EngineEvent>& news) {
  std::vector<TwinSeen> seen;
  std::set<std::string> own;
  std::string state = "forgotten";
  const auto [begin, end] = jobs.equal_range(folder.attempt());
  for (auto entry = begin; entry != end; ++entry) {
    const JobLine& line = entry->second;
    own.insert(std::to_string(line.id));
    if (line.id == known.holder) state = line.state;
    if (is_over(line.state)) continue;
    if (line.id == known.holder && line.state == "RUNNING") return true;
    seen.push_back({line, known.others.contains(line.id)});
  }
  if (!TwinNotes{folder}.is_told()) return false;  // it was given up, and its twins with it
  if (folder.has_ended()) {
    for (const TwinSeen& twin : seen) {
      if (waits(twin.line)) commands_.cancel(twin.line.id);  // those that run end by themselves
    }
    return false;
  }
  if (known.holder) {
    known.lost =
        fmt::format("job {} of Slurm, which held its devices, is {}", *known.holder, state);
    known.holder.reset();
  }
  const TimePoint now = clock_.now();
  const bool tired = known.wrong_since && now - *known.wrong_since >= options_.patience;
  const TwinStep step = next_step(seen, now >= known.submit_from, tired);
  if (step.kind != StepKind::kAsk && now >= known.others_from) {
    known.others_from = now + options_.others;
    known.taken = who_took(folder, std::move(own), known);
  }
  if (step.kind == StepKind::kAsk || known.taken.empty()) take(step, folder, known, seen);
  const bool held = known.holder.has_value();
  const bool wrong = step.kind == StepKind::kAsk && !held;
  const auto tell = [&](EngineEvent::Kind kind, const std::string& what) {
    const bool both = !held && !known.lost.empty();
    news.push_back({folder.attempt(), kind, std::nullopt, both ? known.lost + "; " + what : what});
  };
  if (held) {
    tell(EngineEvent::Kind::kHeld, fmt::format("job {} of Slurm holds its devices", *known.holder));
  } else if (!known.taken.empty()) {
    tell(EngineEvent::Kind::kTaken, known.taken);
  } else {
    tell(EngineEvent::Kind::kUnheld,
         wrong ? fmt::format("job {} of Slurm has other devices of its nodes", step.twin)
               : step.reason);
  }
  return true;
}

std::string TwinWatch::who_took(const AttemptFolder& folder, std::set<std::string> own,
                                Known& known) {
  const auto placed = folder.placed();
  if (!placed) return {};
  const DevicesByNodes used = used_by(*placed);
  if (const auto job = noted_job(folder)) own.insert(std::to_string(*job));
  for (const std::string& job : commands_.running_on(local::nodes_of(*placed))) {
    if (own.contains(job)) continue;
    // What a job has does not change while it runs.
    auto found = known.devices.find(job);
    if (found == known.devices.end()) {
      found = known.devices.emplace(job, commands_.devices_of(job)).first;
    }
    for (const auto& [node, numbers] : found->second) {
      const auto mine = used.find(node);
      if (mine == used.end()) continue;
      for (const std::int32_t number : numbers) {
        if (!mine->second.contains(number)) continue;
        return fmt::format("Slurm has given device {} of node {} to job {}", number, node, job);
      }
    }
  }
  return {};
}

void TwinWatch::take(const TwinStep& step, const AttemptFolder& folder, Known& known,
                     const std::vector<TwinSeen>& seen) {
  const auto placed = folder.placed();
  if (!placed) return;
  switch (step.kind) {
    case StepKind::kNothing: break;
    case StepKind::kLetGo: twins_.let_go(step.twin, *placed); break;
    case StepKind::kAsk:
      if (has_all(commands_.devices_of(std::to_string(step.twin)), used_by(*placed))) {
        known = {};
        known.holder = step.twin;
        return give_back(seen, step.twin);
      }
      known.others.insert(step.twin);
      if (!known.wrong_since) known.wrong_since = clock_.now();
      known.submit_from = {};  // it is kept, so that Slurm gives another one
      break;
    case StepKind::kSubmit:
      known.submit_from = clock_.now() + options_.again;
      (void)twins_.submit(folder, *placed);
      break;
    case StepKind::kGiveBack:
      known.submit_from = clock_.now() + options_.pause;
      known.wrong_since.reset();
      give_back(seen, std::nullopt);
      break;
  }
}

void TwinWatch::give_back(const std::vector<TwinSeen>& seen, std::optional<std::uint64_t> but) {
  for (const TwinSeen& twin : seen) {
    if (twin.line.id != but) commands_.cancel(twin.line.id);
  }
}

}  // namespace commensal::cluster::slurm
