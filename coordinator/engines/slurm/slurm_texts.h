// SPDX-License-Identifier: Apache-2.0
// What Slurm's commands print, and the name by which Slurm knows an attempt. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/engine.h"

namespace commensal::cluster::slurm {

/// The name of an attempt's job in Slurm: "commensal:INSTANCE:JOB:ATTEMPT". None of its parts may
/// hold a colon (rules of instance names and job ids).
[[nodiscard]] std::string mark_of(const std::string& instance, const Attempt& attempt);
/// The attempt that a name stands for; nothing for a name that is not this instance's.
[[nodiscard]] std::optional<Attempt> attempt_of_mark(const std::string& instance,
                                                     std::string_view name);

/// How `squeue` is asked: `--format` whose lines `jobs_from_squeue` reads. The name is last, for it
/// may hold anything.
inline constexpr const char* kJobFormat = "%A|%T|%r|%j";
/// The same for `sinfo`. The reason is last.
inline constexpr const char* kNodeFormat = "%N|%T|%c|%m|%G|%o|%E";

/// A job as squeue shows it.
struct JobLine {
  std::uint64_t id = 0;
  std::string state;   ///< "PENDING", "RUNNING", ...
  std::string reason;  ///< "JobHeldUser", ...
  std::string name;
  bool operator==(const JobLine&) const = default;
};

/// Reads lines of `squeue --noheader --format=kJobFormat`. What a job's name puts on lines of its
/// own is left out.
/// @throws EngineFailed with the first line if that cannot be one of squeue's.
[[nodiscard]] std::vector<JobLine> jobs_from_squeue(const std::string& output);

/// Whether a job with this state is over for good. States that are not known count as going on:
/// nothing is started again that may still run.
[[nodiscard]] bool is_over(std::string_view state) noexcept;
/// Whether it waits because it was held by its user.
[[nodiscard]] bool is_held(const JobLine& job) noexcept;

/// Counts of generic resources by kind, and the type of the first with one: "gpu:a100:4(S:0-1)" is
/// 4 of "gpu", type "a100". "(null)" has none.
struct Gres {
  std::map<std::string, std::int32_t> counts;
  std::map<std::string, std::string> types;
  bool operator==(const Gres&) const = default;
};
/// @throws EngineFailed with the text.
[[nodiscard]] Gres gres_from(const std::string& text);

/// Says why a node with this state may not be given new work; empty: it may. Suffixes as in
/// `man sinfo`: "*" does not answer, "~" is powered down until it is needed, ...
[[nodiscard]] std::string obstacle_of_node(const std::string& state, const std::string& reason);

/// A node and how many seats it has.
struct NodeLine {
  EngineNode node;         ///< devices "NODE:gpu:0", ...; "host" without GPUs
  std::int32_t seats = 0;  ///< of the generic resource `seat`
  std::string address;     ///< by which Slurm, and other nodes, reach it
  bool operator==(const NodeLine&) const = default;
};
/// Reads lines of `sinfo --noheader --Node --format=kNodeFormat`; a node of two partitions has two
/// lines and is one node.
/// @throws EngineFailed with the first line that cannot be read.
[[nodiscard]] std::vector<NodeLine> nodes_from_sinfo(const std::string& output);

/// Devices of kind `gpu` that a running job has: numbers by node, as Slurm counts them there. The
/// names of nodes may stand for several ("n[1-2]").
using DevicesByNodes = std::map<std::string, std::set<std::int32_t>>;
/// Reads what `scontrol --oneliner show job -d` prints of one job: the devices are what stands
/// directly before "MinCPUsNode=". Fields of the job's user (name, command, comment, ...) may hold
/// the same words, and lines: where there are two such places, none is taken. What cannot be read
/// is left out.
[[nodiscard]] DevicesByNodes devices_from_scontrol(const std::string& output);

/// How `squeue` is asked for ids of jobs of others alone, and for one job's time limit: no field
/// that a user writes is among them.
inline constexpr const char* kIdFormat = "%i";
inline constexpr const char* kLimitFormat = "%l";
/// Reads lines of `squeue --noheader --format=kIdFormat`: "12", "12_3" of an array.
/// @throws EngineFailed with the first line that is no id.
[[nodiscard]] std::vector<std::string> ids_from_squeue(const std::string& output);
/// Reads the line of `squeue --noheader --format=kLimitFormat`: "UNLIMITED", "1-00:00:00"; empty:
/// there is none, or it is the partition's.
[[nodiscard]] std::string time_limit_from_squeue(const std::string& output);

/// Reads what `sbatch --parsable` prints: the id, or "ID;CLUSTER". @throws EngineFailed.
[[nodiscard]] std::uint64_t id_from_sbatch(const std::string& output);

/// The first line of a text, shortened, with everything that is no printable letter replaced.
[[nodiscard]] std::string first_line(const std::string& text);

}  // namespace commensal::cluster::slurm
