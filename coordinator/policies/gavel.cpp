// SPDX-License-Identifier: Apache-2.0
// gavel: in rounds, jobs run on the types of GPU on which they are furthest behind the share of
// time that an objective gives them; shares are computed anew when jobs came or ended, at most
// every 1,920 s. Objectives: fairness (least attained service), makespan and throughput by linear
// programs, each with what every model is like on every type ("gavel") or as if types were alike
// ("agnostic"), or also with every two jobs of equal size on the same GPUs, as measured ("packed");
// equal parts ("isolated"); first come, first served, on the fastest type or on any. Not in it:
// SLOs, prices. Source: Narayanan et al., OSDI'20;
// stanford-futuredata/gavel, scheduler/policies.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "coordinator/policies/gavel_fifo.h"
#include "coordinator/policies/gavel_shares.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/round_book.h"
#include "coordinator/policies/round_plan.h"
#include "coordinator/policies/seeded_random.h"

namespace commensal::policies {
namespace {

enum class Goal : std::uint8_t { kEqual, kFairness, kMakespan, kThroughput, kFifo };

struct Objective {
  std::string_view name;
  Goal goal;
  bool aware;  // of how fast models are on each type
  bool packs = false;
};
constexpr std::array<Objective, 11> kObjectives{
    {{"las gavel", Goal::kFairness, true},
     {"las agnostic", Goal::kFairness, false},
     {"las packed", Goal::kFairness, true, true},
     {"makespan gavel", Goal::kMakespan, true},
     {"makespan agnostic", Goal::kMakespan, false},
     {"makespan packed", Goal::kMakespan, true, true},
     {"max throughput", Goal::kThroughput, true},
     {"max throughput packed", Goal::kThroughput, true, true},
     {"isolated", Goal::kEqual, false},
     {"fifo aware", Goal::kFifo, true},
     {"fifo agnostic", Goal::kFifo, false}}};
constexpr std::uint32_t kShufflesBehindSeed =
    5;  // as in the original, whose generators are several

/// Types by their names, the order in which the original lists them for an objective.
std::vector<std::uint32_t> by_name(const Cluster& cluster) {
  std::vector<std::uint32_t> types(cluster.types().size());
  std::iota(types.begin(), types.end(), 0U);
  std::sort(types.begin(), types.end(), [&](std::uint32_t a, std::uint32_t b) {
    return cluster.types()[a] < cluster.types()[b];
  });
  return types;
}

class Gavel final : public ClusterPolicy {
 public:
  Gavel(const Objective& objective, RoundBook::Rules rules, std::uint32_t seed)
      : objective_(objective), rules_(rules), seed_(seed) {}

  [[nodiscard]] std::string_view needs() const noexcept override { return RoundBook::kNeeds; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    Draws draws(notes);
    RoundBook book(view, notes, rules_);
    if (book.due()) reset(view, book, notes, draws);
    std::vector<std::uint32_t> types(book.types());
    std::iota(types.begin(), types.end(), 0U);
    if (!objective_.aware) {
      SeededRandom random(seed_ + kShufflesBehindSeed, draws.shuffles);
      random.shuffle(types);
      draws.shuffles = random.drawn();
    }
    const std::vector<RoundBook::Turn> turns = book.schedule(types, objective_.goal == Goal::kFifo);
    plan_round(view, turns, plan);
    book.close(turns, notes);
    draws.write(notes);
    if (turns.empty()) plan.wake = view.now;
  }

 private:
  /// How many random numbers were drawn so far, in the notes behind the lists of the books.
  struct Draws {
    std::uint64_t shuffles = 0;
    std::uint64_t types = 0;
    explicit Draws(const Notes& notes) {
      if (notes.lists.size() < 5) return;
      shuffles = notes.lists[4][0];
      types = notes.lists[4][1];
    }
    void write(Notes& notes) const {
      notes.lists.resize(5);
      notes.lists[4] = {static_cast<JobIndex>(shuffles), static_cast<JobIndex>(types)};
    }
  };

  void reset(const ClusterView& view, RoundBook& book, Notes& notes, Draws& draws) const {
    const std::vector<JobIndex> jobs = book.jobs();
    const std::vector<std::uint32_t> types = by_name(*view.cluster);
    ByJobAndType rates;
    for (const JobIndex job : jobs) {
      rates.emplace_back();
      for (const std::uint32_t type : types) {
        rates.back().push_back(book.rates({job, kNoJob}, type).first);
      }
    }
    ShareProblem problem{
        .rates = std::move(rates), .gpus = {}, .weights = {}, .steps = {}, .capacity = {}};
    for (const JobIndex job : jobs) {
      const ThroughputTable& table = *view.models.throughputs;
      problem.gpus.push_back(view.jobs[job].gpus);
      problem.weights.push_back(view.jobs[job].weight);
      problem.steps.push_back(view.jobs[job].remaining * table.reference(view.jobs[job].profile));
    }
    for (const std::uint32_t type : types) problem.capacity.push_back(book.capacity()[type]);
    const Rows rows = add_pairs(jobs, types, book, problem);
    SeededRandom random(seed_, draws.types);
    const Shares shares = jobs.empty() ? Shares{} : divide(view, jobs, problem, notes, random);
    draws.types = random.drawn();
    std::vector<std::size_t> column(types.size());
    for (std::size_t i = 0; i < types.size(); ++i) column[types[i]] = i;
    book.reset([&](const RoundBook::Unit& unit, std::uint32_t type) {
      const auto row = rows.find({unit.first, unit.second});
      return row == rows.end() ? 0 : shares[row->second][column[type]];
    });
  }

  /// Jobs and pairs, by their rows in the shares.
  using Rows = std::map<std::pair<JobIndex, JobIndex>, std::size_t>;

  /// Adds pairs that are worth it on some type: faster together than one after the other.
  static Rows add_pairs(const std::vector<JobIndex>& jobs, const std::vector<std::uint32_t>& types,
                        const RoundBook& book, ShareProblem& problem) {
    Rows rows;
    for (std::size_t row = 0; row < jobs.size(); ++row) rows[{jobs[row], kNoJob}] = row;
    for (const RoundBook::Unit& unit : book.units()) {
      if (!unit.is_pair()) continue;
      SharedUnit pair{.first = rows.at({unit.first, kNoJob}),
                      .second = rows.at({unit.second, kNoJob}),
                      .first_rates = {},
                      .second_rates = {}};
      bool any = false;
      for (std::size_t i = 0; i < types.size(); ++i) {
        const ThroughputTable::Pair rates = book.rates(unit, types[i]);
        const double first = problem.rates[pair.first][i];
        const double second = problem.rates[pair.second][i];
        const bool worth = rates.first > 0 && rates.second > 0 && first > 0 && second > 0 &&
                           rates.first / first + rates.second / second > 1;
        pair.first_rates.push_back(worth ? rates.first : 0);
        pair.second_rates.push_back(worth ? rates.second : 0);
        any = any || worth;
      }
      if (!any) continue;
      rows[{unit.first, unit.second}] = jobs.size() + problem.pairs.size();
      problem.pairs.push_back(std::move(pair));
    }
    return rows;
  }

  [[nodiscard]] Shares divide(const ClusterView& view, const std::vector<JobIndex>& jobs,
                              ShareProblem& problem, Notes& notes, SeededRandom& random) const {
    switch (objective_.goal) {
      case Goal::kEqual: return equal_shares(problem);
      case Goal::kFairness:
        if (!objective_.aware) alike(problem, [](std::size_t /*row*/) { return 1.0; });
        return max_min_shares(problem);
      case Goal::kMakespan:
        if (!objective_.aware) {
          alike(problem, [&](std::size_t row) {
            return view.models.throughputs->reference(view.jobs[jobs[row]].profile);
          });
        }
        return least_makespan_shares(problem);
      case Goal::kThroughput: return max_throughput_shares(problem);
      case Goal::kFifo: break;
    }
    return objective_.aware ? fastest_types(problem) : kept_types(jobs, problem, notes, random);
  }

  template <typename Rate>
  static void alike(ShareProblem& problem, const Rate& rate) {
    for (std::size_t row = 0; row < problem.rates.size(); ++row) {
      std::fill(problem.rates[row].begin(), problem.rates[row].end(), rate(row));
    }
  }

  Objective objective_;
  RoundBook::Rules rules_;
  std::uint32_t seed_;
};

std::unique_ptr<ClusterPolicy> make(std::string_view name, Options& options) {
  const auto* const objective =
      std::find_if(kObjectives.begin(), kObjectives.end(),
                   [&](const Objective& known) { return known.name == name; });
  RoundBook::Rules rules;
  rules.pairs = objective->packs;
  rules.round = options.number("round", rules.round);
  rules.between_resets = options.number("reset", rules.between_resets);
  return std::make_unique<Gavel>(*objective, rules,
                                 static_cast<std::uint32_t>(options.number("seed", 0)));
}

}  // namespace

std::unique_ptr<ClusterPolicy> make_gavel(Options& options) {
  std::vector<std::string> names;
  names.reserve(kObjectives.size());
  for (const Objective& objective : kObjectives) names.emplace_back(objective.name);
  return make(options.choice("objective", kObjectives.front().name, names), options);
}

std::unique_ptr<ClusterPolicy> make_gavel_fifo(bool aware, Options& options) {
  return make(aware ? "fifo aware" : "fifo agnostic", options);
}

}  // namespace commensal::policies
