// SPDX-License-Identifier: Apache-2.0
// Names, notes and submissions of twins.
#include "coordinator/engines/slurm/slurm_twins.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "coordinator/engines/local/durable_file.h"
#include "coordinator/engines/local/folder_calls.h"
#include "coordinator/engines/slurm/slurm_notes.h"
#include "coordinator/node/kernel_files.h"

namespace commensal::cluster::slurm {
namespace {

namespace fs = std::filesystem;
using local::AttemptFolder;
using local::Placed;

constexpr std::string_view kEnding = ":guaranteed";

constexpr const char* kHolderScript =
    "#!/bin/sh\n"
    "# Holds devices until the job that runs on them has ended, or is not to have them any more.\n"
    "while [ -e \"$1/guaranteed\" ] && ! [ -e \"$1/result.json\" ]; do sleep 1; done\n";

fs::path script_in(const fs::path& state) { return state / "guarantee.sh"; }
fs::path wanted_note(const AttemptFolder& folder) { return folder.path() / "guaranteed"; }
fs::path told_note(const AttemptFolder& folder) { return folder.path() / "guaranteed-told"; }

}  // namespace

std::string mark_of_twin(const std::string& name, const Attempt& attempt) {
  return mark_of(name, attempt).append(kEnding);
}

std::optional<Attempt> attempt_of_twin(const std::string& name, std::string_view mark) {
  if (!mark.ends_with(kEnding)) return std::nullopt;
  mark.remove_suffix(kEnding.size());
  return attempt_of_mark(name, mark);
}

DevicesByNodes used_by(const Placed& placed) {
  DevicesByNodes used;
  for (std::size_t rank = 0; rank < placed.devices.size(); ++rank) {
    const DevicePlace& place = placed.devices[rank];
    auto& devices = used[place.node];
    if (placed.uuids.at(rank) != "host") devices.insert(place.device);
  }
  return used;
}

bool has_all(const DevicesByNodes& given, const DevicesByNodes& used) {
  return std::all_of(used.begin(), used.end(), [&](const auto& entry) {
    const auto found = given.find(entry.first);
    return entry.second.empty() ||
           (found != given.end() && std::includes(found->second.begin(), found->second.end(),
                                                  entry.second.begin(), entry.second.end()));
  });
}

bool TwinNotes::is_wanted() const {
  std::error_code none;
  return fs::exists(wanted_note(folder), none);
}

bool TwinNotes::is_told() const {
  std::error_code none;
  return fs::exists(told_note(folder), none) && is_wanted();
}

void TwinNotes::want() const { (void)local::make_marker(wanted_note(folder)); }
void TwinNotes::tell() const { (void)local::make_marker(told_note(folder)); }

void TwinNotes::drop() const noexcept {
  std::error_code ignored;  // where the folder is gone, so are the notes
  fs::remove(told_note(folder), ignored);
  fs::remove(wanted_note(folder), ignored);
}

Twins::Twins(Options options, std::string name, SlurmCommands& commands)
    : options_(std::move(options)), name_(std::move(name)), commands_(commands) {
  // Of an earlier start it is there already, and the disk may be full now.
  const fs::path script = script_in(options_.state);
  if (node::read_file(script) != kHolderScript) local::write_whole(script, kHolderScript);
}

std::uint64_t Twins::submit(const AttemptFolder& folder, const Placed& placed) {
  Submission job;
  job.name = mark_of_twin(name_, folder.attempt());
  job.comment = "holds devices of commensal " + local::words_for(folder.attempt());
  job.partition = options_.partition;
  if (placed.uuids.front() != "host") job.gres = fmt::format("gpu:{}", most_on_a_node(placed));
  job.nodes = local::nodes_of(placed).size();
  // One that ends before its job would leave that without its devices.
  if (const auto own = noted_job(folder)) job.time_limit = commands_.time_limit_of(*own);
  job.output = without_patterns((folder.path() / "guaranteed.log").native());
  job.script = script_in(options_.state);
  job.words = {folder.path().native()};
  const std::uint64_t id = commands_.submit_held(job);
  let_go(id, placed);
  return id;
}

void Twins::let_go(std::uint64_t id, const Placed& placed) {
  commands_.set_nodes(id, local::nodes_of(placed));
  commands_.release(id);
}

}  // namespace commensal::cluster::slurm
