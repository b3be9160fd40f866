// SPDX-License-Identifier: Apache-2.0
// The weight of an opportunistic job's control group among the others: the kernel's idle class
// counts within a group only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "allocator/base/ids.h"
#include "coordinator/node/host_device.h"

namespace commensal::node {

/// The files of control groups. A fake stands in for the kernel in tests.
class GroupFiles {
 public:
  virtual ~GroupFiles() = default;
  [[nodiscard]] virtual std::optional<std::string> read(const std::filesystem::path& file) = 0;
  /// @return why it could not be written; empty: it was. Never makes a file.
  [[nodiscard]] virtual std::string write(const std::filesystem::path& file,
                                          const std::string& text) = 0;
  /// @return why the group could not be made; empty: it is there.
  [[nodiscard]] virtual std::string make(const std::filesystem::path& group) = 0;
  /// Removes an empty group. @return why not.
  [[nodiscard]] virtual std::string remove(const std::filesystem::path& group) = 0;
  /// Whether the groups below belong to whoever runs this: given to its user, or marked so.
  [[nodiscard]] virtual bool delegated(const std::filesystem::path& group) = 0;
};

/// The kernel's. Thread safe.
[[nodiscard]] GroupFiles& kernel_group_files();

/// What became of a job's weight.
struct GroupOutcome {
  bool low = false;
  std::filesystem::path group;  ///< whose weight it is; empty: none is low
  std::string reason;           ///< what was done, or why nothing
  bool operator==(const GroupOutcome&) const = default;
};

/// Puts opportunistic jobs behind those of other control groups, and back.
///
/// A group that is the job's alone is put into the kernel's idle group class (`cpu.idle`), or,
/// before Linux 5.15, gets the least weight (version 2: `cpu.weight` 1; version 1: `cpu.shares` 2).
/// A job that shares its group is behind the others of it by the idle class; where the kernel
/// refused that, it gets a group of its own, in one that is delegated: version 2: beside the shared
/// one, unless that sets limits; version 1: below it. Everything else stays as it is, with the
/// reason. Not thread safe.
class GroupWeights {
 public:
  GroupWeights(HostRoots roots, GroupFiles& files) : roots_(std::move(roots)), files_(files) {}

  /// Makes a job's group light. Tried once for each set of processes; later calls return what came
  /// of it. @param processes  all that the job has. @param in_idle_class  they are in it.
  const GroupOutcome& lower(const JobId& job, const std::set<std::int64_t>& processes,
                            bool in_idle_class);
  /// Undoes it: the job ended, or is no longer to be light. Processes that are left go back.
  void restore(const JobId& job);
  /// Jobs whose group is or was to be light.
  [[nodiscard]] std::set<JobId> known() const;

 private:
  struct Kept {
    GroupOutcome outcome;
    std::set<std::int64_t> processes;
    bool in_idle_class = false;
    int version = 2;
    bool was_idle = false;
    std::optional<std::string> weight;  ///< before
    std::filesystem::path from;         ///< the group was made: where its processes came from
  };
  struct Place;
  [[nodiscard]] std::optional<Place> place_of(std::int64_t process) const;
  [[nodiscard]] bool has_only(const std::filesystem::path& group,
                              const std::set<std::int64_t>& processes) const;
  void lower_own(Kept& kept, const Place& place);
  void lower_new(Kept& kept, const Place& place, const JobId& job);
  /// @return what was written, for people; empty: see `kept.outcome.reason`.
  std::string make_light(Kept& kept, const std::filesystem::path& group);
  [[nodiscard]] std::string obstacle_to_new(const Place& place) const;

  HostRoots roots_;
  GroupFiles& files_;
  std::map<JobId, Kept> jobs_;
};

}  // namespace commensal::node
