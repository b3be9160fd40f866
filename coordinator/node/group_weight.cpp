// SPDX-License-Identifier: Apache-2.0
// cpu.idle, cpu.weight and cpu.shares of control groups.
#include "coordinator/node/group_weight.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <system_error>
#include <vector>

#include "coordinator/node/kernel_files.h"
#include "coordinator/wire/handover.h"

namespace commensal::node {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMade = "commensal-";  // how the groups are called that are made here

std::string reason_of(int error) { return std::generic_category().message(error); }

class KernelGroupFiles final : public GroupFiles {
 public:
  std::optional<std::string> read(const fs::path& file) override { return read_file(file); }

  std::string write(const fs::path& file, const std::string& text) override {
    const wire::UniqueFd fd{::open(file.c_str(), O_WRONLY | O_CLOEXEC)};
    const bool done =
        fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
    return done ? "" : "cannot write " + text + " to " + file.native() + ": " + reason_of(errno);
  }

  std::string make(const fs::path& group) override {
    if (::mkdir(group.c_str(), 0755) == 0 || errno == EEXIST) return "";
    return "cannot make " + group.native() + ": " + reason_of(errno);
  }

  std::string remove(const fs::path& group) override {
    if (::rmdir(group.c_str()) == 0 || errno == ENOENT) return "";
    return "cannot remove " + group.native() + ": " + reason_of(errno);
  }

  bool delegated(const fs::path& group) override {
    for (const char* mark : {"user.delegate", "trusted.delegate"}) {  // systemd's
      char value = 0;
      if (::getxattr(group.c_str(), mark, &value, 1) == 1 && value == '1') return true;
    }
    return ::geteuid() != 0 && ::access(group.c_str(), W_OK) == 0;
  }
};

std::string first_line(std::string text) {
  text.resize(std::min(text.size(), text.find('\n')));
  return text;
}

std::string folder_name(const JobId& job) {
  std::string name = kMade + job.str();
  std::replace_if(
      name.begin(), name.end(),
      [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_';
      },
      '_');
  return name;
}

const char* weight_file(int version) { return version == 1 ? "cpu.shares" : "cpu.weight"; }
const char* least_weight(int version) { return version == 1 ? "2" : "1"; }

}  // namespace

GroupFiles& kernel_group_files() {
  static KernelGroupFiles files;
  return files;
}

/// Where a process is in the hierarchy that has the CPU controller.
struct GroupWeights::Place {
  int version = 2;
  fs::path group;
  fs::path parent;  ///< empty: the group is the hierarchy's root, as far as it can be seen
};

std::optional<GroupWeights::Place> GroupWeights::place_of(std::int64_t process) const {
  for (const GroupChain& chain : group_chains(roots_, std::to_string(process), "cpu")) {
    const fs::path& own = chain.folders.front();
    // A hierarchy of version 2 is there even where version 1 has the controller.
    const bool has_it = chain.version == 1 || files_.read(own / "cpu.max") ||
                        files_.read(own / "cpu.weight") || files_.read(own / "cpu.idle");
    if (!has_it) continue;
    const bool root = chain.folders.size() < 2;
    return Place{chain.version, own, root ? fs::path{} : chain.folders[1]};
  }
  return std::nullopt;
}

bool GroupWeights::has_only(const fs::path& group, const std::set<std::int64_t>& processes) const {
  const auto listed = files_.read(group / "cgroup.procs");
  if (!listed) return false;
  for (const std::string& word : words(*listed, '\n')) {
    const auto pid = to_number(word);
    if (!pid || !processes.contains(*pid)) return false;
  }
  std::error_code problem;
  for (fs::directory_iterator entry{group, problem}, end; !problem && entry != end;
       entry.increment(problem)) {
    if (entry->is_directory() && !has_only(entry->path(), processes)) return false;
  }
  return !problem;
}

const GroupOutcome& GroupWeights::lower(const JobId& job, const std::set<std::int64_t>& processes,
                                        bool in_idle_class) {
  const auto [entry, is_new] = jobs_.try_emplace(job);
  Kept& kept = entry->second;
  const bool same = kept.processes == processes && kept.in_idle_class == in_idle_class;
  if (kept.outcome.low || (!is_new && same)) return kept.outcome;
  kept = Kept{};
  kept.processes = processes;
  kept.in_idle_class = in_idle_class;
  std::optional<Place> place;
  for (const std::int64_t process : processes) {
    const auto where = place_of(process);
    if (!where) {
      kept.outcome.reason = "in no control group that has a weight";
      return kept.outcome;
    }
    if (place && place->group != where->group) {
      kept.outcome.reason =
          "its processes are in several control groups: " + place->group.native() + ", " +
          where->group.native();
      return kept.outcome;
    }
    place = where;
  }
  kept.version = place->version;
  const bool alone = !place->parent.empty() && has_only(place->group, processes);
  if (alone) {
    lower_own(kept, *place);
  } else if (in_idle_class) {
    kept.outcome.reason = "shares " + place->group.native() +
                          " with others, behind which the kernel's idle class puts it";
  } else {
    lower_new(kept, *place, job);
  }
  return kept.outcome;
}

std::string GroupWeights::make_light(Kept& kept, const fs::path& group) {
  const auto weight = files_.read(group / weight_file(kept.version));
  if (weight) kept.weight = first_line(*weight);
  if (const auto idle = files_.read(group / "cpu.idle")) {
    kept.was_idle = first_line(*idle) == "1";
    if (kept.was_idle || files_.write(group / "cpu.idle", "1").empty()) return "cpu.idle 1";
  }
  if (!weight) {
    kept.outcome.reason =
        group.native() + " has no " + weight_file(kept.version) + ": the CPU controller is off";
    return "";
  }
  kept.outcome.reason = files_.write(group / weight_file(kept.version), least_weight(kept.version));
  if (!kept.outcome.reason.empty()) return "";
  return std::string{weight_file(kept.version)} + " " + least_weight(kept.version);
}

void GroupWeights::lower_own(Kept& kept, const Place& place) {
  const std::string done = make_light(kept, place.group);
  if (done.empty()) return;
  if (kept.was_idle) kept.weight.reset();  // its owner's choice: there is nothing to undo
  // A group that an earlier coordinator made for it goes with it.
  if (place.group.filename().native().starts_with(kMade)) kept.from = place.parent;
  kept.outcome = {true, place.group, done + " for its control group"};
}

std::string GroupWeights::obstacle_to_new(const Place& place) const {
  if (place.version == 1) {
    return files_.delegated(place.group) ? "" : "that is not delegated";
  }
  if (place.parent.empty()) return "that is the topmost that can be seen";
  const fs::path& parent = place.parent;
  const auto below = words(first_line(files_.read(parent / "cgroup.subtree_control").value_or("")));
  if (std::find(below.begin(), below.end(), "cpu") == below.end()) {
    return "groups below " + parent.native() + " have no weights";
  }
  if (!files_.delegated(parent)) return parent.native() + " is not delegated";
  for (const char* limit : {"cpu.max", "memory.max", "memory.high", "pids.max"}) {
    const auto text = files_.read(place.group / limit);
    if (text && !text->starts_with("max")) return std::string{"that sets a limit ("} + limit + ")";
  }
  return "";
}

void GroupWeights::lower_new(Kept& kept, const Place& place, const JobId& job) {
  const std::string shares = "shares " + place.group.native() + " with others, and ";
  if (const std::string why = obstacle_to_new(place); !why.empty()) {
    kept.outcome.reason = shares + why;
    return;
  }
  // Version 2 has processes in the leaves only.
  const fs::path group = (place.version == 1 ? place.group : place.parent) / folder_name(job);
  kept.outcome.reason = files_.make(group);
  if (!kept.outcome.reason.empty()) {
    kept.outcome.reason = shares + kept.outcome.reason;
    return;
  }
  const std::string done = make_light(kept, group);
  std::string problem = done.empty() ? kept.outcome.reason : "";
  std::vector<std::int64_t> moved;
  for (const std::int64_t process : kept.processes) {
    if (!problem.empty()) break;
    problem = files_.write(group / "cgroup.procs", std::to_string(process));
    if (problem.empty()) moved.push_back(process);
  }
  if (problem.empty()) {
    kept.from = place.group;
    kept.outcome = {true, group, done + " for a control group of its own"};
    return;
  }
  for (const std::int64_t process : moved) {
    const std::string back = files_.write(place.group / "cgroup.procs", std::to_string(process));
    if (!back.empty()) problem += "; " + back;
  }
  if (const std::string left = files_.remove(group); !left.empty()) problem += "; " + left;
  kept.outcome.reason = shares + problem;
}

void GroupWeights::restore(const JobId& job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  const Kept kept = std::move(found->second);
  jobs_.erase(found);
  if (!kept.outcome.low) return;
  const fs::path& group = kept.outcome.group;
  if (!kept.from.empty()) {
    for (const std::string& process :
         words(files_.read(group / "cgroup.procs").value_or(""), '\n')) {
      (void)files_.write(kept.from / "cgroup.procs", process);  // who stays behind keeps the group
    }
    if (files_.remove(group).empty()) return;
  }
  // Nobody is left to be told of a group that is gone, or is no longer ours.
  if (!kept.was_idle) (void)files_.write(group / "cpu.idle", "0");
  if (kept.weight) (void)files_.write(group / weight_file(kept.version), *kept.weight);
}

std::set<JobId> GroupWeights::known() const {
  std::set<JobId> all;
  for (const auto& [job, kept] : jobs_) all.insert(job);
  return all;
}

}  // namespace commensal::node
