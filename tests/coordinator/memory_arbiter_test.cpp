// SPDX-License-Identifier: Apache-2.0
// How a device's memory is divided, with reasons; rules that hold for every view.
#include "coordinator/node/memory_arbiter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

namespace commensal::node {
namespace {

using namespace commensal::literals;
using policies::DeviceView;
using policies::JobView;
using policies::MemoryChange;
using policies::Plan;
using ::testing::HasSubstr;

JobView guaranteed(const char* id, Bytes floor, std::optional<Bytes> max, Bytes wanted,
                   Bytes limit = 0_B) {
  JobView job;
  job.id = JobId{id};
  job.job_class = JobClass::kGuaranteed;
  job.memory = {floor, max};
  job.wanted = job.wanted_recent = wanted;
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

std::map<std::string, Bytes> limits_after(const DeviceView& view, const Plan& plan) {
  std::map<std::string, Bytes> result;
  for (const JobView& job : view.jobs) result[job.id.str()] = job.limit;
  for (const MemoryChange& change : plan.memory) result[change.job.str()] = change.limit;
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
        Case{"FloorBeforeMinimum",
             device({guaranteed("g", 800_MiB, std::nullopt, 0_B),
                     opportunistic("o", 300_MiB, std::nullopt)}),
             {{"g", {800_MiB, "its floor"}}, {"o", {200_MiB, "below its minimum"}}}},
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
  fallen.wanted_recent = 400_MiB;
  EXPECT_TRUE(decide_memory(device({fallen, opportunistic("o", 0_B, std::nullopt, 550_MiB)}), {})
                  .memory.empty());
  fallen.wanted_recent = 100_MiB;
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

DeviceView random_device(std::mt19937& random) {
  std::vector<JobView> jobs;
  Bytes floors;
  const Bytes capacity{random() % 5000 + 100};
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
    job.wanted_recent = job.wanted + Bytes{random() % 500};
    job.held = Bytes{random() % 1000};
    job.limit = Bytes{random() % 1000};
    if (random() % 5 == 0) job.asked = Bytes{random() % 3000};
    jobs.push_back(job);
  }
  return device(std::move(jobs), capacity);
}

TEST(MemoryArbiter, EveryPlanFitsAndKeepsFloors) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  for (int round = 0; round < 20000; ++round) {
    const DeviceView view = random_device(random);
    const Plan plan = decide_memory(view, {});
    Bytes sum;
    const auto after = limits_after(view, plan);
    for (const JobView& job : view.jobs) {
      const Bytes limit = after.at(job.id.str());
      sum += limit;
      EXPECT_LE(limit, job.memory.max.value_or(view.capacity));
      if (job.job_class == JobClass::kGuaranteed) {
        EXPECT_GE(limit, std::min(job.memory.min, view.capacity));
      }
    }
    ASSERT_LE(sum, view.capacity) << "round " << round;
    bool growing = false;
    for (const MemoryChange& change : plan.memory) {
      EXPECT_FALSE(change.reason.empty());
      const auto job = std::find_if(view.jobs.begin(), view.jobs.end(),
                                    [&](const JobView& j) { return j.id == change.job; });
      const bool grows = change.limit > job->limit;
      EXPECT_TRUE(grows || !growing) << "a shrink after a growth";
      growing = growing || grows;
    }
  }
}

TEST(MemoryArbiter, SettlesAfterOnePlan) {
  std::mt19937 random{7};
  for (int round = 0; round < 5000; ++round) {
    DeviceView view = random_device(random);
    for (JobView& job : view.jobs) job.asked = 0_B;
    const auto after = limits_after(view, decide_memory(view, {}));
    for (JobView& job : view.jobs) job.limit = after.at(job.id.str());
    const auto again = limits_after(view, decide_memory(view, {}));
    for (JobView& job : view.jobs) job.limit = again.at(job.id.str());
    EXPECT_TRUE(decide_memory(view, {}).memory.empty()) << "round " << round;
  }
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
    for (JobView& job : view.jobs) job.wanted_recent = std::max(job.wanted_recent, remembered);
    for (const JobView& job : view.jobs) remembered = std::max(remembered, job.wanted);
    return decide_memory(view, {});
  };
  EXPECT_GT(unequal_plans(smoothing, 1), 0);
}

}  // namespace
}  // namespace commensal::node
