// SPDX-License-Identifier: Apache-2.0
// How a device's memory is divided, with reasons; rules that hold for every view.
#include "coordinator/node/memory_arbiter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

namespace commensal::node::memory_arbiter_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;
using policies::DeviceView;
using policies::JobView;
using policies::MemoryChange;
using policies::Plan;
using policies::Stage;
using policies::StageChange;
using ::testing::HasSubstr;

JobView guaranteed(const char* id, Bytes floor, std::optional<Bytes> max, Bytes wanted,
                   Bytes limit = 0_B) {
  JobView job;
  job.id = JobId{id};
  job.job_class = JobClass::kGuaranteed;
  job.memory = {floor, max};
  job.wanted = wanted;
  job.limit = limit;
  return job;
}

JobView opportunistic(const char* id, Bytes min, std::optional<Bytes> max, Bytes limit = 0_B) {
  JobView job;
  job.id = JobId{id};
  job.memory = {min, max};
  job.limit = limit;
  return job;
}

DeviceView device(std::vector<JobView> jobs, Bytes capacity = 1000_MiB) {
  DeviceView view;
  view.id = DeviceId{"host"};
  view.capacity = capacity;
  view.jobs = std::move(jobs);
  return view;
}

std::map<std::string, MemoryChange> by_job(const Plan& plan) {
  std::map<std::string, MemoryChange> result;
  for (const MemoryChange& change : plan.memory) result[change.job.str()] = change;
  return result;
}

struct Case {
  const char* name;
  DeviceView view;
  std::map<std::string, std::pair<Bytes, std::string>> expected;  // limit, part of the reason

  friend void PrintTo(const Case& shown, std::ostream* out) { *out << shown.name; }
};

class MemoryArbiterTable : public ::testing::TestWithParam<Case> {};

TEST_P(MemoryArbiterTable, GivesLimitsWithReasons) {
  const auto changes = by_job(decide_memory(GetParam().view, {}));
  EXPECT_EQ(changes.size(), GetParam().expected.size());
  for (const auto& [job, expected] : GetParam().expected) {
    ASSERT_TRUE(changes.contains(job)) << job;
    EXPECT_EQ(changes.at(job).limit, expected.first) << job << ": " << changes.at(job).reason;
    EXPECT_THAT(changes.at(job).reason, HasSubstr(expected.second)) << job;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MemoryArbiterTable,
    ::testing::Values(
        Case{"AloneOpportunistic",
             device({opportunistic("o", 0_B, std::nullopt)}),
             {{"o", {1000_MiB, "its maximum fits"}}}},
        Case{"AloneGuaranteedGetsWhatNobodyElseUses",
             device({guaranteed("g", 0_B, std::nullopt, 100_MiB)}),
             {{"g", {1000_MiB, "its maximum"}}}},
        Case{
            "GuaranteedWithOneValue",
            device({guaranteed("g", 300_MiB, 300_MiB, 0_B), opportunistic("o", 0_B, std::nullopt)}),
            {{"g", {300_MiB, "its floor and maximum"}}, {"o", {700_MiB, "guaranteed jobs leave"}}}},
        Case{"WantsWithHeadroom",
             device({guaranteed("g", 100_MiB, std::nullopt, 400_MiB),
                     opportunistic("o", 0_B, std::nullopt)}),
             {{"g", {450_MiB, "wants 400 MiB, headroom 50 MiB"}},
              {"o", {550_MiB, "guaranteed jobs leave"}}}},
        Case{"FloorIsKeptUnused",
             device({guaranteed("g", 600_MiB, std::nullopt, 0_B),
                     opportunistic("o", 0_B, std::nullopt)}),
             {{"g", {600_MiB, "its floor"}}, {"o", {400_MiB, "guaranteed jobs leave"}}}},
        Case{"EvenPartsUpToMaxima",
             device({opportunistic("a", 0_B, 100_MiB), opportunistic("b", 0_B, std::nullopt),
                     opportunistic("c", 0_B, std::nullopt)}),
             {{"a", {100_MiB, "its maximum fits"}},
              {"b", {450_MiB, "an even part"}},
              {"c", {450_MiB, "an even part"}}}},
        Case{"MinimumBeforeGuaranteedGrowth",
             device({guaranteed("g", 100_MiB, std::nullopt, 900_MiB),
                     opportunistic("o", 300_MiB, std::nullopt)}),
             {{"g", {700_MiB, "the device is full: wants 950 MiB"}},
              {"o", {300_MiB, "its minimum, the device is full"}}}},
        Case{"FloorBeforeMinimumWhichIsParked",
             device({guaranteed("g", 800_MiB, std::nullopt, 0_B),
                     opportunistic("o", 300_MiB, std::nullopt)}),
             {{"g", {1000_MiB, "its maximum"}}}},
        Case{"TwoGuaranteedShareWhatIsLeftOfTheirWishes",
             device({guaranteed("g", 0_B, std::nullopt, 900_MiB),
                     guaranteed("h", 0_B, std::nullopt, 900_MiB)}),
             {{"g", {500_MiB, "the device is full"}}, {"h", {500_MiB, "the device is full"}}}},
        Case{
            "RestGoesBackToGuaranteed",
            device({guaranteed("g", 0_B, std::nullopt, 100_MiB), opportunistic("o", 0_B, 200_MiB)}),
            {{"g", {800_MiB, "nobody else can use it"}}, {"o", {200_MiB, "its maximum fits"}}}},
        Case{"NewGuaranteedTakesFromOpportunistic",
             device({opportunistic("o", 0_B, std::nullopt, 1000_MiB),
                     guaranteed("g", 400_MiB, 400_MiB, 0_B)}),
             {{"o", {600_MiB, "guaranteed jobs leave"}}, {"g", {400_MiB, "its floor"}}}}),
    [](const auto& c) { return std::string{c.param.name}; });

TEST(MemoryArbiter, ShrinkingComesFirst) {
  const Plan plan = decide_memory(device({guaranteed("g", 400_MiB, 400_MiB, 0_B),
                                          opportunistic("o", 0_B, std::nullopt, 1000_MiB)}),
                                  {});
  ASSERT_EQ(plan.memory.size(), 2U);
  EXPECT_EQ(plan.memory[0].job.str(), "o");
  EXPECT_EQ(plan.memory[1].job.str(), "g");
}

TEST(MemoryArbiter, SmallFluctuationsMoveNothing) {
  for (const Bytes wanted : {380_MiB, 400_MiB, 420_MiB}) {
    const Plan plan = decide_memory(device({guaranteed("g", 0_B, std::nullopt, wanted, 450_MiB),
                                            opportunistic("o", 0_B, std::nullopt, 550_MiB)}),
                                    {});
    EXPECT_TRUE(plan.memory.empty()) << to_string(wanted);
  }
}

TEST(MemoryArbiter, ReactsToGrowthAtOnceAndToDecreaseLater) {
  JobView grown = guaranteed("g", 0_B, std::nullopt, 440_MiB, 450_MiB);
  const auto up =
      by_job(decide_memory(device({grown, opportunistic("o", 0_B, std::nullopt, 550_MiB)}), {}));
  EXPECT_EQ(up.at("g").limit, 490_MiB);
  EXPECT_EQ(up.at("o").limit, 510_MiB);

  JobView fallen = guaranteed("g", 0_B, std::nullopt, 100_MiB, 450_MiB);
  fallen.lease = {400_MiB, TimePoint{1s}, 5s};
  EXPECT_TRUE(decide_memory(device({fallen, opportunistic("o", 0_B, std::nullopt, 550_MiB)}), {})
                  .memory.empty());
  fallen.lease.ends = TimePoint{};  // now: it has run out
  const auto down =
      by_job(decide_memory(device({fallen, opportunistic("o", 0_B, std::nullopt, 550_MiB)}), {}));
  EXPECT_EQ(down.at("g").limit, 150_MiB);
  EXPECT_EQ(down.at("o").limit, 850_MiB);
}

TEST(MemoryArbiter, AnOpenQuestionCountsAsWish) {
  JobView asking = guaranteed("g", 0_B, std::nullopt, 100_MiB, 150_MiB);
  asking.asked = 300_MiB;
  const auto changes =
      by_job(decide_memory(device({asking, opportunistic("o", 0_B, std::nullopt, 850_MiB)}), {}));
  EXPECT_GE(changes.at("g").limit, 300_MiB);
}

constexpr TimePoint kNow{1h};

DeviceView random_device(std::mt19937& random) {
  std::vector<JobView> jobs;
  Bytes floors;
  const Bytes capacity{random() % 5000 + 100};
  const auto ago = [&] { return kNow - std::chrono::seconds{random() % 100}; };
  for (auto i = random() % 7; i > 0; --i) {
    JobView job;
    job.id = JobId{"j" + std::to_string(i)};
    job.job_class = random() % 2 == 0 ? JobClass::kGuaranteed : JobClass::kOpportunistic;
    Bytes min{random() % 400};
    if (job.job_class == JobClass::kGuaranteed) {
      min = std::min(min, capacity - floors);
      floors += min;
    }
    job.memory.min = min;
    if (random() % 2 == 0) job.memory.max = min + Bytes{random() % 3000};
    job.wanted = Bytes{random() % 3000};
    job.lease = {job.wanted + Bytes{random() % 500}, ago() + 50s, 5s};
    job.held = Bytes{random() % 1000};
    job.limit = Bytes{random() % 1000};
    job.ranks = {{0, Bytes{random() % 1000}, job.held}};
    job.paused = random() % 6 == 0;
    if (random() % 5 == 0) job.asked = Bytes{random() % 3000};
    if (random() % 3 == 0) job.unmanaged = Bytes{random() % 500};
    if (random() % 4 == 0) {
      job.owed = Bytes{random() % 500 + 1};
      job.owed_since = ago();
    }
    if (job.job_class == JobClass::kOpportunistic && random() % 5 == 0) {
      job.stage = random() % 2 == 0 ? Stage::kPark : Stage::kMove;
      job.stage_since = ago();
    }
    for (auto n = random() % 5; n > 0; --n) {
      const Bytes limit{job.speeds.empty() ? random() % 500
                                           : job.speeds.back().limit.count() + random() % 200 + 1};
      job.speeds.push_back({limit, static_cast<double>(random() % 1000) / 10});
    }
    jobs.push_back(job);
  }
  DeviceView view = device(std::move(jobs), capacity);
  view.now = kNow;
  if (random() % 3 == 0) view.outside = Bytes{random() % 2000};
  if (random() % 4 == 0) view.claimed = Bytes{random() % 3000};
  return view;
}

/// What a plan makes of a view, in which stages begin now.
DeviceView after(DeviceView view, const Plan& plan) {
  for (JobView& job : view.jobs) {
    for (const MemoryChange& change : plan.memory) {
      if (change.job == job.id) job.limit = change.limit;
    }
    for (const StageChange& change : plan.stages) {
      if (change.job != job.id) continue;
      job.stage = change.stage;
      job.stage_since = view.now;
    }
  }
  return view;
}

/// Says which rule a plan breaks; empty: none.
std::string broken_rule(const DeviceView& view, const Plan& plan) {
  const DeviceView then = after(view, plan);
  Bytes sum;
  Bytes floors;
  Bytes reserved = view.outside;
  for (const JobView& job : then.jobs) {
    sum += job.limit;
    reserved += job.unmanaged;
    const std::string name = " of " + job.id.str();
    const bool guaranteed = job.job_class == JobClass::kGuaranteed;
    const Bytes floor = std::min(job.memory.min, view.capacity);
    if (job.limit > std::min(view.capacity, job.memory.max.value_or(view.capacity))) {
      return "above the maximum" + name;
    }
    if (guaranteed) floors += floor;
    if (guaranteed && job.limit < floor) return "below the floor" + name;
    if (guaranteed && job.stage != Stage::kNone) return "a guaranteed job is pressed";
    if (!guaranteed && job.stage == Stage::kNone && job.limit < floor) {
      return "runs below the minimum" + name;
    }
    if (job.stage != Stage::kNone && !job.limit.is_zero()) return "parked with memory" + name;
  }
  if (sum > std::max(saturating_sub(view.capacity, reserved), floors)) return "more than there is";
  bool growing = false;
  for (const MemoryChange& change : plan.memory) {
    if (change.reason.empty()) return "a change without a reason";
    const auto job = std::find_if(view.jobs.begin(), view.jobs.end(),
                                  [&](const JobView& j) { return j.id == change.job; });
    const bool grows = change.limit > job->limit;
    if (!grows && growing) return "a shrink after a growth";
    growing = growing || grows;
  }
  for (const StageChange& change : plan.stages) {
    if (change.reason.empty()) return "a stage without a reason";
  }
  return "";
}

TEST(MemoryArbiter, EveryPlanKeepsTheRules) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random{seed};
  for (int round = 0; round < 20000; ++round) {
    const DeviceView view = random_device(random);
    ASSERT_EQ(broken_rule(view, decide_memory(view, {})), "")
        << "round " << round << ", seed " << seed;
  }
}

/// The rules can be broken: by a plan without its shrinks, say, or with half of its growth missing.
TEST(MemoryArbiter, TheRulesFindAPlanThatSkipsItsShrinks) {
  std::mt19937 random{3};
  int found = 0;
  for (int round = 0; round < 1000; ++round) {
    const DeviceView view = random_device(random);
    Plan plan = decide_memory(view, {});
    std::erase_if(plan.memory, [&](const MemoryChange& change) {
      return std::any_of(view.jobs.begin(), view.jobs.end(), [&](const JobView& job) {
        return job.id == change.job && change.limit < job.limit;
      });
    });
    found += broken_rule(view, plan).empty() ? 0 : 1;
  }
  EXPECT_GT(found, 100);
}

TEST(MemoryArbiter, SettlesUnderAConstantView) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random{seed};
  for (int round = 0; round < 5000; ++round) {
    DeviceView view = random_device(random);
    int plans = 0;
    for (; plans < 40; ++plans) {
      const Plan plan = decide_memory(view, {});
      ASSERT_EQ(broken_rule(view, plan), "") << "round " << round << ", seed " << seed;
      if (plan == Plan{}) break;
      view = after(view, plan);
    }
    ASSERT_LT(plans, 40) << "bytes go round and round: round " << round << ", seed " << seed;
  }
}

// --- two phases, victims ------------------------------------------------------------------------

JobView uses(JobView job, Bytes wanted) {
  job.wanted = wanted;
  return job;
}

TEST(MemoryArbiter, WhatNobodyUsesChangesHandsBeforeWhatIsUsed) {
  const auto changes =
      by_job(decide_memory(device({uses(opportunistic("idle", 0_B, std::nullopt, 500_MiB), 100_MiB),
                                   uses(opportunistic("busy", 0_B, std::nullopt, 500_MiB), 490_MiB),
                                   guaranteed("g", 400_MiB, 400_MiB, 0_B)}),
                           {}));
  EXPECT_EQ(changes.at("idle").limit, 110_MiB);
  EXPECT_FALSE(changes.contains("busy") && changes.at("busy").limit < 490_MiB)
      << changes.at("busy").reason;
}

TEST(MemoryArbiter, ForWhoIsToComeOpportunisticJobsShrinkToTheirMinima) {
  DeviceView view = device({opportunistic("a", 100_MiB, std::nullopt, 500_MiB),
                            opportunistic("b", 0_B, std::nullopt, 500_MiB)});
  EXPECT_TRUE(by_job(decide_memory(view, {})).empty());
  view.claimed = 400_MiB;
  auto changes = by_job(decide_memory(view, {}));
  EXPECT_EQ(changes.at("a").limit + changes.at("b").limit, 600_MiB);
  EXPECT_THAT(changes.at("b").reason, HasSubstr("a guaranteed job that is to come"));
  view.claimed = 2000_MiB;
  const Plan plan = decide_memory(view, {});
  changes = by_job(plan);
  EXPECT_EQ(changes.at("a").limit, 100_MiB);
  EXPECT_EQ(changes.at("b").limit, 0_B);
  EXPECT_TRUE(plan.stages.empty()) << "nobody is parked for it";
}

TEST(MemoryArbiter, ForWhoIsToComeAGuaranteedJobGivesUpOnlyWhatNobodyUses) {
  DeviceView view = device({guaranteed("g", 200_MiB, std::nullopt, 500_MiB)});
  view.claimed = 600_MiB;
  const auto changes = by_job(decide_memory(view, {}));
  EXPECT_GE(changes.at("g").limit, 500_MiB);
  EXPECT_LT(changes.at("g").limit, 600_MiB) << "what it wants, with headroom";
}

TEST(MemoryArbiter, SmallMovesAreMadeForWhoIsToCome) {
  DeviceView view = device({opportunistic("o", 0_B, std::nullopt, 1000_MiB)});
  view.claimed = 20_MiB;  // less than what is not worth moving otherwise
  EXPECT_EQ(by_job(decide_memory(view, {})).at("o").limit, 980_MiB);
}

TEST(MemoryArbiter, APausedJobIsTheFirstVictim) {
  JobView paused = uses(opportunistic("p", 50_MiB, std::nullopt, 500_MiB), 500_MiB);
  paused.paused = true;
  const auto changes = by_job(
      decide_memory(device({paused, uses(opportunistic("r", 0_B, std::nullopt, 500_MiB), 500_MiB),
                            guaranteed("g", 300_MiB, 300_MiB, 0_B)}),
                    {}));
  EXPECT_EQ(changes.at("p").limit, 200_MiB);
  EXPECT_THAT(changes.at("p").reason, HasSubstr("paused"));
  EXPECT_FALSE(changes.contains("r"));
}

TEST(MemoryArbiter, WithoutSpeedsTheLargestIsTheVictim) {
  const auto changes = by_job(
      decide_memory(device({uses(opportunistic("large", 0_B, std::nullopt, 700_MiB), 700_MiB),
                            uses(opportunistic("small", 0_B, std::nullopt, 300_MiB), 300_MiB),
                            guaranteed("g", 200_MiB, 200_MiB, 0_B)}),
                    {}));
  EXPECT_EQ(changes.at("large").limit, 500_MiB);
  EXPECT_FALSE(changes.contains("small"));
}

TEST(MemoryArbiter, WhoLosesLeastIsTheVictimWhereSpeedsAreKnown) {
  JobView flat = uses(opportunistic("flat", 0_B, std::nullopt, 400_MiB), 500_MiB);
  flat.speeds = {{300_MiB, 9.9}, {400_MiB, 10.0}};
  JobView steep = uses(opportunistic("steep", 0_B, std::nullopt, 600_MiB), 700_MiB);
  steep.speeds = {{500_MiB, 5.0}, {600_MiB, 10.0}};
  const auto changes =
      by_job(decide_memory(device({flat, steep, guaranteed("g", 200_MiB, 200_MiB, 0_B)}), {}));
  EXPECT_EQ(changes.at("flat").limit, 200_MiB);
  EXPECT_THAT(changes.at("flat").reason, HasSubstr("loses least"));
  EXPECT_FALSE(changes.contains("steep"));
}

TEST(MemoryArbiter, UnmanagedAndOutsideMemoryIsNotDividedButFloorsAreKept) {
  DeviceView view =
      device({guaranteed("g", 300_MiB, 300_MiB, 0_B), opportunistic("o", 0_B, std::nullopt)});
  view.jobs[1].unmanaged = 250_MiB;
  view.outside = 200_MiB;
  auto changes = by_job(decide_memory(view, {}));
  EXPECT_EQ(changes.at("g").limit, 300_MiB);
  EXPECT_EQ(changes.at("o").limit, 250_MiB);
  view.outside = 2000_MiB;
  changes = by_job(decide_memory(view, {}));
  EXPECT_EQ(changes.at("g").limit, 300_MiB) << "a promise is kept";
  EXPECT_FALSE(changes.contains("o"));
}

// --- shrink, park, move -------------------------------------------------------------------------

class EscalationTest : public ::testing::Test {
 protected:
  /// A job that owes 200 MiB, which a guaranteed one waits for.
  EscalationTest() {
    view_ = device({guaranteed("g", 500_MiB, 500_MiB, 0_B, 500_MiB),
                    opportunistic("o", 100_MiB, std::nullopt, 500_MiB)});
    view_.jobs[0].ranks = {{0, 300_MiB, 300_MiB}};
    view_.jobs[1].ranks = {{0, 500_MiB, 700_MiB}};
    view_.jobs[1].owed = 200_MiB;
    view_.jobs[1].owed_since = kNow;
    view_.now = kNow;
  }
  /// Decides at a later time and makes it so.
  Plan at(Duration later) {
    view_.now = kNow + later;
    const Plan plan = decide_memory(view_, {});
    EXPECT_EQ(broken_rule(view_, plan), "");
    view_ = after(view_, plan);
    return plan;
  }
  DeviceView view_;
};

TEST_F(EscalationTest, ParksAtTheDeadlineAndAsksToMoveLater) {
  EXPECT_EQ(at(9s), Plan{}) << "it has time to shrink";
  const Plan park = at(10s);
  ASSERT_EQ(park.stages.size(), 1U);
  EXPECT_EQ(park.stages[0].stage, Stage::kPark);
  EXPECT_THAT(park.stages[0].reason, HasSubstr("did not give back 200 MiB within 10 s"));
  EXPECT_EQ(by_job(park).at("o").limit, 0_B);
  EXPECT_TRUE(at(69s).stages.empty());
  const Plan move = at(70s);
  ASSERT_EQ(move.stages.size(), 1U);
  EXPECT_EQ(move.stages[0].stage, Stage::kMove);
  EXPECT_THAT(move.stages[0].reason, HasSubstr("engine is asked"));
}

TEST_F(EscalationTest, ItRunsAgainWhenTheDebtIsPaidButNotAtOnce) {
  at(10s);
  view_.jobs[1].owed = 0_B;
  EXPECT_TRUE(at(12s).stages.empty()) << "not parked and woken in turns";
  const Plan wake = at(20s);
  ASSERT_EQ(wake.stages.size(), 1U);
  EXPECT_EQ(wake.stages[0].stage, Stage::kNone);
  EXPECT_EQ(by_job(wake).at("o").limit, 500_MiB);
}

TEST_F(EscalationTest, NobodyIsParkedForWhatNobodyWaitsFor) {
  view_.jobs[0].ranks[0].limit = 500_MiB;
  EXPECT_EQ(at(100s), Plan{});
}

TEST_F(EscalationTest, AMinimumThatDoesNotFitIsParkedAsAWhole) {
  view_ = device({guaranteed("g", 700_MiB, 700_MiB, 0_B), opportunistic("a", 200_MiB, std::nullopt),
                  opportunistic("b", 250_MiB, std::nullopt)});
  const Plan plan = at(0s);
  ASSERT_EQ(plan.stages.size(), 1U);
  EXPECT_EQ(plan.stages[0].job.str(), "b") << "one victim is enough";
  EXPECT_THAT(plan.stages[0].reason, HasSubstr("its minimum of 250 MiB does not fit"));
  EXPECT_EQ(by_job(plan).at("a").limit, 300_MiB);
  view_.jobs.erase(view_.jobs.begin());
  EXPECT_EQ(at(30s).stages.at(0).stage, Stage::kNone);
}

// --- measured gain ------------------------------------------------------------------------------

/// A job whose speed follows a law that the arbiter learns only by measuring.
struct Trained {
  JobView view;
  double fastest;
  double bend;  ///< speed is (limit / need) ^ bend of the fastest

  [[nodiscard]] double part() const {
    const double has = static_cast<double>(std::min(view.limit, view.wanted).count());
    return std::pow(has / static_cast<double>(view.wanted.count()), bend);
  }
  void measure() {
    const auto at = std::find_if(view.speeds.begin(), view.speeds.end(),
                                 [&](const auto& p) { return p.limit >= view.limit; });
    if (at != view.speeds.end() && at->limit == view.limit) return;
    view.speeds.insert(at, {view.limit, fastest * part()});
  }
};

/// Lets the arbiter divide a device among opportunistic jobs for a long time.
struct Trial {
  double before = 0.0;  ///< sum of the jobs' speeds, each as a part of that alone
  double after = 0.0;
  double seen_before = 0.0;  ///< the same, as a part of the best that was seen: what is decided on
  double seen_after = 0.0;
  int moves = 0;
  bool settled = false;
};
Trial try_out(std::mt19937& random, const ArbiterConfig& config) {
  std::vector<Trained> jobs;
  for (auto i = random() % 3 + 2; i > 0; --i) {
    Trained job{opportunistic(("j" + std::to_string(i)).c_str(), 20_MiB, std::nullopt), 1.0, 1.0};
    job.view.wanted = Bytes{600 + random() % 400} * (1_MiB).count();
    job.fastest = static_cast<double>(random() % 100 + 1);
    job.bend = std::pow(2.0, static_cast<double>(random() % 50) / 10.0 - 3.5);  // 0.09 .. 2.8
    jobs.push_back(job);
  }
  const auto seen = [&] {
    DeviceView view = device({});
    for (const Trained& job : jobs) view.jobs.push_back(job.view);
    return view;
  };
  const auto total = [&] {
    double sum = 0.0;
    for (const Trained& job : jobs) sum += job.part();
    return sum;
  };
  std::vector<double> first;
  Trial trial;
  for (int round = 0; round < 400 && !trial.settled; ++round) {
    const DeviceView view = seen();
    const Plan plan = decide_memory(view, config);
    EXPECT_EQ(broken_rule(view, plan), "");
    trial.settled = round > 0 && plan == Plan{};
    const DeviceView then = after(view, plan);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].view = then.jobs[i];
      jobs[i].measure();
    }
    if (round == 0) {
      trial.before = total();
      for (const Trained& job : jobs) first.push_back(job.fastest * job.part());
    }
    trial.moves += plan.memory.empty() ? 0 : 1;
  }
  trial.after = total();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    double best = 0.0;
    for (const auto& point : jobs[i].view.speeds) best = std::max(best, point.steps_per_second);
    trial.seen_before += first[i] / best;
    trial.seen_after += jobs[i].fastest * jobs[i].part() / best;
  }
  return trial;
}

TEST(MeasuredGain, MemoryGoesStepByStepToWhoGainsMost) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random{seed};
  double gained = 0.0;
  for (int round = 0; round < 300; ++round) {
    const Trial trial = try_out(random, {});
    ASSERT_TRUE(trial.settled) << "round " << round << ", seed " << seed;
    // No single trial that loses more than the error of measuring is kept.
    EXPECT_GE(trial.seen_after, trial.seen_before * 0.95) << "round " << round << ", seed " << seed;
    gained += trial.after / trial.before - 1;
  }
  EXPECT_GT(gained / 300, 0.02) << "on average, seed " << seed;
}

TEST(MeasuredGain, NothingIsGainedWithoutExchange) {
  std::mt19937 random{5};
  for (int round = 0; round < 50; ++round) {
    ArbiterConfig config;
    config.exchange = 0;
    const Trial trial = try_out(random, config);
    EXPECT_TRUE(trial.settled);
    EXPECT_NEAR(trial.after, trial.before, 0.01);
  }
}

TEST(MeasuredGain, TheReasonNamesBothSidesAndTheFigures) {
  JobView a = uses(opportunistic("a", 0_B, std::nullopt, 500_MiB), 900_MiB);
  a.speeds = {{469_MiB, 8.0}, {500_MiB, 9.0}, {531_MiB, 10.0}};
  JobView b = uses(opportunistic("b", 0_B, std::nullopt, 500_MiB), 900_MiB);
  b.speeds = {{469_MiB, 4.98}, {500_MiB, 5.0}, {531_MiB, 5.0}};
  const auto changes = by_job(decide_memory(device({a, b}), {}));
  EXPECT_EQ(changes.at("a").limit, 531_MiB);
  EXPECT_THAT(
      changes.at("a").reason,
      HasSubstr("gains most from 31 MiB, measured: 10.0 % of its speed, job b loses 0.4 %"));
  EXPECT_THAT(changes.at("b").reason, HasSubstr("job a gains more"));
}

TEST(MeasuredGain, ADifferenceWithinTheErrorMovesNothing) {
  JobView a = uses(opportunistic("a", 0_B, std::nullopt, 500_MiB), 900_MiB);
  a.speeds = {{469_MiB, 9.8}, {500_MiB, 9.9}, {531_MiB, 10.0}};
  JobView b = a;
  b.id = JobId{"b"};
  EXPECT_EQ(decide_memory(device({a, b}), {}), Plan{});
}

TEST(MeasuredGain, BesideAGuaranteedJobNothingIsTried) {
  JobView a = uses(opportunistic("a", 0_B, std::nullopt, 300_MiB), 900_MiB);
  a.speeds = {{269_MiB, 5.0}, {300_MiB, 9.0}, {331_MiB, 12.0}};
  JobView b = uses(opportunistic("b", 0_B, std::nullopt, 300_MiB), 900_MiB);
  b.speeds = {{269_MiB, 5.0}, {300_MiB, 5.0}, {331_MiB, 5.0}};
  const DeviceView view = device({a, b, guaranteed("g", 400_MiB, 400_MiB, 0_B, 400_MiB)});
  EXPECT_EQ(decide_memory(view, {}), Plan{});
}

using Decision = std::function<Plan(const DeviceView&)>;

/// Decides on random views, each twice and the second time after another one, and counts the views
/// whose two plans differ.
int unequal_plans(const Decision& decide, unsigned seed) {
  std::mt19937 random{seed};
  int unequal = 0;
  for (int round = 0; round < 1000; ++round) {
    const DeviceView view = random_device(random);
    const DeviceView same = view;
    const Plan plan = decide(view);
    (void)decide(random_device(random));
    unequal += decide(same) == plan ? 0 : 1;
  }
  return unequal;
}

TEST(Law5Arbiter, Law5_EqualViewEqualPlan) {
  const unsigned seed = std::random_device{}();
  const Decision ours = [](const DeviceView& view) { return decide_memory(view, {}); };
  EXPECT_EQ(unequal_plans(ours, seed), 0) << "seed " << seed;
}

/// The mechanism is that a decision sees its view and nothing else. One that also remembers what it
/// saw last (to smooth its plans, say) breaks the law.
TEST(Law5Arbiter, Law5_BreaksWhenADecisionRemembers) {
  Bytes remembered;
  const Decision smoothing = [&remembered](DeviceView view) {
    for (JobView& job : view.jobs) job.wanted = std::max(job.wanted, remembered);
    for (const JobView& job : view.jobs) remembered = std::max(remembered, job.wanted);
    return decide_memory(view, {});
  };
  EXPECT_GT(unequal_plans(smoothing, 1), 0);
}

}  // namespace
}  // namespace commensal::node::memory_arbiter_test
