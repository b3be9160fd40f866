// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/surroundings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "coordinator/cluster/programs.h"
#include "coordinator/cluster/store_file.h"
#include "coordinator/engines/local/limit_groups.h"
#include "coordinator/keys/key_folder.h"
#include "coordinator/node/group_weight.h"
#include "coordinator/wire/paths.h"

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array kSlurmPrograms{"sbatch", "squeue", "sinfo", "scontrol", "scancel"};

json size_of(const fs::path& file) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  if (!error) return bytes;
  return error == std::errc::no_such_file_or_directory ? json(0) : json(nullptr);
}

/// How many copies of the store there are, and when the last one was made.
void add_backups(json& store, const fs::path& folder) {
  std::size_t count = 0;
  std::optional<fs::file_time_type> newest;
  std::error_code error;
  for (fs::directory_iterator entry{folder, error}; !error && entry != fs::directory_iterator{};
       entry.increment(error)) {
    std::error_code gone;
    if (entry->path().extension() != ".db" || !entry->is_regular_file(gone)) continue;
    const auto written = entry->last_write_time(gone);
    if (gone) continue;
    ++count;
    if (!newest || written > *newest) newest = written;
  }
  store["backups"] = count;
  store["newest_backup_ms"] = nullptr;
  if (newest) {
    const auto time = std::chrono::file_clock::to_sys(*newest);
    store["newest_backup_ms"] =
        std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
  }
}

json program(const std::string& name, const fs::path& path) {
  return {{"name", name}, {"path", path.native()}, {"problem", obstacle_to_running(path)}};
}

json program_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nobody sets it
  std::istringstream folders{path == nullptr ? "" : path};
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path file = fs::path{folder.empty() ? "." : folder} / name;
    if (obstacle_to_running(file).empty()) return program(name, file);
  }
  return {{"name", name}, {"path", ""}, {"problem", "it is not in the PATH"}};
}

json programs_of(const ClusterOptions& options) {
  json programs = json::array({program("commensal-keeper", options.keeper)});
  if (!options.commensal.empty()) {
    const bool is_path = options.commensal.find('/') != std::string::npos;
    programs.push_back(is_path ? program("commensal", options.commensal)
                               : program_in_path(options.commensal));
  }
  if (options.engine == "slurm") {
    for (const char* name : kSlurmPrograms) {
      programs.push_back(options.slurm.programs.empty()
                             ? program_in_path(name)
                             : program(name, options.slurm.programs / name));
    }
  }
  return programs;
}

/// Why limits of jobs are not kept; empty: they are.
json limits_of(const ClusterOptions& options) {
  if (options.engine != "local") return json::array();  // Slurm's business
  node::GroupFiles& files = node::kernel_group_files();
  const local::LimitGroups groups = local::make_limit_groups(
      {}, files, fmt::format("commensal-look-{}", getpid()), {.cpu_milli = 1000, .memory_mib = 64});
  local::remove_groups(files, groups.folders);
  return groups.problems;
}

json keys_folder(const ClusterOptions& options) {
  try {
    return options.keys_dir.empty() ? keys::default_key_folder().native()
                                    : options.keys_dir.native();
  } catch (const std::exception&) {
    return nullptr;  // there is no home folder
  }
}

}  // namespace

json describe_store(const fs::path& state_dir) {
  const fs::path file = state_dir / "cluster.db";
  json store{{"file", file.native()},
             {"bytes", size_of(file)},
             {"log_bytes", size_of(file.native() + "-wal")},
             {"tables_version", kStoreVersion}};
  std::error_code error;
  const fs::space_info disk = fs::space(state_dir, error);
  store["free_bytes"] = error ? json(nullptr) : json(disk.available);
  store["disk_bytes"] = error ? json(nullptr) : json(disk.capacity);
  add_backups(store, state_dir / "backups");
  return store;
}

fs::path logs_folder(const ClusterOptions& options) {
  return options.state_dir / (options.engine == "slurm" ? "slurm" : "local") / "logs";
}

json describe_surroundings(const ClusterOptions& options) {
  return {{"version", options.version},
          {"instance", options.instance},
          {"lock", wire::lock_path(options.runtime_dir, "cluster-" + options.instance).native()},
          {"store", describe_store(options.state_dir)},
          {"logs",
           {{"folder", logs_folder(options).native()}, {"keep_days", options.keep_logs.count()}}},
          {"programs", programs_of(options)},
          {"slurm_programs", options.slurm.programs.native()},
          {"limits", limits_of(options)},
          {"keys_dir", keys_folder(options)}};
}

}  // namespace commensal::cluster
