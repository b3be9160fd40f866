// SPDX-License-Identifier: Apache-2.0
// Each rule for plans is broken once, and named.
#include "coordinator/policies/plan_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::plan_rules_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Reason kWhy{"for the test"};

/// Two nodes of two GPUs. Job 0 runs on GPU 0 of node 0; 1, 2 and 3 wait; 4 has ended; 5 runs
/// beside job 0 as an opportunistic one. GPU 1 of node 1 is kept for job 3.
class PlanRulesTest : public ::testing::Test {
 protected:
  PlanRulesTest()
      : cluster_(
            {{.name = "a", .gpu_type = "v100", .gpus = 2, .cpu_milli = 4000, .memory_mib = 1000},
             {.name = "b", .gpu_type = "t4", .gpus = 2}}) {
    for (int i = 0; i < 6; ++i) jobs_.push_back(job_of(1, 100));
    jobs_[0].phase = JobPhase::kRunning;
    jobs_[0].placement = {{.node = 0, .gpu = 0}};
    jobs_[4].phase = JobPhase::kEnded;
    jobs_[5].phase = JobPhase::kRunning;
    jobs_[5].job_class = JobClass::kOpportunistic;
    jobs_[5].placement = {{.node = 0, .gpu = 0}};
    cluster_.take({.node = 0, .gpu = 0});
    cluster_.take_beside({.node = 0, .gpu = 0});
    cluster_.reserve(1, 1, 3);
    tenants_ = {{.name = "few", .quota = 1, .charged_milli = kWholeGpu}};
  }

  [[nodiscard]] std::string broken(std::vector<Decision> decisions, Time wake = kNever) const {
    const ClusterView view{.now = 10,
                           .jobs = jobs_,
                           .arrived = {},
                           .ended = {},
                           .running = running_,
                           .tenants = tenants_,
                           .cluster = &cluster_,
                           .placer = &placer_,
                           .models = {}};
    return broken_rule(view, {.decisions = std::move(decisions), .wake = wake});
  }

  static Decision start(JobIndex job, Placement placement) {
    return {job, Action::kStart, std::move(placement), kWhy};
  }

  /// No quota, so that other rules are seen.
  void without_quota() { tenants_[0].quota.reset(); }

  Cluster cluster_;
  std::vector<ClusterJob> jobs_;
  std::vector<JobIndex> running_{0, 5};
  std::vector<Tenant> tenants_;
  CountedPlacer placer_;
};

TEST_F(PlanRulesTest, AnEmptyPlanBreaksNone) { EXPECT_THAT(broken({}), IsEmpty()); }

TEST_F(PlanRulesTest, WhatGivesCountsBeforeWhatTakes) {
  const Decision stop{0, Action::kStop, {}, kWhy};
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 0}}), stop}), IsEmpty());
  EXPECT_THAT(broken({stop, start(1, {{.node = 0, .gpu = 0}})}), IsEmpty());
}

TEST_F(PlanRulesTest, NobodyIsWokenInThePast) {
  EXPECT_THAT(broken({}, 9), HasSubstr("woken at 9, and it is 10"));
  EXPECT_THAT(broken({}, 10), IsEmpty());
}

TEST_F(PlanRulesTest, OnlyWaitingJobsStartOrReserve) {
  EXPECT_THAT(broken({start(0, {{.node = 0, .gpu = 1}})}), HasSubstr("cannot start: it runs"));
  EXPECT_THAT(broken({start(4, {{.node = 0, .gpu = 1}})}), HasSubstr("it has ended"));
  EXPECT_THAT(broken({{0, Action::kReserve, {{.node = 0, .gpu = 1}}, kWhy}}),
              HasSubstr("cannot reserve: it runs"));
}

TEST_F(PlanRulesTest, OnlyRunningJobsStopMoveOrAreUpgraded) {
  EXPECT_THAT(broken({{1, Action::kStop, {}, kWhy}}), HasSubstr("cannot stop: it waits"));
  EXPECT_THAT(broken({{1, Action::kMove, {{.node = 0, .gpu = 1}}, kWhy}}),
              HasSubstr("cannot move: it waits"));
  EXPECT_THAT(broken({{1, Action::kUpgrade, {}, kWhy}}), HasSubstr("cannot upgrade: it waits"));
}

TEST_F(PlanRulesTest, AJobHasToExist) {
  EXPECT_THAT(broken({start(6, {})}), HasSubstr("no job 6"));
}

TEST_F(PlanRulesTest, AJobIsNamedOnce) {
  without_quota();
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 1}}), start(1, {{.node = 1, .gpu = 0}})}),
              HasSubstr("two decisions about job 1"));
}

TEST_F(PlanRulesTest, EveryDecisionHasAReason) {
  EXPECT_THAT(broken({{0, Action::kStop, {}, {}}}), HasSubstr("no reason for job 0"));
}

TEST_F(PlanRulesTest, AGangIsNotSplit) {
  without_quota();
  jobs_[1] = job_of(2, 100);
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 1}})}), HasSubstr("gets 1 GPUs and asks for 2"));
  jobs_[1].min_gpus = 1;  // elastic
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 1}})}), IsEmpty());
}

TEST_F(PlanRulesTest, AJobGetsNoMoreThanItsMost) {
  without_quota();
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 1}, {.node = 1, .gpu = 0}})}),
              HasSubstr("gets 2 GPUs and asks for 1"));
}

TEST_F(PlanRulesTest, AGpuIsNamedOnce) {
  without_quota();
  jobs_[1] = job_of(2, 100);
  EXPECT_THAT(broken({start(1, {{.node = 1, .gpu = 0}, {.node = 1, .gpu = 0}})}),
              HasSubstr("GPU 0 of node 1 is named twice"));
}

TEST_F(PlanRulesTest, PlacesHaveToExist) {
  without_quota();
  EXPECT_THAT(broken({start(1, {{.node = 2, .gpu = 0}})}),
              HasSubstr("node 2, which does not exist"));
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 2}})}),
              HasSubstr("GPU 2 of node 0, which has 2"));
}

TEST_F(PlanRulesTest, AJobGetsATypeThatItTakes) {
  without_quota();
  jobs_[1].gpu_types = 1U << 1U;  // t4
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 1}})}),
              HasSubstr("does not take GPUs of type v100"));
  EXPECT_THAT(broken({start(1, {{.node = 1, .gpu = 0}})}), IsEmpty());
}

TEST_F(PlanRulesTest, NoGpuIsOverItsCapacity) {
  without_quota();
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 0}})}),
              HasSubstr("GPU 0 of node 0 is over its capacity by 1000 milli"));
}

TEST_F(PlanRulesTest, TheCountOfAllIsNotOverItsCapacity) {
  without_quota();
  jobs_[1] = job_of(4, 100);
  EXPECT_THAT(broken({start(1, {})}), HasSubstr("1 GPUs over the capacity"));
}

TEST_F(PlanRulesTest, CoresAndMemoryAreNotOverTheirCapacity) {
  without_quota();
  jobs_[1].cpu_milli = 5000;
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 1}})}),
              HasSubstr("4000 milli-CPU free, and the plan takes 5000"));
  jobs_[1].cpu_milli = 0;
  jobs_[1].memory_mib = 1001;
  EXPECT_THAT(broken({start(1, {{.node = 0, .gpu = 1}})}),
              HasSubstr("1000 MiB free, and the plan takes 1001"));
}

TEST_F(PlanRulesTest, AReservedGpuIsClosedToOtherGuaranteedJobs) {
  without_quota();
  Decision decision = start(1, {{.node = 1, .gpu = 1}});
  EXPECT_THAT(broken({decision}), HasSubstr("reserved for job 3, not for job 1"));
  decision.job_class = JobClass::kOpportunistic;
  EXPECT_THAT(broken({decision}), IsEmpty());
  EXPECT_THAT(broken({start(3, {{.node = 1, .gpu = 1}})}), IsEmpty());
}

TEST_F(PlanRulesTest, AReservationThatThePlanReleasesClosesNothing) {
  without_quota();
  jobs_[3].reserved = {{.node = 1, .gpu = 1}};
  const Decision start_there = start(1, {{.node = 1, .gpu = 1}});
  EXPECT_THAT(broken({start_there, {3, Action::kReserve, {}, kWhy}}), IsEmpty());
  EXPECT_THAT(broken({start_there, {2, Action::kReserve, {}, kWhy}}), HasSubstr("reserved for"));
}

TEST_F(PlanRulesTest, NoTenantIsOverItsQuota) {
  Decision decision = start(1, {{.node = 0, .gpu = 1}});
  EXPECT_THAT(broken({decision}),
              HasSubstr("tenant few has a quota of 1 GPUs, and the plan gives it 2"));
  decision.job_class = JobClass::kOpportunistic;
  EXPECT_THAT(broken({decision}), IsEmpty());
  EXPECT_THAT(broken({{0, Action::kStop, {}, kWhy}, start(1, {{.node = 0, .gpu = 1}})}), IsEmpty());
}

/// Job 5, beside job 0 on GPU 0 of node 0, has a minimum share of 0.5.
class MinimaRulesTest : public PlanRulesTest {
 protected:
  MinimaRulesTest() {
    jobs_[5].minima = {.share_milli = 500};
    cluster_.take_minima({.node = 0, .gpu = 0}, jobs_[5].minima);
  }
  static Decision beside(JobIndex job, Placement placement) {
    Decision decision = start(job, std::move(placement));
    decision.job_class = JobClass::kOpportunistic;
    return decision;
  }
};

TEST_F(MinimaRulesTest, MinimumSharesAreNoMoreThanTheGpu) {
  jobs_[1].minima.share_milli = 500;
  EXPECT_THAT(broken({beside(1, {{.node = 0, .gpu = 0}})}), IsEmpty());
  jobs_[1].minima.share_milli = 501;
  EXPECT_THAT(broken({beside(1, {{.node = 0, .gpu = 0}})}),
              HasSubstr("job 1 is placed beside others on GPU 0 of node 0: its minimum share of "
                        "0.501 does not fit beside the 0.5 of others"));
  EXPECT_THAT(broken({beside(1, {{.node = 0, .gpu = 1}})}), IsEmpty());
}

TEST_F(MinimaRulesTest, TwoThatStartTogetherCountBoth) {
  jobs_[1].minima.share_milli = jobs_[2].minima.share_milli = 600;
  EXPECT_THAT(broken({beside(1, {{.node = 1, .gpu = 0}}), beside(2, {{.node = 1, .gpu = 0}})}),
              HasSubstr("0.6 does not fit beside the 0.6 of others"));
  EXPECT_THAT(broken({beside(1, {{.node = 1, .gpu = 0}}), beside(2, {{.node = 1, .gpu = 1}})}),
              IsEmpty());
}

TEST_F(MinimaRulesTest, WhatIsGivenCountsFirst) {
  jobs_[1].minima.share_milli = 900;
  EXPECT_THAT(broken({beside(1, {{.node = 0, .gpu = 0}}), {5, Action::kStop, {}, kWhy}}),
              IsEmpty());
}

TEST_F(MinimaRulesTest, AMoveCountsOnlyWhereItGoes) {
  EXPECT_THAT(broken({{5, Action::kMove, {{.node = 0, .gpu = 0}}, kWhy}}), IsEmpty());
  cluster_.take_minima({.node = 0, .gpu = 1}, {.share_milli = 501});
  EXPECT_THAT(broken({{5, Action::kMove, {{.node = 0, .gpu = 1}}, kWhy}}),
              HasSubstr("0.5 does not fit beside the 0.501 of others"));
}

TEST_F(MinimaRulesTest, AGuaranteedJobGoesWhereMinimaAreTaken) {
  without_quota();
  jobs_[1].minima.share_milli = 900;
  EXPECT_THAT(broken({{0, Action::kStop, {}, kWhy}, start(1, {{.node = 0, .gpu = 0}})}), IsEmpty());
}

TEST_F(MinimaRulesTest, MinimaOfMemoryOfBothClassesCount) {
  without_quota();
  std::vector<NodeSpec> nodes = cluster_.nodes();
  nodes[1].gpu_memory_mib = 1000;
  cluster_ = Cluster(nodes);
  jobs_[1].minima.memory_mib = 600;
  jobs_[2].minima.memory_mib = 401;
  EXPECT_THAT(broken({start(1, {{.node = 1, .gpu = 0}}), beside(2, {{.node = 1, .gpu = 0}})}),
              HasSubstr("401 MiB of memory is more than the 400 MiB that others leave"));
  jobs_[2].minima.memory_mib = 400;
  EXPECT_THAT(broken({start(1, {{.node = 1, .gpu = 0}}), beside(2, {{.node = 1, .gpu = 0}})}),
              IsEmpty());
}

TEST_F(PlanRulesTest, AnUpgradeIsChargedToTheQuota) {
  const Decision upgrade{5, Action::kUpgrade, {}, kWhy};
  EXPECT_THAT(broken({{0, Action::kStop, {}, kWhy}, upgrade}), IsEmpty());
  EXPECT_THAT(broken({upgrade}), HasSubstr("over its capacity"));
}

}  // namespace
}  // namespace commensal::policies::plan_rules_test
