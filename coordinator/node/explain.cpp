// SPDX-License-Identifier: Apache-2.0
// Answers `commensal explain`: who was throttled, why, and what it cost whom.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "allocator/base/clock.h"
#include "coordinator/node/device_coordinator.h"

namespace commensal::node {

using nlohmann::json;

namespace {

constexpr std::size_t kMostReasons = 64;  // a report may say anything

/// A number of a report; zero where there is none.
double number_of(const json& report, const char* section, const char* name) {
  if (!report.is_object()) return 0.0;
  const auto part = report.find(section);
  if (part == report.end() || !part->is_object()) return 0.0;
  const auto value = part->find(name);
  return value != part->end() && value->is_number() ? value->get<double>() : 0.0;
}

/// What the ops that a guaranteed process sampled say; null before the first that says anything.
json sampled_ops(const json& report) {
  const double windows = number_of(report, "samples", "window_seconds_total");
  const double compute = number_of(report, "samples", "compute_seconds_total");
  const double memory = number_of(report, "samples", "memory_seconds_total");
  const double ops = compute + memory;
  if (!(windows > 0.0 && ops > 0.0)) return nullptr;
  json top = json::array();
  const json& samples = report["samples"];
  if (samples.contains("top") && samples["top"].is_array()) {
    for (const json& op : samples["top"]) {
      if (!op.is_object() || !op.contains("name") || !op["name"].is_string()) continue;
      if (!op.contains("seconds") || !op["seconds"].is_number()) continue;
      top.push_back({{"name", op["name"]}, {"seconds", op["seconds"]}});
    }
  }
  return {{"window_seconds", windows},
          {"samples", number_of(report, "samples", "ops_total")},
          {"busy", ops / windows},
          {"compute", compute / ops},
          {"memory", memory / ops},
          {"on_core", number_of(report, "samples", "on_core_seconds_total") / ops},
          {"op_seconds", ops},
          {"top", std::move(top)}};
}

/// The gate's part of a sample, from the report of one process.
void add_gate(JobSample& sample, const json& report) {
  sample.closed_seconds += number_of(report, "gate", "closed_seconds_total");
  sample.op_seconds += number_of(report, "gate", "busy_seconds_total");
  sample.hand_overs += number_of(report, "gate", "hand_overs_total");
  sample.waited_seconds += number_of(report, "activity", "wait_seconds_total");
  if (!report.is_object() || !report.contains("gate") || !report["gate"].is_object()) return;
  const auto by = report["gate"].find("closed_by");
  if (by == report["gate"].end() || !by->is_array()) return;
  for (const json& entry : *by) {
    if (!entry.is_object() || !entry.contains("reason") || !entry["reason"].is_string()) continue;
    const auto reason = entry["reason"].get<std::string>();
    const double total = entry.contains("seconds") && entry["seconds"].is_number()
                             ? entry["seconds"].get<double>()
                             : 0.0;
    const auto same = std::find_if(sample.closed_by.begin(), sample.closed_by.end(),
                                   [&](const auto& known) { return known.first == reason; });
    if (same != sample.closed_by.end()) {
      same->second += total;  // another rank's
    } else if (sample.closed_by.size() < kMostReasons) {
      sample.closed_by.emplace_back(reason, total);
    }
  }
}

json series_of(const JobHistory& history, TimePoint since, TimePoint until, TimePoint now) {
  json series = json::array();
  for (const JobSample& sample : history.samples()) {
    if (sample.at < since || sample.at > until) continue;
    series.push_back({{"seconds_ago", in_seconds(now - sample.at)},
                      {"closed_seconds_total", sample.closed_seconds},
                      {"op_seconds_total", sample.op_seconds},
                      {"core_seconds_total", sample.core_seconds},
                      {"waited_seconds_total", sample.waited_seconds},
                      {"steps", sample.steps},
                      {"share", sample.share},
                      {"slowdown", sample.slowdown ? json(*sample.slowdown) : json(nullptr)}});
  }
  return series;
}

/// The stretch that a job's samples cover within the wanted one.
struct Stretch {
  const JobSample* from = nullptr;
  const JobSample* to = nullptr;
  [[nodiscard]] double length() const {
    return from == nullptr ? 0.0 : in_seconds(to->at - from->at);
  }
};

Stretch stretch_of(const JobHistory& history, TimePoint since, TimePoint until) {
  if (history.samples().empty()) return {};
  return {history.at(since), history.at(until)};
}

// They count from the beginning again where another program of the job trains now.
std::uint64_t steps_in(const Stretch& stretch) {
  return stretch.to->steps - std::min(stretch.to->steps, stretch.from->steps);
}

}  // namespace

JobSample DeviceCoordinator::sample_of(const Job& job, TimePoint now) const {
  JobSample sample;
  sample.at = now;
  for (const Member& member : job.members) {
    if (job.trains(member)) add_gate(sample, member.stats);
  }
  const Member* speaker = job.speaker();
  if (speaker != nullptr && speaker->page) sample.steps = speaker->page->step_number;
  if (speaker != nullptr) sample.gaps = read_gap_totals(speaker->stats);
  sample.core_seconds = in_seconds(job.core_time());
  sample.gpu_seconds = in_seconds(job.gpu_time().value_or(Duration{}));
  sample.share = job.job_class == JobClass::kGuaranteed ? 1.0 : job.share_now;
  if (const auto slowdown = known_slowdown(job)) sample.slowdown = slowdown->value;
  return sample;
}

void DeviceCoordinator::keep_history(TimePoint now) {
  for (Job& job : table_.jobs()) {
    job.history.note(sample_of(job, now));
    follow_gaps(job, now);
  }
}

void DeviceCoordinator::forget_ended(TimePoint now) {
  std::size_t newer = 0;
  for (std::size_t i = ended_.size(); i-- > 0;) {
    Ended& ended = ended_[i];
    if (newer++ < kEndedExplained && ended.ended >= now - kHistory) continue;
    ended.job.reset();
    ended.costs = ended.device = nullptr;
  }
}

void DeviceCoordinator::follow_gaps(Job& job, TimePoint now) {
  const Member* speaker = job.speaker();
  if (speaker == nullptr) return;
  if (job.job_class == JobClass::kGuaranteed) {
    const Stretch stretch = stretch_of(job.history, now - kGapWindow, now);
    if (stretch.from == nullptr || stretch.length() <= 0.0) return;
    job.gaps = std::make_shared<const std::vector<GapClass>>(
        gap_classes(speaker->stats, stretch.from->gaps, stretch.length()));
    return;
  }
  const Stretch stretch = stretch_of(job.history, now - kUseWindow, now);
  if (stretch.from == nullptr || stretch.length() <= 0.0) return;
  job.hand_overs =
      std::max(0.0, stretch.to->hand_overs - stretch.from->hand_overs) / stretch.length();
}

double DeviceCoordinator::used_of_late(const Job& job, TimePoint now) const {
  const Stretch stretch = stretch_of(job.history, now - kUseWindow, now);
  const double length = stretch.length();
  if (stretch.from == nullptr || length <= 0.0) return 0.0;
  if (!is_host()) {
    // Cores say nothing of a GPU's time; waits do, and what a gate let through.
    const bool guaranteed = job.job_class == JobClass::kGuaranteed;
    const double used = guaranteed ? stretch.to->gpu_seconds - stretch.from->gpu_seconds
                                   : stretch.to->op_seconds - stretch.from->op_seconds;
    return std::max(0.0, used / length);  // the process that it goes by may have left
  }
  return (stretch.to->core_seconds - stretch.from->core_seconds) / (length * device_.cores);
}

bool DeviceCoordinator::shows_gpu_time() const {
  return std::all_of(table_.jobs().begin(), table_.jobs().end(), [](const Job& job) {
    if (job.job_class == JobClass::kGuaranteed) return job.gpu_time().has_value();
    const Member* speaker = job.speaker();
    if (speaker == nullptr || !speaker->stats.is_object()) return false;
    // A gate that is off lets ops pass unseen.
    const json state = speaker->stats.value(json::json_pointer("/gate/state"), json());
    return state.is_string() && state != "off";
  });
}

/// How a device's time was used within a stretch.
struct DeviceCoordinator::DeviceUse {
  double length = 0.0;         ///< seconds
  double guaranteed = 0.0;     ///< share of it, or of the core time
  double opportunistic = 0.0;  ///< the same
};

DeviceCoordinator::DeviceUse DeviceCoordinator::device_use(TimePoint now) const {
  DeviceUse use;
  for (const Job& job : table_.jobs()) {
    use.length = std::max(use.length, stretch_of(job.history, now - kUseWindow, now).length());
    (job.job_class == JobClass::kGuaranteed ? use.guaranteed : use.opportunistic) +=
        used_of_late(job, now);
  }
  return use;
}

json DeviceCoordinator::device_shares(TimePoint now) const {
  DeviceUse use = device_use(now);
  double slowdown = 0.0;
  double slo = 0.0;
  bool present = false;
  for (const Job& job : table_.jobs()) {
    if (job.job_class != JobClass::kGuaranteed) continue;
    slo = present ? std::min(slo, slo_of(job)) : slo_of(job);
    present = true;
    if (const auto seen = known_slowdown(job)) slowdown = std::max(slowdown, seen->value);
  }
  if (!is_host()) use.guaranteed = std::min(1.0, use.guaranteed);  // two may have work at once
  // The guaranteed job's time belongs to steps that took 1 + slowdown as long.
  const double alone = std::min(1.0, use.guaranteed * (1.0 + slowdown));
  const double oracle = oracle_share(alone, slo);
  json driver = nullptr;
  if (const auto told = driver_busy_.mean(now)) driver = *told;
  bool known = use.length > 0.0 && (is_host() || shows_gpu_time());
  if (!known && !present && driver.is_number() && !table_.jobs().empty()) {
    known = true;  // whoever is alone is not metered
    use.opportunistic = driver.get<double>();
  }
  const bool shared = known && present && use.opportunistic > 0.0 && oracle > 0.0;
  return {{"kind", to_string(device_.kind)},
          {"seconds", use.length},
          {"driver_busy_share", std::move(driver)},
          {"guaranteed_share", known ? json(use.guaranteed) : json(nullptr)},
          {"opportunistic_share", known ? json(use.opportunistic) : json(nullptr)},
          {"oracle_share", known && present ? json(oracle) : json(nullptr)},
          {"efficiency", shared ? json(use.opportunistic / oracle) : json(nullptr)}};
}

std::optional<SlowdownEstimate> DeviceCoordinator::known_slowdown(const Job& job) const {
  auto slowdown = compute_.slowdown(job.id);
  if (!why_not_known(slowdown).empty()) slowdown.reset();
  return slowdown;
}

std::string DeviceCoordinator::slowdown_reason(const Job& job) const {
  std::string reason = why_not_known(compute_.slowdown(job.id));
  if (reason.empty() || compute_.looks_alone()) return reason;
  if (const auto waiting = compute_.waiting(job.id)) {
    reason += fmt::format("; at most {:.1f} % is lost to waiting for cores",
                          100 * std::max(0.0, waiting->value));
  }
  reason += "; nothing looks at it alone beside a job with a law of its own";
  return reason;
}

json DeviceCoordinator::cost_of(const Job& job) const {
  const auto slowdown = known_slowdown(job);
  const MedianEstimate baseline = compute_.baseline(job.id);
  json parts = nullptr;
  json evidence = nullptr;
  json ops = nullptr;
  for (const Member& member : job.members) {
    if (job.trains(member) && ops.is_null()) ops = sampled_ops(member.stats);
    if (!slowdown || !job.trains(member) || !parts.is_null()) continue;
    const TimeUse& quiet = member.time_use.quiet();
    const TimeUse& shared = member.time_use.shared();
    const auto split = split_slowdown(slowdown->value, quiet, shared);
    if (!split) continue;
    parts = {{"memory", split->memory},
             {"scheduling", split->scheduling},
             {"io", split->io},
             {"unknown", split->unknown}};
    const auto kinds = [](const TimeUse& use) {
      const double wall = in_seconds(use.wall);
      return json{{"seconds", wall},
                  {"running", in_seconds(use.run) / wall},
                  {"waiting_for_a_core", in_seconds(use.delayed) / wall},
                  {"io_stalls", in_seconds(use.io) / wall}};
    };
    evidence = {{"quiet", kinds(quiet)}, {"shared", kinds(shared)}};
  }
  return {{"id", job.id.str()},
          {"name", job.name},
          {"slo", slo_of(job)},
          {"gaps", to_json(job.gaps ? *job.gaps : std::vector<GapClass>{})},
          {"slowdown", slowdown ? json(slowdown->value) : json(nullptr)},
          {"slowdown_error", slowdown ? json(slowdown->error) : json(nullptr)},
          {"slowdown_reason", slowdown_reason(job)},
          {"baseline_seconds", baseline.steps > 0 ? json(baseline.seconds) : json(nullptr)},
          {"baseline_steps", baseline.steps},
          {"parts", std::move(parts)},
          {"evidence", std::move(evidence)},
          {"ops", std::move(ops)}};
}

template <typename Visit>
void DeviceCoordinator::each_of(TimePoint since, TimePoint until, Visit visit) const {
  for (const Ended& past : ended_) {
    if (past.job && past.ended > since && past.started <= until) visit(*past.job, &past);
  }
  for (const Job& job : table_.jobs()) {
    // Who begins in this very moment is there for whoever is explained now.
    if (job.started <= until) visit(job, static_cast<const Ended*>(nullptr));
  }
}

// What was known when `own` ended counts; null: the job lives.
json DeviceCoordinator::costs_of(const Ended* own, TimePoint since, TimePoint until,
                                 TimePoint now) const {
  json costs = json::array();
  each_of(since, until, [&](const Job& job, const Ended* ended) {
    if (job.job_class != JobClass::kGuaranteed) return;
    json cost = nullptr;
    for (const Ended* then : {own, ended}) {
      if (then == nullptr || !cost.is_null()) continue;
      for (const json& known : then->costs) {
        if (known["id"] == job.id.str()) cost = known;
      }
    }
    if (cost.is_null()) cost = cost_of(job);
    const Stretch stretch = stretch_of(job.history, since, until);
    const bool known = cost["slowdown"].is_number();
    const double loss = known ? std::max(0.0, cost["slowdown"].get<double>()) : 0.0;
    cost["steps"] = stretch.from == nullptr ? 0 : steps_in(stretch);
    cost["lost_seconds"] = known ? json(stretch.length() * loss / (1.0 + loss)) : json(nullptr);
    cost["ended_seconds_ago"] =
        ended != nullptr ? json(in_seconds(now - ended->ended)) : json(nullptr);
    costs.push_back(std::move(cost));
  });
  return costs;
}

json DeviceCoordinator::explain(const Job& job, const Ended* told, Duration last, bool series,
                                TimePoint now) const {
  const TimePoint until = told != nullptr ? told->ended : now;
  const TimePoint since = until - last;
  const Stretch stretch = stretch_of(job.history, since, until);
  json closed_by = json::array();
  json own = {
      {"id", job.id.str()},
      {"name", job.name},
      {"class", to_string(job.job_class)},
      {"law", job.terms.law},
      {"paused", job.paused || job.parked()},
      {"idle_class", job.in_idle_class()},
      {"ended_seconds_ago", told != nullptr ? json(in_seconds(now - until)) : json(nullptr)},
      {"exit_reason", ""},
      {"gap_rules", rules_of(job)},
      {"gang",
       job.job_class == JobClass::kOpportunistic ? job.gang_keeper->status() : json(nullptr)},
      {"share",
       {{"now", job.share_now},
        {"min", job.terms.share.min},
        {"max", job.terms.share.max},
        {"reason", job.share_reason}}}};
  if (stretch.from != nullptr) {
    for (const auto& [reason, time] : closed_between(*stretch.from, *stretch.to)) {
      closed_by.push_back({{"reason", reason}, {"seconds", time}});
    }
    own["closed_seconds"] = stretch.to->closed_seconds - stretch.from->closed_seconds;
    own["op_seconds"] = stretch.to->op_seconds - stretch.from->op_seconds;
    own["core_seconds"] = stretch.to->core_seconds - stretch.from->core_seconds;
    own["waited_seconds"] = stretch.to->waited_seconds - stretch.from->waited_seconds;
    own["steps"] = steps_in(stretch);
  }
  own["closed_by"] = std::move(closed_by);
  json device = told != nullptr ? json(nullptr) : device_shares(now);
  json opportunistic = json::array();
  json samples = json::array();
  each_of(since, until, [&](const Job& other, const Ended* ended) {
    if (ended != nullptr && &other == &job) {
      own["exit_reason"] = ended->status["exit_reason"];
      own["idle_class"] = ended->status["gate"]["idle_class"];
      device = ended->device;
    }
    if (series) {
      samples.push_back({{"id", other.id.str()},
                         {"name", other.name},
                         {"class", to_string(other.job_class)},
                         {"samples", series_of(other.history, since, until, now)}});
    }
    if (other.job_class == JobClass::kGuaranteed) return;
    const Stretch use = stretch_of(other.history, since, until);
    opportunistic.push_back(
        {{"id", other.id.str()},
         {"name", other.name},
         {"core_seconds",
          use.from == nullptr ? 0.0 : use.to->core_seconds - use.from->core_seconds},
         {"closed_seconds",
          use.from == nullptr ? 0.0 : use.to->closed_seconds - use.from->closed_seconds}});
  });
  json decisions = json::array();
  for (const Decision& decision : log_.all()) {
    if (decision.at < since || decision.at > until) continue;
    decisions.push_back({{"seconds_ago", in_seconds(now - decision.at)},
                         {"job", decision.job.str()},
                         {"kind", decision.kind},
                         {"text", decision.text}});
  }
  return {{"schema", 1},
          {"seconds", stretch.length()},
          {"asked_seconds", in_seconds(last)},
          {"until_seconds_ago", in_seconds(now - until)},
          {"job", std::move(own)},
          {"device", std::move(device)},
          {"window_seconds_total", in_seconds(compute_.closed_total())},
          {"guaranteed", costs_of(told, since, until, now)},
          {"opportunistic", std::move(opportunistic)},
          {"decisions", std::move(decisions)},
          {"series", std::move(samples)}};
}

}  // namespace commensal::node
