// SPDX-License-Identifier: Apache-2.0
// An order that is kept equals a stable sort of everything at every decision.
#include "coordinator/policies/kept_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::kept_order_test {
namespace {

/// What KeptOrder stands for, taken literally: one list, sorted as a whole.
class NaiveOrder {
 public:
  void append(JobIndex job) { list_.push_back(job); }
  void forget(JobIndex job) { std::erase(list_, job); }

  template <typename KeyOf, typename Offer>
  void walk(const KeyOf& key_of, const Offer& offer) {
    std::stable_sort(list_.begin(), list_.end(),
                     [&](JobIndex a, JobIndex b) { return key_of(a) < key_of(b); });
    for (const JobIndex job : list_) {
      if (!offer(job)) return;
    }
  }

 private:
  std::vector<JobIndex> list_;
};

/// Keys are small, so that many are equal; those of jobs that were offered something may change, as
/// those of running jobs do.
TEST(KeptOrderTest, EqualsAStableSortOfTheWholeList) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return random() % n; };
    std::vector<JobIndex> front;
    std::vector<JobIndex> back;
    KeptOrder<int> kept(front, back);
    NaiveOrder naive;
    std::vector<ClusterJob> jobs;
    std::vector<int> keys;
    const auto key_of = [&](JobIndex job) { return keys[job]; };
    for (int decision = 0; decision < 60; ++decision) {
      for (std::size_t i = below(4); i > 0; --i) {
        const auto job = static_cast<JobIndex>(jobs.size());
        jobs.push_back(job_of(1, 1));
        keys.push_back(static_cast<int>(below(5)));
        kept.append(job, key_of);
        naive.append(job);
      }
      const std::size_t reach = below(jobs.size() + 2);
      std::vector<JobIndex> ours;
      std::vector<JobIndex> theirs;
      kept.walk(
          key_of, [](JobIndex) { return false; },
          [&](JobIndex job) { return ours.push_back(job), ours.size() < reach; });
      naive.walk(key_of,
                 [&](JobIndex job) { return theirs.push_back(job), theirs.size() < reach; });
      ASSERT_EQ(ours, theirs) << "decision " << decision;
      std::vector<JobIndex> ended;
      for (const JobIndex job : ours) {
        if (below(4) == 0) {
          jobs[job].phase = JobPhase::kEnded;
          ended.push_back(job);
          naive.forget(job);
        } else if (below(2) == 0) {
          keys[job] = static_cast<int>(below(5));
        }
      }
      ClusterView view;
      view.jobs = jobs;
      view.ended = ended;
      kept.forget_ended(view);
    }
  }
}

TEST(KeptOrderTest, WhoWasPutBehindComesAfterItsEquals) {
  std::vector<JobIndex> front{0, 1, 2};
  std::vector<JobIndex> back;
  KeptOrder<int> kept(front, back);
  std::vector<JobIndex> seen;
  kept.walk([](JobIndex) { return 1; }, [](JobIndex job) { return job == 0; },
            [&](JobIndex job) { return seen.push_back(job), true; });
  EXPECT_EQ(seen, (std::vector<JobIndex>{1, 2, 0}));
}

TEST(KeptOrderTest, TakesAJobOutWhereverItIs) {
  std::vector<JobIndex> front{0};
  std::vector<JobIndex> back{1, 2};
  KeptOrder<int> kept(front, back);
  kept.remove(0);
  kept.remove(2);
  EXPECT_TRUE(front.empty());
  EXPECT_EQ(back, (std::vector<JobIndex>{1}));
}

}  // namespace
}  // namespace commensal::policies::kept_order_test
