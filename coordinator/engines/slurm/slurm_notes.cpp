// SPDX-License-Identifier: Apache-2.0
// Small files beside an attempt.
#include "coordinator/engines/slurm/slurm_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>

#include "coordinator/engines/local/durable_file.h"
#include "coordinator/node/kernel_files.h"

namespace commensal::cluster::slurm {
namespace {

namespace fs = std::filesystem;
using local::AttemptFolder;
using local::Placed;

fs::path job_note(const AttemptFolder& folder) { return folder.path() / "slurm-job"; }

}  // namespace

std::optional<std::uint64_t> noted_job(const AttemptFolder& folder) {
  const auto text = node::read_file(job_note(folder));
  if (!text) return std::nullopt;
  const auto number = node::to_number(*text);
  return number && *number > 0 ? std::optional{static_cast<std::uint64_t>(*number)} : std::nullopt;
}

void note_job(const AttemptFolder& folder, std::uint64_t job) {
  local::write_whole(job_note(folder), std::to_string(job));
}

std::string name_of_jobs(const fs::path& state, const std::string& instance) {
  const fs::path file = state / "slurm-name";
  if (const auto text = node::read_file(file); text && text->size() == 8) {
    return instance + '-' + *text;
  }
  std::random_device random;
  const std::string number = fmt::format("{:08x}", random());
  local::write_whole(file, number);
  return instance + '-' + number;
}

std::int64_t most_on_a_node(const Placed& placed) {
  std::map<std::string, std::int64_t> counts;
  std::int64_t most = 0;
  for (const DevicePlace& place : placed.devices) most = std::max(most, ++counts[place.node]);
  return most;
}

std::string without_patterns(std::string path) {
  for (std::size_t at = path.find('%'); at != std::string::npos; at = path.find('%', at + 2)) {
    path.insert(at, "%");
  }
  return path;
}

}  // namespace commensal::cluster::slurm
