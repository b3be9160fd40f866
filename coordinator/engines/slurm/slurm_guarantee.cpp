// SPDX-License-Identifier: Apache-2.0
// Twins in Slurm's queue, and what the nodes of their jobs are told.
#include "coordinator/engines/slurm/slurm_guarantee.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "coordinator/engines/local/durable_file.h"
#include "coordinator/engines/local/folder_calls.h"
#include "coordinator/engines/slurm/slurm_notes.h"
#include "coordinator/node/kernel_files.h"

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;
using local::AttemptFolder;
using local::guarded;
using local::Placed;
using slurm::JobLine;
using wire::SetReply;

constexpr std::size_t kMostTwins = 16;  // as many devices of a node may be the wrong ones

constexpr const char* kScript =
    "#!/bin/sh\n"
    "# Holds devices until the job that runs on them has ended, or is not to have them any more.\n"
    "while [ -e \"$1/guaranteed\" ] && ! [ -e \"$1/result.json\" ]; do sleep 1; done\n";

fs::path wanted_note(const AttemptFolder& folder) { return folder.path() / "guaranteed"; }

SetReply reply(std::string outcome, std::string reason) {
  return {.job_id = {}, .outcome = std::move(outcome), .reason = std::move(reason)};
}

/// Devices that an attempt's ranks use, by node; empty for nodes without GPUs.
slurm::DevicesByNodes used_by(const Placed& placed) {
  slurm::DevicesByNodes used;
  for (std::size_t rank = 0; rank < placed.devices.size(); ++rank) {
    const DevicePlace& place = placed.devices[rank];
    auto& devices = used[place.node];
    if (placed.uuids.at(rank) != "host") devices.insert(place.device);
  }
  return used;
}

bool has_all(const slurm::DevicesByNodes& given, const slurm::DevicesByNodes& used) {
  return std::all_of(used.begin(), used.end(), [&](const auto& entry) {
    const auto found = given.find(entry.first);
    return entry.second.empty() ||
           (found != given.end() && std::includes(found->second.begin(), found->second.end(),
                                                  entry.second.begin(), entry.second.end()));
  });
}

}  // namespace

SlurmGuarantee::SlurmGuarantee(Options options, slurm::CommandRunner& runner, const Clock& clock)
    : options_(std::move(options)), commands_(runner, options_.commands), clock_(clock) {
  options_.state = fs::absolute(options_.state);
  guarded([&] {
    name_ = slurm::name_of_jobs(options_.state, options_.instance);
    // Of an earlier start it is there already, and the disk may be full now.
    const fs::path script = options_.state / "guarantee.sh";
    if (node::read_file(script) != kScript) local::write_whole(script, kScript);
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
      if (!folder.is_held() || folder.has_ended()) return reply("refused", "it has ended");
      if (!raises) return tell(folder, node, request);
      since_.try_emplace(attempt, clock_.now());
      (void)local::make_marker(wanted_note(folder));
      if (auto waits = twin(folder)) return *std::move(waits);
      return tell(folder, node, request);
    });
  } catch (const EngineFailed& error) {
    answer = reply("deferred", error.what());
  }
  auto* said = std::get_if<SetReply>(&answer);
  const auto since = since_.find(attempt);
  if (said != nullptr && said->outcome == "deferred") {
    if (since == since_.end() || clock_.now() - since->second < options_.patience) return answer;
    *said = reply("refused", said->reason + ", and stays opportunistic");
  }
  if (raises && said != nullptr && said->outcome == "refused") give_up(folder);
  since_.erase(attempt);
  return answer;
}

std::vector<JobLine> SlurmGuarantee::twins(const Attempt& attempt) {
  const std::string name = slurm::mark_of(name_, attempt) + ":guaranteed";
  std::vector<JobLine> all = commands_.jobs();
  std::erase_if(all,
                [&](const JobLine& job) { return job.name != name || slurm::is_over(job.state); });
  return all;
}

std::optional<SlurmGuarantee::Answer> SlurmGuarantee::twin(const AttemptFolder& folder) {
  const auto placed = folder.placed();
  if (!placed) return reply("refused", "it is not placed");
  const auto used = used_by(*placed);
  const std::vector<JobLine> all = twins(folder.attempt());
  std::optional<std::uint64_t> holds;
  const JobLine* waits = nullptr;
  for (const JobLine& job : all) {
    if (job.state != "RUNNING") {
      waits = &job;
    } else if (!holds && has_all(commands_.devices_of(job.id), used)) {
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
      commands_.set_nodes(waits->id, slurm::nodes_of(*placed));
      commands_.release(waits->id);
    }
    return reply("deferred", fmt::format("waits for a device of its own in Slurm's queue, as job "
                                         "{} ({})",
                                         waits->id, waits->reason));
  }
  if (all.size() >= kMostTwins) {
    return reply("refused", "Slurm gives it other devices of its nodes than those that it runs on");
  }
  submit(folder, *placed);
  return reply("deferred", "Slurm was asked for a device of its own");
}

void SlurmGuarantee::submit(const AttemptFolder& folder, const Placed& placed) {
  slurm::Submission job;
  job.name = slurm::mark_of(name_, folder.attempt()) + ":guaranteed";
  job.comment = "holds devices of commensal " + local::words_for(folder.attempt());
  job.partition = options_.partition;
  if (placed.uuids.front() != "host") {
    job.gres = fmt::format("gpu:{}", slurm::most_on_a_node(placed));
  }
  const auto nodes = slurm::nodes_of(placed);
  job.nodes = nodes.size();
  job.output = slurm::without_patterns((folder.path() / "guaranteed.log").native());
  job.script = options_.state / "guarantee.sh";
  job.words = {folder.path().native()};
  const std::uint64_t id = commands_.submit_held(job);
  commands_.set_nodes(id, nodes);
  commands_.release(id);
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
  if (!job) return reply("refused", "Slurm has no job of it");
  std::vector<std::string> words = options_.commensal;
  for (const std::string& word :
       {std::string{"set"}, request.job, std::string{"--class"},
        std::string{to_string(*request.job_class)}, std::string{"--json"}}) {
    words.push_back(word);
  }
  const auto said = commands_.run_within(*job, node, words, options_.node_answers);
  const auto report = nlohmann::json::parse(said.output, nullptr, false);
  if (report.is_object() && report.value("outcome", nlohmann::json{}).is_string()) {
    const auto reason = report.value("reason", nlohmann::json{});
    return reply(report["outcome"].get<std::string>(),
                 reason.is_string() ? reason.get<std::string>() : "");
  }
  const std::string problem = slurm::first_line(said.errors.empty() ? said.output : said.errors);
  if (problem.find("no job '" + request.job + "'") != std::string::npos) {
    return wire::Error{.code = "unknown_job", .what = problem};
  }
  return reply("deferred",
               fmt::format("its node cannot be told ({}): {}", said.exit_code, problem));
}

void SlurmGuarantee::give_up(const AttemptFolder& folder) noexcept {
  std::error_code ignored;  // where the folder is gone, so is the note
  fs::remove(wanted_note(folder), ignored);
  try {
    for (const JobLine& job : twins(folder.attempt())) commands_.cancel(job.id);
  } catch (const std::exception&) {
    return;  // they end by themselves: the note is gone
  }
}

}  // namespace commensal::cluster
