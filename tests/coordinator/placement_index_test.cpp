// SPDX-License-Identifier: Apache-2.0
// Which jobs are on which nodes, and that no change of it is missed.
#include "coordinator/cluster/placement_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace commensal::cluster::placement_index_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

JobRecord job(std::uint64_t number, JobState state, const std::vector<std::string>& nodes = {}) {
  JobRecord record;
  record.id = JobId{std::to_string(number)};
  record.state = state;
  for (const std::string& node : nodes) record.placement.push_back({node, 0});
  return record;
}

class PlacementIndexTest : public ::testing::Test {
 protected:
  void move(std::uint64_t number, JobState state, const std::vector<std::string>& nodes = {}) {
    const JobRecord before = std::exchange(jobs_[number], job(number, state, nodes));
    index_.moved(number, before, jobs_[number]);
  }

  std::map<std::uint64_t, JobRecord> jobs_;
  PlacementIndex index_;
};

TEST_F(PlacementIndexTest, OnlyPlacedAndReservedJobsAreSomewhere) {
  for (const JobState state :
       {JobState::kReserved, JobState::kStarting, JobState::kRunning, JobState::kUpgrading}) {
    EXPECT_THAT(nodes_of(job(1, state, {"n2", "n1", "n2"})), ElementsAre("n1", "n2"));
  }
  // An ended one keeps its placement for people.
  for (const JobState state :
       {JobState::kSubmitted, JobState::kQueued, JobState::kParked, JobState::kFinished,
        JobState::kFailed, JobState::kCancelled, JobState::kLost}) {
    EXPECT_THAT(nodes_of(job(1, state, {"n1"})), IsEmpty());
  }
}

TEST_F(PlacementIndexTest, FollowsJobsFromNodeToNode) {
  move(2, JobState::kQueued);
  EXPECT_THAT(index_.on("n1"), IsEmpty());
  move(2, JobState::kReserved, {"n1"});
  move(1, JobState::kStarting, {"n1", "n2"});
  EXPECT_THAT(index_.on("n1"), ElementsAre(1, 2));
  move(2, JobState::kStarting, {"n2"});
  EXPECT_THAT(index_.on("n1"), ElementsAre(1));
  EXPECT_THAT(index_.on("n2"), ElementsAre(1, 2));
  move(1, JobState::kFinished, {"n1", "n2"});
  EXPECT_THAT(index_.on("n1"), IsEmpty());
  EXPECT_THAT(index_.on("n2"), ElementsAre(2));
}

TEST_F(PlacementIndexTest, OnlyTheNodesOfAJobChangeWithIt) {
  move(1, JobState::kStarting, {"n1"});
  move(2, JobState::kStarting, {"n2"});
  const std::uint64_t one = index_.revision("n1");
  const std::uint64_t two = index_.revision("n2");
  const std::uint64_t none = index_.revision("n3");
  move(2, JobState::kRunning, {"n2"});
  EXPECT_EQ(index_.revision("n1"), one);
  EXPECT_NE(index_.revision("n2"), two);
  EXPECT_EQ(index_.revision("n3"), none);
  index_.touch_all();
  EXPECT_NE(index_.revision("n1"), one);
  EXPECT_NE(index_.revision("n3"), none);
}

TEST_F(PlacementIndexTest, BeginsAnewWithWhatIs) {
  move(1, JobState::kStarting, {"n1"});
  move(2, JobState::kStarting, {"n2"});
  const std::uint64_t before = index_.revision("n2");
  jobs_.erase(1);
  index_.begin(jobs_);
  EXPECT_THAT(index_.on("n1"), IsEmpty());
  EXPECT_THAT(index_.on("n2"), ElementsAre(2));
  EXPECT_NE(index_.revision("n2"), before);
}

// Whoever looks now and then, and only where the revision is another one, has what is.
TEST_F(PlacementIndexTest, WhoFollowsRevisionsMissesNothing) {
  constexpr unsigned kSeed = 3;
  std::mt19937 random{kSeed};
  constexpr std::array kStates{JobState::kQueued, JobState::kReserved, JobState::kStarting,
                               JobState::kRunning, JobState::kFinished};
  const std::vector<std::string> names{"n1", "n2", "n3"};
  struct Seen {
    std::uint64_t revision = 0;
    std::set<std::uint64_t> jobs;
  };
  std::map<std::string, Seen> seen;
  for (int step = 0; step < 5000; ++step) {
    std::vector<std::string> nodes;
    for (const std::string& name : names) {
      if (random() % 3 == 0) nodes.push_back(name);
    }
    const std::uint64_t number = 1 + random() % 6;
    if (random() % 50 == 0) {
      index_.begin(jobs_);
    } else if (random() % 50 == 0) {
      index_.touch_all();
    } else {
      move(number, kStates.at(random() % kStates.size()), nodes);
    }
    const std::string& name = names[random() % names.size()];
    if (seen[name].revision != index_.revision(name)) {
      seen[name] = {index_.revision(name), index_.on(name)};
    }
    std::set<std::uint64_t> expected;
    for (const auto& [other, record] : jobs_) {
      if (nodes_of(record).contains(name)) expected.insert(other);
    }
    ASSERT_EQ(seen[name].jobs, expected) << "seed " << kSeed << ", step " << step;
  }
}

}  // namespace
}  // namespace commensal::cluster::placement_index_test
