// SPDX-License-Identifier: Apache-2.0
// Looking up jobs and dividing a limit among their processes.
#include "coordinator/node/job_table.h"

#include <algorithm>
#include <utility>

namespace commensal::node {
namespace {

/// What a main beside ranks has at least, and the step in which its part moves with its use.
constexpr Bytes kMainPart{64U << 20U};
constexpr Bytes kMostBelieved{std::uint64_t{1} << 44U};

/// A section of a member's newest report; null: not there, or not an object.
const nlohmann::json* section(const Member& member, const char* name) {
  if (!member.stats.is_object()) return nullptr;
  const auto found = member.stats.find(name);
  return found != member.stats.end() && found->is_object() ? &*found : nullptr;
}

// A number of bytes of a member's newest report. Sums of nonsense must not be small again.
std::optional<Bytes> told_bytes(const Member& member, const char* name) {
  const auto* memory = section(member, "memory");
  if (memory == nullptr) return std::nullopt;
  const auto value = memory->find(name);
  if (value == memory->end() || !value->is_number_unsigned()) return std::nullopt;
  return std::min(Bytes{value->get<std::uint64_t>()}, kMostBelieved);
}

bool makes_steps_as_main(const Member& member) noexcept {
  return member.role == "main" && member.page && member.page->step_number > 0;
}

}  // namespace

bool Member::in_idle_class() const {
  const auto* gate = section(*this, "gate");
  return gate != nullptr && gate->contains("idle_class") && (*gate)["idle_class"] == true;
}

std::string Member::idle_class_refusal() const {
  const auto* gate = section(*this, "gate");
  if (gate == nullptr) return "";
  const auto reason = gate->find("idle_class_reason");
  return reason != gate->end() && reason->is_string() ? reason->get<std::string>() : "";
}

Bytes Member::held_by_children() const {
  return told_bytes(*this, "held_by_children_bytes").value_or(Bytes{});
}

std::optional<Bytes> Member::told_held() const {
  const auto device = told_bytes(*this, "device_bytes");
  if (!device) return std::nullopt;
  return *device + told_bytes(*this, "delegated_bytes").value_or(Bytes{});
}

Bytes Member::wanted() const {
  if (!first) return told_bytes(*this, "wanted_bytes").value_or(held);
  if (page && !page->memory_wanted.is_zero()) return page->memory_wanted;
  if (section(*this, "memory") == nullptr) return held;
  return told_held().value_or(Bytes{}) + told_bytes(*this, "host_bytes").value_or(Bytes{});
}

Member* Job::member(std::int64_t pid) noexcept {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.pid == pid; });
  return found == members.end() ? nullptr : &*found;
}

bool Job::trains(const Member& member) const noexcept {
  bool has_ranks = false;
  bool has_steps = false;
  const Member* last_main = nullptr;
  for (const Member& m : members) {
    has_ranks = has_ranks || m.role == "rank";
    has_steps = has_steps || makes_steps_as_main(m);
    if (m.role == "main") last_main = &m;
  }
  if (has_ranks) return member.role == "rank";
  return has_steps ? makes_steps_as_main(member) : &member == last_main;
}

std::size_t Job::managed_count() const noexcept {
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [](const Member& m) { return m.is_managed(); }));
}

Bytes Job::part_of(Bytes total, const Member& member) const {
  if (!member.is_managed()) return Bytes{};
  const Bytes even{total.count() / std::max<std::size_t>(managed_count(), 1)};
  const auto main_part = [&](const Member& m) {
    const Bytes needs = std::max(m.wanted(), m.ask ? m.ask->total : Bytes{});
    return std::min(even, std::max(kMainPart, round_up(std::min(needs, total), kMainPart)));
  };
  if (!trains(member)) return main_part(member);
  Bytes rest = total;
  std::uint64_t training = 0;
  for (const Member& m : members) {
    if (!m.is_managed()) continue;
    if (trains(m)) {
      ++training;
    } else {
      rest -= main_part(m);
    }
  }
  return Bytes{rest.count() / training};
}

bool Job::in_idle_class() const {
  const auto awake = [&](const Member& m) { return trains(m) && !m.in_idle_class(); };
  return speaker() != nullptr && std::none_of(members.begin(), members.end(), awake);
}

bool Job::wants_idle_class() const {
  return in_idle_class() || std::any_of(members.begin(), members.end(), [](const Member& m) {
           return !m.idle_class_refusal().empty();
         });
}

bool Job::serves() const noexcept {
  return std::any_of(members.begin(), members.end(), [this](const Member& member) {
    return trains(member) && member.page && member.page->serves;
  });
}

StepKnowledge Job::step_knowledge() const noexcept {
  StepKnowledge known;
  known.serves = serves();
  for (const Member& member : members) {
    if (trains(member)) known.stretches += member.pace.number();
  }
  if (const Member* shown = slowest(); shown != nullptr) {
    known.number = shown->page->step_number;
    known.confidence = shown->page->step_confidence;
  }
  return known;
}

const Member* Job::slowest_on_cores() const noexcept {
  const Member* worst = nullptr;
  for (const Member& m : members) {
    if (!trains(m) || m.pace.number() == 0) continue;
    if (worst == nullptr || m.pace.length() > worst->pace.length()) worst = &m;
  }
  return worst;
}

std::optional<Duration> Job::gpu_time() const noexcept {
  std::optional<Duration> longest;
  for (const Member& member : members) {
    if (!trains(member) || !member.gpu_time.began()) continue;
    longest = std::max(longest.value_or(Duration{}), member.gpu_time.busy());
  }
  return longest;
}

Duration Job::core_time() const noexcept {
  Duration sum = gone_core_time;
  for (const Member& member : members) sum += member.cpu.totals().run;
  return sum;
}

const Member* Job::slowest() const noexcept {
  const Member* worst = nullptr;
  for (const Member& m : members) {
    if (!trains(m) || !m.page || m.page->step_number == 0) continue;
    const bool worse = worst == nullptr || m.page->step_number < worst->page->step_number ||
                       (m.page->step_number == worst->page->step_number &&
                        m.page->step_last > worst->page->step_last);
    if (worse) worst = &m;
  }
  return worst;
}

const Member* Job::speaker() const noexcept {
  const Member* best = nullptr;
  for (const Member& m : members) {
    if (trains(m) && (best == nullptr || m.rank < best->rank)) best = &m;
  }
  return best;
}

void Job::note_use(TimePoint now, JobUse measured) {
  Bytes held;
  Bytes reported;
  for (Member& m : members) {
    const auto found = measured.resident.find(m.pid);
    m.resident.reset();
    if (found != measured.resident.end()) m.resident = found->second;
    if (m.resident) m.beside.note(now, saturating_sub(*m.resident, m.held));
    held += m.held;
    reported += m.held_by_children();
  }
  if (measured.group) group_beside.note(now, saturating_sub(*measured.group, held));
  Bytes children_hold;
  for (const ChildUse& child : measured.children) children_hold += child.bytes;
  // Two witnesses: pages that are a child's alone, and what the allocator knows that it gave back
  // beside a living child, be it shared by several.
  of_children.note(now, measured.children.empty() ? Bytes{} : std::max(children_hold, reported));
  use = std::move(measured);
}

Bytes Job::unmanaged() const {
  if (use.group) return group_beside.value();
  Bytes sum = of_children.value();
  for (const Member& m : members) sum += m.beside.value();
  return sum;
}

Job* JobTable::find(const JobId& id) noexcept {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.id == id; });
  return found == jobs_.end() ? nullptr : &*found;
}

const Job* JobTable::find(const JobId& id) const noexcept {
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

Job JobTable::take(JobId id) {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.id == id; });
  Job job = std::move(*found);
  jobs_.erase(found);
  return job;
}

FoundJob find_job(const std::vector<JobName>& jobs, const std::string& id_or_name) {
  std::vector<JobName> known;
  for (const JobName& job : jobs) {
    if (job.id.str() == id_or_name) return {job.id, ""};
    if (std::find(known.begin(), known.end(), job) == known.end()) known.push_back(job);
  }
  std::vector<JobName> same;
  std::copy_if(known.begin(), known.end(), std::back_inserter(same),
               [&](const JobName& job) { return job.name == id_or_name; });
  if (same.size() == 1) return {same.front().id, ""};
  const auto listed = [](const std::vector<JobName>& all) {
    std::string text;
    for (const JobName& job : all) {
      text += (text.empty() ? "" : ", ") + job.id.str() + " (" + job.name + ")";
    }
    return text;
  };
  if (!same.empty()) {
    return {std::nullopt, "more than one job has the name '" + id_or_name + "': " + listed(same)};
  }
  return {std::nullopt, "no job '" + id_or_name + "'; " +
                            (known.empty() ? "no job is running" : "there are: " + listed(known))};
}

}  // namespace commensal::node
