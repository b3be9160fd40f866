// SPDX-License-Identifier: Apache-2.0
// What holds for every policy, on clusters and jobs that are drawn: a new policy only joins
// all_policies(). A failure prints its seed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/policies/plan_rules.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::policy_rules_test {
namespace {

using ::testing::HasSubstr;

/// Lets a policy decide, and a fresh one about the same; returns what differs, or what is wrong.
std::string fault(const ClusterPolicy& used, const ClusterPolicy& fresh, const ClusterView& view,
                  Notes& notes, ClusterPlan& plan) {
  Notes repeated_notes = notes;
  ClusterPlan repeated;
  used.decide(view, notes, plan);
  fresh.decide(view, repeated_notes, repeated);
  if (plan != repeated) return "equal view and notes give another plan";
  if (notes != repeated_notes) return "equal view and notes give other notes";
  for (const Decision& decision : plan.decisions) {
    if (to_string(decision.reason).empty()) return "a decision has no reason";
  }
  return broken_rule(view, plan);
}

/// A policy that is watched.
class Witness final : public ClusterPolicy {
 public:
  using Look = std::function<void(const ClusterView&, const ClusterPlan&)>;

  explicit Witness(std::string_view name, std::map<std::string, std::string> options = {})
      : name_(name), options_(std::move(options)), policy_(make_policy(name, options_)) {}

  /// Shows each plan to somebody else, too.
  void show(Look look) { look_ = std::move(look); }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    EXPECT_EQ(fault(*policy_, *make_policy(name_, options_), view, notes, plan), "");
    if (look_) look_(view, plan);
  }

 private:
  Look look_;
  std::string_view name_;
  std::map<std::string, std::string> options_;
  std::unique_ptr<ClusterPolicy> policy_;
};

/// What no policy may do: starts a job only when asked for the second time.
class Remembers final : public ClusterPolicy {
 public:
  void decide(const ClusterView& /*view*/, Notes& /*notes*/, ClusterPlan& plan) const override {
    if (++asked_ > 1) plan.decisions.push_back({0, Action::kStart, {}, {"it was asked before"}});
  }

 private:
  mutable int asked_ = 0;
};

TEST(PolicyRulesTwinTest, APolicyThatRemembersOutsideOfItsNotesIsFound) {
  const CountedPlacer placer;
  ClusterState state{Cluster(equal_nodes(1, 1))};
  state.arrive(job_of(1, 10));
  const ClusterView view{.now = 0,
                         .jobs = state.jobs(),
                         .arrived = {},
                         .ended = {},
                         .running = {},
                         .tenants = {},
                         .cluster = &state.cluster(),
                         .placer = &placer,
                         .models = {}};
  const Remembers used;
  Notes notes;
  ClusterPlan plan;
  EXPECT_EQ(fault(used, Remembers{}, view, notes, plan), "");
  EXPECT_THAT(fault(used, Remembers{}, view, notes, plan), HasSubstr("another plan"));
}

class PolicyRulesTest : public ::testing::TestWithParam<std::string_view> {};

/// Runs drawn jobs to their ends, in steps from event to event.
class Day {
 public:
  Day(std::string_view policy, const Placer& placer, std::uint32_t seed,
      std::vector<Tenant> tenants = {}, std::map<std::string, std::string> options = {},
      std::vector<NodeSpec> nodes = equal_nodes(4, 4))
      : placer_(placer),
        witness_(policy, std::move(options)),
        state_(Cluster(std::move(nodes)), std::move(tenants)) {
    std::mt19937 random(seed);
    jobs_ = random_jobs(random, 60, 16);
  }

  /// Gives jobs to tenants in turn, and lets them run with half or twice of what they ask for.
  void divide_among(TenantIndex tenants) {
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      ClusterJob& job = jobs_[i];
      job.tenant = static_cast<TenantIndex>(i) % tenants;
      job.min_gpus = std::max(1, job.gpus / 2);
      job.max_gpus = std::min(16, job.gpus * 2);
    }
  }

  /// Every second job has much in its largest tensor.
  void draw_skews() {
    for (std::size_t i = 0; i < jobs_.size(); ++i) jobs_[i].skew = i % 2 == 0 ? 0.7 : 0.1;
  }

  /// Most jobs have a minimum of share or memory, some of both.
  void draw_minima() {
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      const auto number = static_cast<std::int32_t>(i);
      jobs_[i].minima = {.share_milli = number % 5 * 200, .memory_mib = number % 3 * 400};
    }
  }

  /// Lets no job of a tenant ask for more than its quota.
  void cap(TenantIndex tenant, std::int32_t gpus) {
    for (ClusterJob& job : jobs_) {
      if (job.tenant != tenant) continue;
      job.gpus = std::min(job.gpus, gpus);
      job.min_gpus = std::min(job.min_gpus, gpus);
    }
  }

  /// Returns how many ended; fewer than there are: the others wait for ever.
  std::size_t run() {
    for (int event = 0; event < 20'000 && ended_ < jobs_.size(); ++event) {
      const Time next = std::min({arrival(), end(), wake_});
      if (next == kNever) break;
      go_to(next);
      while (arrival() <= now_) state_.arrive(jobs_[arrived_++]);
      const ClusterPlan plan = state_.decide(witness_, placer_, {}, now_);
      state_.commit(plan);
      wake_ = plan.wake <= now_ ? kNever : plan.wake;
      if (::testing::Test::HasFailure()) break;
    }
    return ended_;
  }

  /// Lets other jobs arrive in place of those that were drawn.
  void jobs(std::vector<ClusterJob> jobs) { jobs_ = std::move(jobs); }
  void show(Witness::Look look) { witness_.show(std::move(look)); }

  [[nodiscard]] std::size_t jobs() const { return jobs_.size(); }
  [[nodiscard]] ClusterState& state() { return state_; }

 private:
  [[nodiscard]] Time arrival() const {
    return arrived_ < jobs_.size() ? jobs_[arrived_].submit : kNever;
  }

  [[nodiscard]] Time end() {
    Time first = kNever;
    for (const JobIndex job : state_.running()) {
      first = std::min(first, now_ + state_.jobs()[job].remaining);
    }
    return first;
  }

  void go_to(Time time) {
    std::vector<JobIndex> due;
    for (const JobIndex index : state_.running()) {
      ClusterJob& job = state_.jobs()[index];
      job.attained += time - now_;
      job.remaining = std::max(0.0, job.remaining - (time - now_));
      if (job.remaining < 1e-6) due.push_back(index);  // less than the clock can tell
    }
    for (const JobIndex job : due) state_.end(job);
    ended_ += due.size();
    now_ = time;
  }

  const Placer& placer_;
  Witness witness_;
  ClusterState state_;
  std::vector<ClusterJob> jobs_;
  std::size_t arrived_ = 0;
  std::size_t ended_ = 0;
  Time now_ = 0;
  Time wake_ = kNever;
};

TEST_P(PolicyRulesTest, EqualViewsGiveEqualPlansThatKeepTheRulesAndLoseNobody) {
  const FirstNodePlacer first_node;
  const CountedPlacer counted;
  const ConsolidatingPlacer consolidating;
  for (const Placer* placer :
       {static_cast<const Placer*>(&first_node), static_cast<const Placer*>(&counted),
        static_cast<const Placer*>(&consolidating)}) {
    for (std::uint32_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed);
      Day day(GetParam(), *placer, seed);
      ASSERT_EQ(day.run(), day.jobs());
      // All that was taken was given back.
      EXPECT_EQ(day.state().cluster(), Cluster(equal_nodes(4, 4)));
    }
  }
}

TEST_P(PolicyRulesTest, MinimaAreKeptAndLoseNobody) {
  const FirstNodePlacer placer;
  std::vector<NodeSpec> nodes = equal_nodes(4, 4);
  for (NodeSpec& node : nodes) node.gpu_memory_mib = 1000;
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Day day(GetParam(), placer, seed, {}, {}, nodes);
    day.draw_minima();
    ASSERT_EQ(day.run(), day.jobs());
    EXPECT_EQ(day.state().cluster(), Cluster(nodes));
  }
}

INSTANTIATE_TEST_SUITE_P(AllPolicies, PolicyRulesTest, ::testing::ValuesIn([] {
                           std::vector<std::string_view> names;
                           for (const PolicyEntry& entry : all_policies()) {
                             if (!needs_models(entry.name)) names.push_back(entry.name);
                           }
                           return names;
                         }()),
                         [](const auto& policy) {
                           std::string name(policy.param);
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return "policy_" + name;
                         });

// Guaranteed jobs before auto jobs.

/// What of a plan matters to guaranteed jobs that wait on.
class PassedOver {
 public:
  PassedOver(const ClusterView& view, const ClusterPlan& plan) : view_(view) {
    for (const ClusterJob& job : view.jobs) reserved_.push_back(job.reserved);
    for (const Tenant& tenant : view.tenants) charged_.push_back(tenant.charged_milli / kWholeGpu);
    for (const Decision& decision : plan.decisions) follow(decision);
  }

  /// Auto jobs that the plan makes guaranteed, with the GPUs that they have then.
  [[nodiscard]] const std::map<JobIndex, Placement>& made_guaranteed() const { return made_; }

  /// Guaranteed jobs that wait on, though their tenants' quotas have room for them and for those of
  /// the tenant before them.
  [[nodiscard]] std::vector<JobIndex> waiting() const {
    std::vector<JobIndex> waiting;
    std::vector<std::int32_t> asked = charged_;
    for (JobIndex index = 0; index < view_.jobs.size(); ++index) {
      const ClusterJob& job = view_.jobs[index];
      if (job.phase != JobPhase::kWaiting || starts_.contains(index)) continue;
      if (job.asked != AskedClass::kGuaranteed) continue;
      asked[job.tenant] += job.gpus;
      if (asked[job.tenant] <= limit(job.tenant)) waiting.push_back(index);
    }
    return waiting;
  }

  /// Says who takes GPUs or quota before an earlier one; empty: nobody.
  [[nodiscard]] std::string who() const {
    const std::vector<JobIndex> waiting = this->waiting();
    for (const auto& [made, placement] : made_) {
      for (const JobIndex waits : waiting) {
        if (waits > made) break;
        const bool on_its_nodes =
            std::any_of(placement.begin(), placement.end(),
                        [&](const GpuPart& part) { return could_use(waits, part.node); });
        if (!on_its_nodes && !takes_quota(waits)) continue;
        return fmt::format("auto job {} becomes guaranteed before job {}, which waits: {}", made,
                           waits,
                           on_its_nodes ? "it could use its GPUs" : "the quota is full then");
      }
    }
    return {};
  }

 private:
  void follow(const Decision& decision) {
    const ClusterJob& job = view_.jobs[decision.job];
    const bool is_auto = job.asked == AskedClass::kAuto;
    const bool starts = decision.action == Action::kStart;
    if (starts) starts_.insert(decision.job);
    if (decision.action == Action::kReserve) reserved_[decision.job] = decision.placement;
    const bool stops = decision.action == Action::kStop && job.job_class == JobClass::kGuaranteed;
    if (stops) charged_[job.tenant] -= job.gpus;
    const bool becomes = (starts && decision.job_class == JobClass::kGuaranteed) ||
                         decision.action == Action::kUpgrade;
    if (!becomes) return;
    if (is_auto) {
      made_[decision.job] = starts ? decision.placement : job.placement;
      by_auto_[job.tenant] += job.gpus;
    } else {
      charged_[job.tenant] += job.gpus;
    }
  }

  [[nodiscard]] std::int32_t limit(TenantIndex tenant) const {
    return view_.tenants[tenant].quota.value_or(view_.cluster->total_gpus());
  }

  [[nodiscard]] bool takes_quota(JobIndex waits) const {
    const ClusterJob& job = view_.jobs[waits];
    const auto more = by_auto_.find(job.tenant);
    return view_.tenants[job.tenant].quota && more != by_auto_.end() &&
           charged_[job.tenant] + more->second + job.gpus > limit(job.tenant);
  }

  /// Whether a job that waits could ever be on a node; who has reserved a part of one node stays
  /// there.
  [[nodiscard]] bool could_use(JobIndex waits, NodeIndex node) const {
    const ClusterJob& job = view_.jobs[waits];
    const NodeSpec& spec = view_.cluster->nodes()[node];
    if (job.gpu_types != 0 && (job.gpu_types >> spec.type & 1U) == 0) return false;
    if (job.gpus > view_.index->most_on_a_node()) return true;
    const Placement& reserved = reserved_[waits];
    return job.gpus <= spec.gpus && (reserved.empty() || reserved.front().node == node);
  }

  const ClusterView& view_;
  std::vector<Placement> reserved_;
  std::vector<std::int32_t> charged_;  // by tenant, without auto jobs that become guaranteed
  std::map<TenantIndex, std::int32_t> by_auto_;
  std::set<JobIndex> starts_;
  std::map<JobIndex, Placement> made_;
};

/// Jobs of three tenants in turn; a third are auto, and some take one of two types of GPU only.
std::vector<ClusterJob> mixed_jobs(std::uint32_t seed, const Cluster& cluster) {
  std::mt19937 random(seed);
  const std::int32_t per_node = cluster.nodes().front().gpus;
  std::vector<ClusterJob> jobs = random_jobs(random, 60, cluster.total_gpus());
  std::uniform_int_distribution<std::uint32_t> draw(0, 5);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    ClusterJob& job = jobs[i];
    job.tenant = static_cast<TenantIndex>(i % 3);
    if (job.tenant == 0) job.gpus = std::min(job.gpus, 2);
    job.min_gpus = job.max_gpus = job.gpus;
    job.load_milli = 300;
    if (draw(random) < 2) job.asked = AskedClass::kAuto;
    if (draw(random) == 0 && job.gpus <= per_node) {
      job.gpu_types = 1U << (draw(random) % cluster.types().size());
    }
  }
  return jobs;
}

TEST_P(PolicyRulesTest, NoAutoJobBecomesGuaranteedWhereAnEarlierGuaranteedOneWaits) {
  const FirstNodePlacer placer;
  bool knows_classes = false;
  std::size_t made = 0;
  std::size_t waited = 0;
  std::vector<std::string> passed;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::vector<NodeSpec> nodes = equal_nodes(1 + static_cast<std::int32_t>(seed % 4),
                                              1 + static_cast<std::int32_t>(seed % 3));
    for (std::size_t i = 0; i < nodes.size(); i += 2) nodes[i].gpu_type = "a";
    const Cluster cluster(nodes);
    Day day(GetParam(), placer, seed,
            {{.name = "few", .quota = 2},
             {.name = "all", .quota = cluster.total_gpus()},
             {.name = "free", .quota = {}}},
            {}, nodes);
    day.jobs(mixed_jobs(seed, cluster));
    day.show([&](const ClusterView& view, const ClusterPlan& plan) {
      for (const Decision& decision : plan.decisions) {
        knows_classes |= decision.job_class == JobClass::kOpportunistic;
      }
      const PassedOver looked(view, plan);
      made += looked.made_guaranteed().size();
      waited += looked.waiting().size();
      if (std::string who = looked.who(); !who.empty()) passed.push_back(std::move(who));
    });
    const std::size_t ended = day.run();
    // There gangs may keep from each other what they wait for, as in its source.
    EXPECT_TRUE(ended == day.jobs() || GetParam() == "muri-antman") << ended;
  }
  EXPECT_GT(waited, 0U) << "else nothing is shown";
  // Who knows no classes runs all jobs as guaranteed, in an order of its own.
  if (!knows_classes) return;
  EXPECT_THAT(passed, ::testing::IsEmpty());
  EXPECT_EQ(made > 0, GetParam() != "muri-antman") << "there an auto job is an opportunistic one";
}

TEST_P(PolicyRulesTest, AGuaranteedJobWaitsForTheOneThatRunsAndNotForAutoJobsThatCameLater) {
  const FirstNodePlacer placer;
  std::vector<ClusterJob> jobs;
  for (int i = 0; i < 60; ++i) {
    ClusterJob job = job_of(1, 100, i * 80.0);
    job.asked = AskedClass::kAuto;
    job.load_milli = 300;
    jobs.push_back(job);
    if (i > 0) continue;
    job = job_of(1, 100, 10);
    job.tenant = 1;
    job.load_milli = 300;
    jobs.push_back(job);
  }
  Day day(GetParam(), placer, 0, {{.name = "vision", .quota = 1}, {.name = "nlp", .quota = 4}}, {},
          equal_nodes(1, 1));
  day.jobs(jobs);
  Time ended = 0;
  day.show([&](const ClusterView& view, const ClusterPlan&) {
    const auto end = std::find(view.ended.begin(), view.ended.end(), 1U);
    if (end != view.ended.end()) ended = view.now;
  });
  EXPECT_EQ(day.run(), day.jobs());
  EXPECT_LE(ended, 200);
}

class SkewRulesTest : public ::testing::TestWithParam<std::string_view> {};

TEST_P(SkewRulesTest, PlacingBySkewKeepsTheRulesAndLosesNobody) {
  const CountedPlacer placer;
  for (std::uint32_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Day day(GetParam(), placer, seed, {}, {{"placement", "skew"}});
    day.draw_skews();
    ASSERT_EQ(day.run(), day.jobs());
    EXPECT_EQ(day.state().cluster(), Cluster(equal_nodes(4, 4)));
  }
}

INSTANTIATE_TEST_SUITE_P(TiresiasPolicies, SkewRulesTest,
                         ::testing::Values("las", "2d-las", "2d-gittins", "srtf", "srsf",
                                           "smallest-first", "tiresias"),
                         [](const auto& policy) {
                           std::string name(policy.param);
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return "policy_" + name;
                         });

class QuotaRulesTest : public ::testing::TestWithParam<std::string_view> {};

TEST_P(QuotaRulesTest, NoQuotaIsBrokenAndNobodyIsLost) {
  const std::vector<Tenant> tenants{
      {.name = "few", .quota = 8}, {.name = "all", .quota = 16}, {.name = "free", .quota = {}}};
  const FirstNodePlacer placer;
  for (std::uint32_t seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Day day(GetParam(), placer, seed, tenants);
    day.divide_among(3);
    day.cap(0, 8);
    ASSERT_EQ(day.run(), day.jobs());
    EXPECT_EQ(day.state().cluster(), Cluster(equal_nodes(4, 4)));
    for (const Tenant& tenant : day.state().tenants()) EXPECT_EQ(tenant.charged_milli, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(PoliciesWithQuotas, QuotaRulesTest,
                         ::testing::Values("antman", "best-fit", "dragon", "pai", "philly"),
                         [](const auto& policy) {
                           std::string name(policy.param);
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

TEST(PolicyModelsTest, WhoDecidesByModelsSaysSoWhereThereAreNone) {
  const CountedPlacer placer;
  for (const PolicyEntry& entry : all_policies()) {
    if (!needs_models(entry.name)) continue;
    ClusterState state{Cluster(equal_nodes(1, 1))};
    state.arrive(job_of(1, 10));
    const auto policy = make_policy(entry.name, {});
    EXPECT_THAT([&] { (void)state.decide(*policy, placer, {}, 0); },
                ::testing::ThrowsMessage<std::invalid_argument>(HasSubstr("needs")))
        << entry.name;
  }
}

TEST(RegistryTest, PoliciesStandInTheOrderOfTheirNamesEachWithASummary) {
  const auto& all = all_policies();
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const PolicyEntry& entry : all) EXPECT_FALSE(entry.summary.empty()) << entry.name;
}

std::string refusal(std::string_view name, const std::map<std::string, std::string>& options) {
  try {
    (void)make_policy(name, options);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(RegistryTest, NamesTheNearestOfWhatDoesNotExist) {
  EXPECT_THAT(refusal("2dlas", {}), HasSubstr("no policy 2dlas; did you mean 2d-las?"));
  EXPECT_THAT(refusal("las", {{"first_limit", "1"}}),
              HasSubstr("las has no option first_limit; did you mean first-limit?"));
  EXPECT_THAT(refusal("fit-first", {{"speed", "1"}}),
              HasSubstr("has no option speed; it has none"));
}

TEST(RegistryTest, ChecksTheValuesOfOptions) {
  EXPECT_THAT(refusal("las", {{"first-limit", "soon"}}),
              HasSubstr("first-limit is no number: soon"));
  EXPECT_THAT(refusal("2d-las", {{"crossing", "round"}}), HasSubstr("round"));
}

}  // namespace
}  // namespace commensal::policies::policy_rules_test
