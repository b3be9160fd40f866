// SPDX-License-Identifier: Apache-2.0
// Calls of the coordinator to Slurm's commands and to notes that keepers read.
#include "coordinator/engines/slurm/slurm_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/cluster/job_number.h"
#include "coordinator/engines/local/durable_file.h"
#include "coordinator/engines/local/folder_calls.h"
#include "coordinator/engines/local/given_devices.h"
#include "coordinator/engines/local/job_check.h"
#include "coordinator/engines/slurm/slurm_notes.h"
#include "coordinator/node/kernel_files.h"

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;
using local::AttemptFolder;
using local::end_taken_back;
using local::guarded;
using local::Outcome;
using local::Placed;
using local::words_for;
using slurm::JobLine;
using Kind = EngineEvent::Kind;
using std::chrono::milliseconds;

// Arguments arrive as they are; a SIGTERM that comes before the keeper waits for it is in the
// notes.
constexpr const char* kScript = "#!/bin/sh\ntrap '' TERM\nexec \"$@\"\n";

std::chrono::minutes whole_minutes(milliseconds time) {
  return std::chrono::ceil<std::chrono::minutes>(time);
}

}  // namespace

SlurmEngine::SlurmEngine(Options options, slurm::CommandRunner& runner, const Clock& clock)
    : options_(std::move(options)), commands_(runner, options_.commands), clock_(clock) {
  options_.state = fs::absolute(options_.state);
  options_.keeper = fs::absolute(options_.keeper);
  local::prepare_state(options_.state);
  guarded([&] {
    name_ = slurm::name_of_jobs(options_.state, options_.instance);
    // Of an earlier start it is there already, and the disk may be full now.
    const fs::path script = options_.state / "start.sh";
    if (node::read_file(script) != kScript) local::write_whole(script, kScript);
    twins_.emplace(slurm::Twins::Options{options_.state, options_.guaranteed_partition}, name_,
                   commands_);
    twin_watch_.emplace(options_.twins, *twins_, commands_, clock_);
  });
  (void)adopt();  // so that `watch` tells of what there is
}

template <typename Question>
auto SlurmEngine::ask(Question question) -> decltype(question()) {
  if (clock_.now() < rests_until_) throw EngineFailed(problem_);
  try {
    return question();
  } catch (const EngineFailed& error) {
    problem_ = error.what();
    rests_until_ = clock_.now() + options_.rest;
    throw;
  }
}

std::vector<EngineNode> SlurmEngine::nodes() {
  nodes_ = ask([&] { return commands_.nodes(); });
  std::vector<EngineNode> nodes;
  nodes.reserve(nodes_.size());
  for (const slurm::NodeLine& line : nodes_) nodes.push_back(line.node);
  return nodes;
}

AttemptFolder SlurmEngine::folder_of(const Attempt& attempt) const {
  return AttemptFolder{options_.state, attempt};
}

void SlurmEngine::hold(const Attempt& attempt, const JobSpec& spec) {
  local::check_job(attempt, spec);
  check_size(attempt, spec);
  guarded([&] {
    local::hold_in(folder_of(attempt), {spec, options_.failure_grace, options_.logs});
  });
}

void SlurmEngine::check_size(const Attempt& attempt, const JobSpec& spec) {
  if (spec.gpus == 1) return;
  if (nodes_.empty()) (void)nodes();
  std::size_t all = 0;
  for (const slurm::NodeLine& line : nodes_) all += line.node.devices.size();
  if (static_cast<std::size_t>(spec.gpus) <= all) return;
  throw std::invalid_argument(
      fmt::format("job {}: asks for {} devices, and all nodes of Slurm together have {}",
                  attempt.job.str(), spec.gpus, all));
}

void SlurmEngine::look_up(const std::vector<DevicePlace>& placement) {
  const bool known = std::all_of(placement.begin(), placement.end(), [&](const auto& place) {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [&](const auto& line) { return line.node.name == place.node; });
  });
  std::vector<EngineNode> nodes;
  if (!known) {
    nodes = this->nodes();
  } else {
    for (const slurm::NodeLine& line : nodes_) nodes.push_back(line.node);
  }
  (void)local::uuids_of(nodes, placement);
}

void SlurmEngine::place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
                        JobClass job_class) {
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    const auto held = folder.held();
    if (!held) throw EngineFailed(words_for(attempt) + " is not held");
    if (folder.is_released()) return;
    look_up(placement);
    Placed placed;
    placed.devices = placement;
    placed.job_class = job_class;
    lay_out(attempt, placed);
    if (options_.prefix) placed.command = options_.prefix(attempt, job_class, held->job);
    placed.command.insert(placed.command.end(), held->job.command.begin(), held->job.command.end());
    folder.set(placed);
  });
}

const slurm::NodeLine& SlurmEngine::line_of(const std::string& node) const {
  return *std::find_if(nodes_.begin(), nodes_.end(),
                       [&](const auto& line) { return line.node.name == node; });
}

/// Which devices ranks see, and where they meet. All nodes of the placement are known.
void SlurmEngine::lay_out(const Attempt& attempt, Placed& placed) const {
  for (const DevicePlace& place : placed.devices) {
    // Slurm chooses the devices of a guaranteed job; of seats it does not say where they are.
    const bool gpu = line_of(place.node).node.devices.front() != "host";
    placed.uuids.push_back(!gpu ? "host"
                           : placed.job_class == JobClass::kGuaranteed
                               ? local::kGivenDevice
                               : std::to_string(place.device));
  }
  const auto nodes = local::nodes_of(placed);
  if (nodes.size() == 1) return;
  const auto without_gpu = [](const std::string& uuid) { return uuid == "host"; };
  const bool some = std::any_of(placed.uuids.begin(), placed.uuids.end(), without_gpu);
  if (some && !std::all_of(placed.uuids.begin(), placed.uuids.end(), without_gpu)) {
    throw EngineFailed(
        fmt::format("{} is placed on nodes with GPUs and on others ({}): Slurm gives each node of "
                    "a job the same",
                    words_for(attempt), fmt::join(nodes, ", ")));
  }
  placed.meeting = line_of(nodes.front()).address;
  placed.launcher = commands_.on_each_node(nodes.size());
  for (const std::string& word :
       {options_.keeper.native(), std::string{"--part-of=SLURMD_NODENAME"}, std::string{"--"},
        options_.state.native(), attempt.job.str(), std::to_string(attempt.number)}) {
    placed.launcher.push_back(word);
  }
}

void SlurmEngine::release(const Attempt& attempt) {
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    if (!folder.is_held() || !folder.is_placed()) {
      throw EngineFailed(words_for(attempt) + " is not placed");
    }
    if (!folder.has_begun() && !folder.has_ended()) let_go(folder);
    tracked_.try_emplace(attempt);
  });
}

SlurmEngine::Jobs SlurmEngine::jobs() {
  Jobs jobs;
  twin_jobs_.clear();
  for (JobLine& line : ask([&] { return commands_.jobs(); })) {
    const auto twin_of = slurm::attempt_of_twin(name_, line.name);
    const auto attempt = twin_of ? twin_of : slurm::attempt_of_mark(name_, line.name);
    if (!attempt || !local::obstacle_to_folder(attempt->job).empty()) continue;
    (twin_of ? twin_jobs_ : jobs).emplace(*attempt, std::move(line));
  }
  return jobs;
}

void SlurmEngine::let_go(const AttemptFolder& folder) {
  const auto placed = folder.placed();
  const Jobs all = jobs();
  std::vector<JobLine> alive;
  const auto [begin, end] = all.equal_range(folder.attempt());
  for (auto entry = begin; entry != end; ++entry) {
    if (!slurm::is_over(entry->second.state)) alive.push_back(entry->second);
  }
  const auto noted = slurm::noted_job(folder);
  if (alive.empty()) {
    if (!noted) submit(folder, *placed);
    return;  // Slurm had it: `watch` tells what became of it
  }
  // A coordinator died before it could write down what sbatch said. Of several the first one
  // counts.
  std::sort(alive.begin(), alive.end(), [&](const JobLine& a, const JobLine& b) {
    return std::pair{a.id != noted, a.id} < std::pair{b.id != noted, b.id};
  });
  folder.set_released();
  slurm::note_job(folder, alive.front().id);
  if (slurm::is_held(alive.front())) give_nodes(alive.front().id, *placed);
}

void SlurmEngine::submit(const AttemptFolder& folder, const Placed& placed) {
  const bool first = !folder.is_released();
  const auto held = folder.held();
  const slurm::Submission job = submission(folder, held->job, placed);
  folder.set_released();
  std::uint64_t id = 0;
  try {
    id = commands_.submit_held(job);
  } catch (const EngineFailed&) {
    if (first) folder.unset_released();
    sweep_due_ = true;  // it may have arrived all the same
    throw;
  }
  slurm::note_job(folder, id);
  give_nodes(id, placed);
}

void SlurmEngine::give_nodes(std::uint64_t job, const Placed& placed) {
  commands_.set_nodes(job, local::nodes_of(placed));
  commands_.release(job);
}

slurm::Submission SlurmEngine::submission(const AttemptFolder& folder, const JobSpec& spec,
                                          const Placed& placed) {
  const bool guaranteed = placed.job_class == JobClass::kGuaranteed;
  const std::int64_t devices = slurm::most_on_a_node(placed);
  slurm::Submission job;
  job.name = slurm::mark_of(name_, folder.attempt());
  job.comment = fmt::format("{} commensal {}, {}", to_string(placed.job_class),
                            words_for(folder.attempt()), slurm::first_line(spec.name));
  job.partition = guaranteed ? options_.guaranteed_partition : options_.opportunistic_partition;
  const bool gpus = placed.uuids.front() != "host";
  if (gpus) job.gres = fmt::format("{}:{}", guaranteed ? "gpu" : "seat", devices);
  job.nodes = local::nodes_of(placed).size();
  job.cpus = (spec.cpu_milli + 999) / 1000;
  job.memory_mib = spec.host_memory_mib;
  if (spec.time_limit) {  // the keeper ends it; this is for one that cannot
    const auto limit =
        whole_minutes(*spec.time_limit + options_.failure_grace) + std::chrono::minutes{2};
    job.time_limit = std::to_string(limit.count());
  }
  job.output = slurm::without_patterns((folder.path() / "keeper.log").native());
  job.script = options_.state / "start.sh";
  job.words = {options_.keeper.native(), options_.state.native(), folder.attempt().job.str(),
               std::to_string(folder.attempt().number)};
  return job;
}

void SlurmEngine::take_back(const Attempt& attempt, milliseconds grace) {
  if (!local::obstacle_to_folder(attempt.job).empty()) return;
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    if (!folder.is_held() || folder.has_ended()) return;
    if (!folder.is_released()) {
      folder.remove();
      sweep_due_ = true;
      return;
    }
    folder.set_take_back(grace);
    tracked_.try_emplace(attempt);
    const bool unstarted = end_taken_back(folder);
    sweep_due_ = true;
    end_job(attempt, !unstarted);
  });
}

void SlurmEngine::end_job(const Attempt& attempt, bool begun) {
  const Jobs all = jobs();
  const auto [begin, end] = all.equal_range(attempt);
  for (auto entry = begin; entry != end; ++entry) {
    const JobLine& job = entry->second;
    if (slurm::is_over(job.state)) continue;
    try {
      if (begun && job.state != "PENDING") {
        commands_.ask_to_end(job.id);  // its keeper reads how long it has
      } else {
        commands_.cancel(job.id);
      }
    } catch (const EngineFailed&) {
      if (!folder_of(attempt).has_ended()) throw;  // else it was over before it was asked
    }
  }
}

std::vector<EngineEvent> SlurmEngine::watch() {
  std::vector<EngineEvent> events;
  std::optional<Jobs> known;
  std::string problem;
  const bool unsure = std::any_of(tracked_.begin(), tracked_.end(),
                                  [](const auto& entry) { return !entry.second.ended; });
  if (unsure || sweep_due_) {
    try {
      known = jobs();
    } catch (const EngineFailed& error) {
      problem = error.what();
    }
  }
  for (const auto& entry : tracked_) {
    try {
      guarded([&] { examine(folder_of(entry.first), known ? &*known : nullptr, events); });
    } catch (const EngineFailed& error) {
      problem = error.what();
    }
  }
  try {
    if (known && sweep_due_) guarded([&] { sweep(*known); });
    if (known) {
      guarded([&] { ask([&] { twin_watch_->look(options_.state, twin_jobs_, events); }); });
    }
  } catch (const EngineFailed& error) {
    problem = error.what();
  }
  if (events.empty() && !problem.empty()) throw EngineFailed(problem);
  return events;
}

void SlurmEngine::examine(const AttemptFolder& folder, const Jobs* jobs,
                          std::vector<EngineEvent>& events) {
  const Attempt& attempt = folder.attempt();
  Told& told = tracked_.at(attempt);
  if (told.ended) return;
  if (jobs != nullptr && !folder.has_ended()) settle_lost(folder, told, *jobs);
  if (folder.has_begun() && !told.began) {
    told.began = true;
    events.push_back({attempt, Kind::kBegan, std::nullopt, "its ranks were started"});
  }
  if (folder.has_ended()) {
    told.ended = true;
    const Outcome outcome = local::outcome_of(folder);
    events.push_back({attempt, outcome.kind, outcome.exit_code, outcome.reason});
  }
}

void SlurmEngine::settle_lost(const AttemptFolder& folder, Told& told, const Jobs& jobs) {
  std::string state = "forgotten";
  const auto [begin, end] = jobs.equal_range(folder.attempt());
  for (auto entry = begin; entry != end; ++entry) {
    state = entry->second.state;
    if (slurm::is_over(state)) continue;
    told.over_since.reset();
    return;
  }
  const auto job = slurm::noted_job(folder);
  if (begin == end && !job && !folder.has_begun()) return;  // not submitted yet
  const TimePoint now = clock_.now();
  if (!told.over_since) told.over_since = now;
  if (now - *told.over_since < options_.patience) return;
  if (folder.has_ended()) return;
  folder.set(Outcome{Kind::kVanished, std::nullopt,
                     fmt::format("Slurm's job {} is {} and left no outcome",
                                 job ? std::to_string(*job) : "of it", state)});
}

void SlurmEngine::sweep(const Jobs& jobs) {
  for (const auto& [attempt, job] : jobs) {
    if (job.state != "PENDING") continue;  // what runs has a keeper, which ends if it is not wanted
    const AttemptFolder folder = folder_of(attempt);
    const auto noted = slurm::noted_job(folder);
    const bool wanted = folder.is_held() && folder.is_released() && !folder.has_ended() &&
                        (!noted || *noted == job.id);
    if (!wanted) commands_.cancel(job.id);
  }
  sweep_due_ = false;
}

std::vector<Engine::Found> SlurmEngine::adopt() {
  return guarded([&] {
    std::vector<Found> all;
    for (const Attempt& attempt : local::attempts_in(options_.state)) {
      if (auto found = look_at(folder_of(attempt))) all.push_back(std::move(*found));
    }
    return all;
  });
}

std::vector<Attempt> SlurmEngine::attempts() {
  return guarded([&] { return local::attempts_in(options_.state); });
}

std::string SlurmEngine::store_stamp() { return local::store_stamp_in(options_.state); }

void SlurmEngine::set_store_stamp(const std::string& stamp) {
  guarded([&] { local::set_store_stamp_in(options_.state, stamp); });
}

std::uint64_t SlurmEngine::highest_job() {
  return guarded([&] {
    std::uint64_t highest = local::highest_job_in(options_.state);
    try {
      for (const auto& [attempt, job] : jobs()) {
        highest = std::max(highest, job_number(attempt.job));
      }
    } catch (const EngineFailed&) {
      // `nodes` tells of it, and whoever hears from there that Slurm answers again asks again.
      return highest;
    }
    return highest;
  });
}

std::optional<Engine::Found> SlurmEngine::look_at(const AttemptFolder& folder) {
  const auto placed = local::readable_placement(folder);
  const bool released = folder.is_released();
  if (released && !folder.has_begun() && folder.take_back()) (void)end_taken_back(folder);
  if (released) tracked_.try_emplace(folder.attempt());
  if (released) twin_watch_->meet(folder);
  if (folder.has_ended()) return std::nullopt;
  return local::found_in(folder, placed);
}

void SlurmEngine::forget(const Attempt& attempt) {
  if (!local::obstacle_to_folder(attempt.job).empty()) return;
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    if (!folder.has_ended()) return;
    tracked_.erase(attempt);
    folder.remove();
  });
}

std::vector<std::string> SlurmEngine::logs(const Attempt& attempt) {
  if (!local::obstacle_to_folder(attempt.job).empty()) return {};
  return local::logs_of(folder_of(attempt));
}

}  // namespace commensal::cluster
