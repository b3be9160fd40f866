// SPDX-License-Identifier: Apache-2.0
// gandiva: equal time for all, round by round (time slicing); while more GPUs are asked for than
// there are, jobs of equal size are paired at random on the same GPUs, and a pair is parted once
// both together are slower than one alone, summed over all types. This is Gavel's model of Gandiva,
// the usual baseline; option `packing=off` leaves the pairs out. On the servers of a type, which
// are all alike to Gavel's simulator: the choice of a server by affinity, migration when somebody
// has left, grow-shrink of jobs that take more GPUs than they ask for, as gandiva_places.h has
// them; options `migration=off`, `grow-shrink=off`. Jobs that are sliced move to vacated GPUs, and
// interfering ones apart, from round to round in any case. Source: Xiao et al., OSDI'18;
// stanford-futuredata/gavel, scheduler/policies/gandiva.py.
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "coordinator/policies/gandiva_places.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/round_book.h"
#include "coordinator/policies/seeded_random.h"

namespace commensal::policies {
namespace {

// Lists of the notes behind those of the books.
constexpr std::size_t kDrawn = 4;
constexpr std::size_t kFirsts = 5;  // pairs, by position: who, with whom
constexpr std::size_t kSeconds = 6;
constexpr std::size_t kGandivaLists = 7;

class Gandiva final : public ClusterPolicy {
 public:
  Gandiva(RoundBook::Rules rules, GandivaRules places, std::uint32_t seed)
      : rules_(rules), places_(places), seed_(seed) {}

  [[nodiscard]] std::string_view needs() const noexcept override { return RoundBook::kNeeds; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    if (notes.lists.size() < kGandivaLists) {
      notes.lists.resize(kGandivaLists);
      notes.lists[kDrawn] = {0};
    }
    RoundBook book(view, notes, rules_);
    if (book.due()) reset(view, book, notes);
    std::vector<std::uint32_t> types(book.types());
    std::iota(types.begin(), types.end(), 0U);
    const std::vector<RoundBook::Turn> turns = book.schedule(types, false);
    plan_on_servers(view, turns, places_, plan);
    book.close(turns, notes);
    if (turns.empty()) plan.wake = view.now;
  }

 private:
  using Unit = RoundBook::Unit;
  using Key = std::pair<JobIndex, JobIndex>;

  void reset(const ClusterView& view, RoundBook& book, Notes& notes) const {
    const std::vector<JobIndex> jobs = book.jobs();
    std::set<Key> pairs = kept_pairs(book, notes);
    std::int32_t asked = 0;
    std::int32_t there = 0;
    for (const JobIndex job : jobs) asked += view.jobs[job].gpus;
    for (const std::int32_t gpus : book.capacity()) there += gpus;
    std::set<Key> units;
    const bool packs = rules_.pairs && asked > there;
    if (packs) {
      SeededRandom random(seed_, notes.lists[kDrawn][0]);
      add_pairs(view, jobs, random, pairs);
      notes.lists[kDrawn][0] = static_cast<JobIndex>(random.drawn());
      units = pairs;
    }
    for (const JobIndex job : jobs) {
      if (!packs || !paired(pairs, job)) units.insert({job, kNoJob});
    }
    remember(pairs, notes);
    book.reset([&](const Unit& unit, std::uint32_t type) {
      if (!units.contains({unit.first, unit.second})) return 0.0;
      return equal_share(view, book, unit, type, static_cast<double>(units.size()));
    });
  }

  static bool paired(const std::set<Key>& pairs, JobIndex job) {
    return std::any_of(pairs.begin(), pairs.end(),
                       [&](const Key& pair) { return pair.first == job || pair.second == job; });
  }

  static double equal_share(const ClusterView& view, const RoundBook& book, const Unit& unit,
                            std::uint32_t type, double units) {
    const double gpus = view.jobs[unit.first].gpus;
    double sum = 0;
    for (const std::int32_t capacity : book.capacity()) sum += capacity / units / gpus;
    return book.capacity()[type] / units / gpus / std::max(sum, 1.0);
  }

  /// Pairs of which both are still here and which are worth it.
  static std::set<Key> kept_pairs(const RoundBook& book, const Notes& notes) {
    std::set<Key> pairs;
    for (std::size_t i = 0; i < notes.lists[kFirsts].size(); ++i) {
      const Unit unit{notes.lists[kFirsts][i], notes.lists[kSeconds][i]};
      const bool here =
          std::find(book.units().begin(), book.units().end(), unit) != book.units().end();
      if (here && worth(book, unit) >= 1) pairs.insert({unit.first, unit.second});
    }
    return pairs;
  }

  /// Speeds of both as parts of their speeds alone, summed over all types; zero if a type has none.
  static double worth(const RoundBook& book, const Unit& unit) {
    double sum = 0;
    for (std::uint32_t type = 0; type < book.types(); ++type) {
      const ThroughputTable::Pair rates = book.rates(unit, type);
      if (rates.first <= 0 || rates.second <= 0) return 0;
      sum += rates.first / book.rates({unit.first, kNoJob}, type).first;
      sum += rates.second / book.rates({unit.second, kNoJob}, type).first;
    }
    return sum;
  }

  static void add_pairs(const ClusterView& view, const std::vector<JobIndex>& jobs,
                        SeededRandom& random, std::set<Key>& pairs) {
    std::vector<JobIndex> alone;
    for (const JobIndex job : jobs) {
      if (!paired(pairs, job)) alone.push_back(job);
    }
    for (std::size_t tries = alone.size(); tries > 0 && alone.size() > 1; --tries) {
      const auto [a, b] = random.two_of(static_cast<std::uint32_t>(alone.size()));
      const JobIndex one = alone[a];
      const JobIndex other = alone[b];
      if (view.jobs[one].gpus != view.jobs[other].gpus) continue;
      std::erase_if(alone, [&](JobIndex job) { return job == one || job == other; });
      pairs.insert(std::minmax(one, other));
    }
  }

  static void remember(const std::set<Key>& pairs, Notes& notes) {
    notes.lists[kFirsts].clear();
    notes.lists[kSeconds].clear();
    for (const auto& [first, second] : pairs) {
      notes.lists[kFirsts].push_back(first);
      notes.lists[kSeconds].push_back(second);
    }
  }

  RoundBook::Rules rules_;
  GandivaRules places_;
  std::uint32_t seed_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_gandiva(Options& options) {
  RoundBook::Rules rules;
  rules.round = options.number("round", rules.round);
  rules.between_resets = options.number("reset", rules.between_resets);
  rules.pairs = options.choice("packing", "on", {"on", "off"}) == "on";
  GandivaRules places;
  places.migrates = options.choice("migration", "on", {"on", "off"}) == "on";
  places.grows = options.choice("grow-shrink", "on", {"on", "off"}) == "on";
  return std::make_unique<Gandiva>(rules, places,
                                   static_cast<std::uint32_t>(options.number("seed", 0)));
}

}  // namespace commensal::policies
