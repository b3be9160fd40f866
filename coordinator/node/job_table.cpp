// SPDX-License-Identifier: Apache-2.0
// Looking up jobs and dividing a limit among their processes.
#include "coordinator/node/job_table.h"

#include <algorithm>

namespace commensal::node {
namespace {

using namespace std::chrono_literals;

constexpr Duration kWantedWindow = 5s;  // how long a peak of demand is remembered

}  // namespace

Member* Job::member(std::int64_t pid) noexcept {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.pid == pid; });
  return found == members.end() ? nullptr : &*found;
}

bool Job::is_limited(const Member& member) const noexcept {
  const bool has_ranks =
      std::any_of(members.begin(), members.end(), [](const Member& m) { return m.role == "rank"; });
  return member.role == (has_ranks ? "rank" : "main");
}

std::size_t Job::limited_count() const noexcept {
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [&](const Member& m) { return is_limited(m); }));
}

Bytes Job::part_of(Bytes total, const Member& member) const noexcept {
  if (!is_limited(member)) return Bytes{};
  return Bytes{total.count() / limited_count()};
}

const Member* Job::speaker() const noexcept {
  const Member* best = nullptr;
  for (const Member& m : members) {
    if (is_limited(m) && (best == nullptr || m.rank < best->rank)) best = &m;
  }
  return best;
}

void Job::note_wanted(TimePoint now, Bytes bytes) {
  while (!wanted.empty() && wanted.front().first < now - kWantedWindow) wanted.pop_front();
  // What is smaller and older than the newest can never be the largest again.
  while (!wanted.empty() && wanted.back().second <= bytes) wanted.pop_back();
  wanted.emplace_back(now, bytes);
}

Bytes Job::wanted_recent() const noexcept {
  return wanted.empty() ? Bytes{} : wanted.front().second;
}

Job* JobTable::find(const JobId& id) noexcept {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.id == id; });
  return found == jobs_.end() ? nullptr : &*found;
}

Job* JobTable::add(Job job, std::size_t slots) {
  std::size_t slot = 0;
  const auto taken = [&] {
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.slot == slot; });
  };
  while (slot < slots && taken()) ++slot;
  if (slot == slots) return nullptr;
  job.slot = slot;
  return &jobs_.emplace_back(std::move(job));
}

void JobTable::remove(JobId id) {
  std::erase_if(jobs_, [&](const Job& job) { return job.id == id; });
}

JobTable::Lookup JobTable::resolve(const std::string& id_or_name) {
  if (Job* job = find(JobId{id_or_name}); job != nullptr) return {job, ""};
  Job* only = nullptr;
  std::string same;
  std::string all;
  int count = 0;
  for (Job& job : jobs_) {
    const std::string shown = job.id.str() + " (" + job.name + ")";
    all += (all.empty() ? "" : ", ") + shown;
    if (job.name != id_or_name) continue;
    ++count;
    only = &job;
    same += (same.empty() ? "" : ", ") + shown;
  }
  if (count == 1) return {only, ""};
  if (count > 1) return {nullptr, "more than one job has the name '" + id_or_name + "': " + same};
  return {nullptr, "no job '" + id_or_name + "'; " +
                       (all.empty() ? "no job is running" : "there are: " + all)};
}

}  // namespace commensal::node
