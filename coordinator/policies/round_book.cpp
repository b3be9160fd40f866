// SPDX-License-Identifier: Apache-2.0
// Deficits over rounds. Source: stanford-futuredata/gavel, scheduler/scheduler.py (simulation).
#include "coordinator/policies/round_book.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>

namespace commensal::policies {
namespace {

constexpr double kNoShare = -1;
constexpr double kRounding = 1e-6;
constexpr double kNeverRan = 1e9;  // times the share: before all who have run
// Where things are in the notes: lists by unit, and numbers behind these.
enum Header : std::size_t { kLastReset, kOutdated, kIdle, kClosed, kHeader };

}  // namespace

RoundBook::RoundBook(const ClusterView& view, const Notes& notes, const Rules& rules)
    : view_(view), rules_(rules) {
  if (view.models.throughputs == nullptr) {
    throw std::invalid_argument(
        "this policy needs throughputs by GPU type: a trace with a table of them");
  }
  table_types_ = view.models.throughputs->types_of(view.cluster->types());
  capacity_.resize(table_types_.size());
  for (const NodeSpec& node : view.cluster->nodes()) capacity_[node.type] += node.gpus;
  type_ran_.resize(table_types_.size());
  read(notes);
  remove_ended();
  enter_arrived();
}

void RoundBook::read(const Notes& notes) {
  if (notes.numbers.empty()) return;
  const double* next = notes.numbers.data();
  last_reset_ = next[kLastReset];
  outdated_ = next[kOutdated] != 0;
  idle_ = next[kIdle] != 0;
  closed_ = next[kClosed];
  next += kHeader;
  const auto take = [&next](std::vector<double>& values, std::size_t count) {
    values.assign(next, next + count);
    next += count;
  };
  take(type_ran_, table_types_.size());
  for (std::size_t i = 0; i < notes.lists[0].size(); ++i) {
    units_.push_back({notes.lists[0][i], notes.lists[1][i]});
  }
  for (std::vector<double>* values : {&ran_, &owed_, &share_}) {
    take(*values, units_.size() * table_types_.size());
  }
  for (std::size_t i = 0; i < notes.lists[2].size(); ++i) {
    last_.push_back({units_[notes.lists[2][i]], notes.lists[3][i]});
  }
  // How long they ran is what their jobs attained since.
  for (const Turn& turn : last_) {
    const double before = *next++;
    const double planned = *next++;
    const double attained = view_.jobs[turn.unit.first].attained - before;
    // What was planned is free of the rounding of sums, so that equal times stay equal.
    const double seconds = std::abs(attained - planned) < kRounding ? planned : attained;
    const auto unit = static_cast<std::size_t>(std::find(units_.begin(), units_.end(), turn.unit) -
                                               units_.begin());
    ran_[unit * types() + turn.type] += seconds;
    type_ran_[turn.type] += seconds;
  }
}

void RoundBook::remove_ended() {
  const auto ended = [&](JobIndex job) {
    return job != kNoJob && view_.jobs[job].phase == JobPhase::kEnded;
  };
  std::size_t kept = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (ended(units_[unit].first) || ended(units_[unit].second)) {
      outdated_ = true;
      continue;
    }
    units_[kept] = units_[unit];
    for (std::size_t type = 0; type < types(); ++type) {
      for (std::vector<double>* values : {&ran_, &owed_, &share_}) {
        (*values)[kept * types() + type] = (*values)[unit * types() + type];
      }
    }
    ++kept;
  }
  units_.resize(kept);
  for (std::vector<double>* values : {&ran_, &owed_, &share_}) values->resize(kept * types());
}

void RoundBook::enter_arrived() {
  for (const JobIndex job : view_.arrived) {
    outdated_ = true;
    const std::vector<JobIndex> others = jobs();
    enter({job, kNoJob}, rules_.round / 2);
    if (!rules_.pairs) continue;
    for (const JobIndex other : others) {
      if (view_.jobs[other].gpus == view_.jobs[job].gpus) enter({other, job}, 0);
    }
  }
}

void RoundBook::enter(Unit unit, double ran) {
  units_.push_back(unit);
  ran_.resize(ran_.size() + types(), ran);
  owed_.resize(owed_.size() + types(), 0);
  share_.resize(share_.size() + types(), kNoShare);
}

std::vector<JobIndex> RoundBook::jobs() const {
  std::vector<JobIndex> jobs;
  for (const Unit& unit : units_) {
    if (!unit.is_pair()) jobs.push_back(unit.first);
  }
  return jobs;
}

ThroughputTable::Pair RoundBook::rates(const Unit& unit, std::uint32_t type) const {
  const ThroughputTable& table = *view_.models.throughputs;
  const std::uint32_t first = view_.jobs[unit.first].profile;
  if (!unit.is_pair()) {
    const double rate = table.alone(table_types_[type], first);
    return {rate, rate};
  }
  return table.together(table_types_[type], first, view_.jobs[unit.second].profile);
}

bool RoundBook::due() const {
  if (!outdated_) return false;
  const bool stuck = idle_ && closed_ == view_.now;
  return stuck || last_reset_ == 0 || view_.now - last_reset_ >= rules_.between_resets;
}

void RoundBook::reset(const std::function<double(const Unit&, std::uint32_t)>& shares) {
  const double elapsed = view_.now - (idle_ && closed_ == view_.now ? 0 : last_reset_);
  const double begin = rules_.round / 2;
  std::fill(type_ran_.begin(), type_ran_.end(), 0);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (std::uint32_t type = 0; type < types(); ++type) {
      const std::size_t i = unit * types() + type;
      const double due = share_[i] < 0 ? 0 : share_[i] * elapsed;
      owed_[i] += due - (ran_[i] - begin);
      ran_[i] = begin;
      type_ran_[type] += begin;
      share_[i] = shares(units_[unit], type);
    }
  }
  last_reset_ = view_.now;
  outdated_ = false;
}

double RoundBook::priority(std::size_t unit, std::uint32_t type) const {
  const std::size_t i = unit * types() + type;
  if (share_[i] <= 0) return 0;
  const ThroughputTable::Pair rate = rates(units_[unit], type);
  if (rate.first == 0 || rate.second == 0) return 0;
  const double fraction = type_ran_[type] == 0 ? 0 : ran_[i] / type_ran_[type];
  return fraction > 0 ? share_[i] / fraction : share_[i] * kNeverRan;
}

std::vector<RoundBook::Turn> RoundBook::schedule(const std::vector<std::uint32_t>& types,
                                                 bool positive) {
  struct Entry {
    std::size_t unit;
    double priority, owed, share;
  };
  std::vector<Turn> turns;
  std::vector<std::uint8_t> taken(view_.jobs.size());
  for (const std::uint32_t type : types) {
    std::vector<Entry> entries;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const std::size_t i = unit * this->types() + type;
      entries.push_back({unit, priority(unit, type), owed_[i], std::max(share_[i], 0.0)});
    }
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.priority, a.owed, a.share) > std::tie(b.priority, b.owed, b.share);
    });
    std::int32_t left = capacity_[type];
    for (const Entry& entry : entries) {
      if (left == 0) break;
      const Unit& unit = units_[entry.unit];
      const ThroughputTable::Pair rate = rates(unit, type);
      const std::int32_t gpus = view_.jobs[unit.first].gpus;
      if (taken[unit.first] != 0 || (unit.is_pair() && taken[unit.second] != 0)) continue;
      if (rate.first <= 0 || rate.second <= 0 || gpus > left) continue;
      if (positive && entry.priority <= 0) continue;
      left -= gpus;
      taken[unit.first] = 1;
      if (unit.is_pair()) taken[unit.second] = 1;
      // Who came after the shares were computed has its place kept, and does not run yet.
      if (share_[entry.unit * this->types() + type] >= 0) turns.push_back({unit, type});
    }
  }
  return turns;
}

double RoundBook::planned_seconds(const Turn& turn) const {
  const ThroughputTable::Pair pair = rates(turn.unit, turn.type);
  const auto seconds_of = [&](JobIndex job, double rate) {
    const ClusterJob& asks = view_.jobs[job];
    const double left =
        std::round(asks.remaining * view_.models.throughputs->reference(asks.profile));
    return std::min(std::floor(rate * rules_.round), left) / rate;
  };
  double seconds = seconds_of(turn.unit.first, pair.first);
  if (turn.unit.is_pair()) seconds = std::max(seconds, seconds_of(turn.unit.second, pair.second));
  return (view_.now + seconds) - view_.now;  // rounded as the clock is
}

void RoundBook::close(const std::vector<Turn>& turns, Notes& notes) const {
  notes.lists.resize(std::max<std::size_t>(notes.lists.size(), 4));
  for (std::size_t list = 0; list < 4; ++list) notes.lists[list].clear();
  for (const Unit& unit : units_) {
    notes.lists[0].push_back(unit.first);
    notes.lists[1].push_back(unit.second);
  }
  notes.numbers.assign(kHeader, 0);
  notes.numbers[kLastReset] = last_reset_;
  notes.numbers[kOutdated] = outdated_ ? 1 : 0;
  notes.numbers[kIdle] = turns.empty() ? 1 : 0;
  notes.numbers[kClosed] = view_.now;
  for (const auto* values : {&type_ran_, &ran_, &owed_, &share_}) {
    notes.numbers.insert(notes.numbers.end(), values->begin(), values->end());
  }
  for (const Turn& turn : turns) {
    const auto unit = std::find(units_.begin(), units_.end(), turn.unit) - units_.begin();
    notes.lists[2].push_back(static_cast<JobIndex>(unit));
    notes.lists[3].push_back(turn.type);
    notes.numbers.push_back(view_.jobs[turn.unit.first].attained);
    notes.numbers.push_back(planned_seconds(turn));
  }
}

}  // namespace commensal::policies
