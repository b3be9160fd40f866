// SPDX-License-Identifier: Apache-2.0
// Twins in Slurm's queue, and what the nodes of their jobs are told.
#include "coordinator/engines/slurm/slurm_guarantee.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/engines/local/folder_calls.h"
#include "coordinator/engines/slurm/slurm_notes.h"
#include "coordinator/wire/json_text.h"

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;
using local::AttemptFolder;
using local::guarded;
using slurm::JobLine;
using slurm::TwinNotes;
using wire::SetReply;

SetReply reply(wire::Outcome outcome, std::string reason) {
  return {.job_id = {}, .outcome = outcome, .reason = std::move(reason)};
}

/// Whether NodeClasses takes an answer for a yes.
bool is_yes(const wire::Message& answer) {
  if (const auto* said = std::get_if<SetReply>(&answer)) {
    return said->outcome == wire::Outcome::kApplied || said->outcome == wire::Outcome::kStale;
  }
  const auto* error = std::get_if<wire::Error>(&answer);
  return error != nullptr && error->code == "unknown_job";
}

}  // namespace

SlurmGuarantee::SlurmGuarantee(Options options, slurm::CommandRunner& runner, const Clock& clock)
    : options_(std::move(options)), commands_(runner, options_.commands), clock_(clock) {
  options_.state = fs::absolute(options_.state);
  guarded([&] {
    name_ = slurm::name_of_jobs(options_.state, options_.instance);
    twins_.emplace(slurm::Twins::Options{options_.state, options_.partition}, name_, commands_);
  });
}

wire::Message SlurmGuarantee::ask(const Attempt& attempt, const std::string& node,
                                  const wire::SetRequest& request) {
  const AttemptFolder folder{options_.state, attempt};
  const bool raises = request.job_class == JobClass::kGuaranteed;
  wire::Message answer;
  try {
    if (!raises) give_up(folder);
    answer = guarded([&]() -> wire::Message {
      if (!folder.is_held() || folder.has_ended())
        return reply(wire::Outcome::kRefused, "it has ended");
      if (!raises) return tell(folder, node, request);
      since_.try_emplace(attempt, clock_.now());
      TwinNotes{folder}.want();
      if (auto waits = twin(folder)) return *std::move(waits);
      wire::Message said = tell(folder, node, request);
      if (is_yes(said)) TwinNotes{folder}.tell();
      return said;
    });
  } catch (const EngineFailed& error) {
    answer = reply(wire::Outcome::kDeferred, error.what());
  }
  auto* said = std::get_if<SetReply>(&answer);
  const auto since = since_.find(attempt);
  if (said != nullptr && said->outcome == wire::Outcome::kDeferred) {
    if (since == since_.end() || clock_.now() - since->second < options_.patience) return answer;
    *said = reply(wire::Outcome::kRefused, said->reason + ", and stays opportunistic");
  }
  if (raises && said != nullptr && said->outcome == wire::Outcome::kRefused) give_up(folder);
  since_.erase(attempt);
  return answer;
}

std::vector<JobLine> SlurmGuarantee::twins(const Attempt& attempt) {
  const std::string name = slurm::mark_of_twin(name_, attempt);
  std::vector<JobLine> all = commands_.jobs();
  std::erase_if(all,
                [&](const JobLine& job) { return job.name != name || slurm::is_over(job.state); });
  return all;
}

std::optional<SlurmGuarantee::Answer> SlurmGuarantee::twin(const AttemptFolder& folder) {
  const auto placed = folder.placed();
  if (!placed) return reply(wire::Outcome::kRefused, "it is not placed");
  const auto used = slurm::used_by(*placed);
  const std::vector<JobLine> all = twins(folder.attempt());
  std::optional<std::uint64_t> holds;
  const JobLine* waits = nullptr;
  for (const JobLine& job : all) {
    if (job.state != "RUNNING") {
      waits = &job;
    } else if (!holds && slurm::has_all(commands_.devices_of(std::to_string(job.id)), used)) {
      holds = job.id;
    }
  }
  if (holds) {
    for (const JobLine& job : all) {
      if (job.id != *holds) commands_.cancel(job.id);
    }
    return std::nullopt;
  }
  if (waits != nullptr) {
    if (slurm::is_held(*waits)) {  // a coordinator died before it let it go
      twins_->let_go(waits->id, *placed);
    }
    return reply(wire::Outcome::kDeferred,
                 fmt::format("waits for a device of its own in Slurm's queue, as job "
                             "{} ({})",
                             waits->id, waits->reason));
  }
  if (all.size() >= slurm::kMostTwins) {
    return reply(wire::Outcome::kRefused,
                 "Slurm gives it other devices of its nodes than those that it runs on");
  }
  (void)twins_->submit(folder, *placed);
  return reply(wire::Outcome::kDeferred, "Slurm was asked for a device of its own");
}

wire::Message SlurmGuarantee::tell(const AttemptFolder& folder, const std::string& node,
                                   const wire::SetRequest& request) {
  if (options_.commensal.empty()) {
    return wire::Error{.code = "unknown_job", .what = "jobs run without commensal"};
  }
  if (options_.by_heartbeat) {
    if (auto answer = options_.by_heartbeat(node, request)) return *std::move(answer);
  }
  const auto job = slurm::noted_job(folder);
  if (!job) return reply(wire::Outcome::kRefused, "Slurm has no job of it");
  std::vector<std::string> words = options_.commensal;
  for (const std::string& word :
       {std::string{"set"}, request.job, std::string{"--class"},
        std::string{to_string(*request.job_class)}, std::string{"--json"}}) {
    words.push_back(word);
  }
  const auto said = commands_.run_within(*job, node, words, options_.node_answers);
  const auto report = wire::try_parse_json(said.output).value_or(nullptr);
  if (const auto outcome = value_of<wire::Outcome>(wire::text_of(report, "outcome"))) {
    return reply(*outcome, wire::text_of(report, "reason"));
  }
  const std::string problem = slurm::first_line(said.errors.empty() ? said.output : said.errors);
  if (problem.find("no job '" + request.job + "'") != std::string::npos) {
    return wire::Error{.code = "unknown_job", .what = problem};
  }
  return reply(wire::Outcome::kDeferred,
               fmt::format("its node cannot be told ({}): {}", said.exit_code, problem));
}

void SlurmGuarantee::give_up(const AttemptFolder& folder) noexcept {
  TwinNotes{folder}.drop();
  try {
    for (const JobLine& job : twins(folder.attempt())) commands_.cancel(job.id);
  } catch (const std::exception&) {
    return;  // they end by themselves: the note is gone
  }
}

}  // namespace commensal::cluster
