// SPDX-License-Identifier: Apache-2.0
// Answers `commensal explain`: who was throttled, why, and what it cost whom.
#include <algorithm>
#include <cmath>

#include "coordinator/node/node_coordinator.h"

namespace commensal::node {

using nlohmann::json;

namespace {

constexpr std::size_t kMostReasons = 64;  // a report may say anything

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

/// A number of a report; zero where there is none.
double number_of(const json& report, const char* section, const char* name) {
  if (!report.is_object()) return 0.0;
  const auto part = report.find(section);
  if (part == report.end() || !part->is_object()) return 0.0;
  const auto value = part->find(name);
  return value != part->end() && value->is_number() ? value->get<double>() : 0.0;
}

/// The gate's part of a sample, from the report of one process.
void add_gate(JobSample& sample, const json& report) {
  sample.closed_seconds += number_of(report, "gate", "closed_seconds_total");
  sample.op_seconds += number_of(report, "gate", "busy_seconds_total");
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

json series_of(const JobHistory& history, TimePoint since, TimePoint now) {
  json series = json::array();
  for (const JobSample& sample : history.samples()) {
    if (sample.at < since) continue;
    series.push_back({{"seconds_ago", seconds(now - sample.at)},
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
  [[nodiscard]] double length() const { return from == nullptr ? 0.0 : seconds(to->at - from->at); }
};

Stretch stretch_of(const JobHistory& history, TimePoint since) {
  if (history.samples().empty()) return {};
  return {history.at(since), &history.samples().back()};
}

}  // namespace

void NodeCoordinator::keep_history(TimePoint now) {
  for (Job& job : table_.jobs()) {
    JobSample sample;
    sample.at = now;
    for (const Member& member : job.members) {
      if (job.trains(member)) add_gate(sample, member.stats);
    }
    const Member* speaker = job.speaker();
    if (speaker != nullptr && speaker->page) sample.steps = speaker->page->step_number;
    sample.core_seconds = seconds(job.core_time());
    sample.share = job.job_class == JobClass::kGuaranteed ? 1.0 : job.share_now;
    if (const auto slowdown = compute_.slowdown(job.id)) sample.slowdown = slowdown->value;
    job.history.note(std::move(sample));
  }
}

double NodeCoordinator::used_of_late(const Job& job, TimePoint now) const {
  const Stretch stretch = stretch_of(job.history, now - kUseWindow);
  const double length = stretch.length();
  if (length <= 0.0) return 0.0;
  return (stretch.to->core_seconds - stretch.from->core_seconds) / (length * device_.cores);
}

/// How a device's core time was used within a stretch.
struct NodeCoordinator::DeviceUse {
  double length = 0.0;         ///< seconds
  double guaranteed = 0.0;     ///< share of the core time
  double opportunistic = 0.0;  ///< the same
};

NodeCoordinator::DeviceUse NodeCoordinator::device_use(TimePoint now) const {
  DeviceUse use;
  for (const Job& job : table_.jobs()) {
    use.length = std::max(use.length, stretch_of(job.history, now - kUseWindow).length());
    (job.job_class == JobClass::kGuaranteed ? use.guaranteed : use.opportunistic) +=
        used_of_late(job, now);
  }
  return use;
}

json NodeCoordinator::device_shares(TimePoint now) const {
  const DeviceUse use = device_use(now);
  double slowdown = 0.0;
  double slo = 0.0;
  bool present = false;
  for (const Job& job : table_.jobs()) {
    if (job.job_class != JobClass::kGuaranteed) continue;
    slo = present ? std::min(slo, slo_of(job)) : slo_of(job);
    present = true;
    if (const auto seen = compute_.slowdown(job.id)) slowdown = std::max(slowdown, seen->value);
  }
  // The guaranteed job's core time belongs to steps that took 1 + slowdown as long.
  const double alone = std::min(1.0, use.guaranteed * (1.0 + slowdown));
  const double oracle = oracle_share(alone, slo);
  const bool known = use.length > 0.0;
  const bool shared = known && present && use.opportunistic > 0.0 && oracle > 0.0;
  return {{"seconds", use.length},
          {"guaranteed_share", known ? json(use.guaranteed) : json(nullptr)},
          {"opportunistic_share", known ? json(use.opportunistic) : json(nullptr)},
          {"oracle_share", known && present ? json(oracle) : json(nullptr)},
          {"efficiency", shared ? json(use.opportunistic / oracle) : json(nullptr)}};
}

json NodeCoordinator::explain_guaranteed(const Job& job, Duration last, TimePoint now) const {
  const Stretch stretch = stretch_of(job.history, now - last);
  const auto slowdown = compute_.slowdown(job.id);
  const MedianEstimate baseline = compute_.baseline(job.id);
  json parts = nullptr;
  json evidence = nullptr;
  for (const Member& member : job.members) {
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
      const double wall = seconds(use.wall);
      return json{{"seconds", wall},
                  {"running", seconds(use.run) / wall},
                  {"waiting_for_a_core", seconds(use.delayed) / wall},
                  {"io_stalls", seconds(use.io) / wall}};
    };
    evidence = {{"quiet", kinds(quiet)}, {"shared", kinds(shared)}};
  }
  const double length = stretch.length();
  const double loss = slowdown ? std::max(0.0, slowdown->value) : 0.0;
  return {{"id", job.id.str()},
          {"name", job.name},
          {"slo", slo_of(job)},
          {"slowdown", slowdown ? json(slowdown->value) : json(nullptr)},
          {"slowdown_error", slowdown ? json(slowdown->error) : json(nullptr)},
          {"baseline_seconds", baseline.steps > 0 ? json(baseline.seconds) : json(nullptr)},
          {"baseline_steps", baseline.steps},
          {"steps", stretch.from == nullptr ? 0 : stretch.to->steps - stretch.from->steps},
          {"lost_seconds", slowdown ? json(length * loss / (1.0 + loss)) : json(nullptr)},
          {"parts", std::move(parts)},
          {"evidence", std::move(evidence)}};
}

json NodeCoordinator::explain(const Job& job, Duration last, bool series, TimePoint now) const {
  const Stretch stretch = stretch_of(job.history, now - last);
  json closed_by = json::array();
  json own = {{"id", job.id.str()},
              {"name", job.name},
              {"class", to_string(job.job_class)},
              {"law", job.law},
              {"paused", job.paused || job.parked()},
              {"idle_class", job.in_idle_class()},
              {"gang", job.gang_keeper.status()},
              {"share",
               {{"now", job.share_now},
                {"min", job.share.min},
                {"max", job.share.max},
                {"reason", job.share_reason}}}};
  if (stretch.from != nullptr) {
    for (const auto& [reason, time] : closed_between(*stretch.from, *stretch.to)) {
      closed_by.push_back({{"reason", reason}, {"seconds", time}});
    }
    own["closed_seconds"] = stretch.to->closed_seconds - stretch.from->closed_seconds;
    own["op_seconds"] = stretch.to->op_seconds - stretch.from->op_seconds;
    own["core_seconds"] = stretch.to->core_seconds - stretch.from->core_seconds;
    own["waited_seconds"] = stretch.to->waited_seconds - stretch.from->waited_seconds;
    own["steps"] = stretch.to->steps - std::min(stretch.to->steps, stretch.from->steps);
  }
  own["closed_by"] = std::move(closed_by);
  json guaranteed = json::array();
  json opportunistic = json::array();
  json samples = json::array();
  for (const Job& other : table_.jobs()) {
    if (series) {
      samples.push_back({{"id", other.id.str()},
                         {"name", other.name},
                         {"class", to_string(other.job_class)},
                         {"samples", series_of(other.history, now - last, now)}});
    }
    if (other.job_class == JobClass::kGuaranteed) {
      guaranteed.push_back(explain_guaranteed(other, last, now));
      continue;
    }
    const Stretch use = stretch_of(other.history, now - last);
    opportunistic.push_back(
        {{"id", other.id.str()},
         {"name", other.name},
         {"core_seconds",
          use.from == nullptr ? 0.0 : use.to->core_seconds - use.from->core_seconds},
         {"closed_seconds",
          use.from == nullptr ? 0.0 : use.to->closed_seconds - use.from->closed_seconds}});
  }
  json decisions = json::array();
  for (const Decision& decision : log_.all()) {
    if (decision.at < now - last) continue;
    decisions.push_back({{"seconds_ago", seconds(now - decision.at)},
                         {"job", decision.job.str()},
                         {"kind", decision.kind},
                         {"text", decision.text}});
  }
  return {{"schema", 1},
          {"seconds", stretch.length()},
          {"asked_seconds", seconds(last)},
          {"job", std::move(own)},
          {"device", device_shares(now)},
          {"window_seconds_total", seconds(compute_.closed_total())},
          {"guaranteed", std::move(guaranteed)},
          {"opportunistic", std::move(opportunistic)},
          {"decisions", std::move(decisions)},
          {"series", std::move(samples)}};
}

void NodeCoordinator::handle(const PeerId& peer, const wire::ExplainRequest& message,
                             TimePoint now) {
  const JobTable::Lookup found = table_.resolve(message.job);
  if (found.job == nullptr) {
    send(peer, wire::Error{"unknown_job", found.problem});
    return;
  }
  const double most = seconds(kHistory);
  if (!(message.seconds > 0.0 && message.seconds <= most)) {
    receive_malformed(
        peer,
        wire::BadMessage("malformed", "field 'seconds' must be above 0 and at most " +
                                          json(most).dump() + ": " + json(message.seconds).dump()));
    return;
  }
  const Duration last{std::llround(message.seconds * 1e9)};
  send(peer, wire::ExplainReply{explain(*found.job, last, message.series, now)});
}

}  // namespace commensal::node
