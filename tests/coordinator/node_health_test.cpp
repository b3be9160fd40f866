// SPDX-License-Identifier: Apache-2.0
// When a node is avoided, and for how long.
#include "coordinator/cluster/node_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace commensal::cluster::node_health_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Optional;

class NodeHealthTest : public ::testing::Test {
 protected:
  bool fail(const std::string& job, std::uint32_t attempt = 1, const std::string& node = "n1") {
    now_ += 1min;
    return health_.failed(node, JobId{job}, attempt, now_);
  }
  bool avoided(const std::string& node = "n1") { return health_.avoided(node, now_).has_value(); }

  NodeHealth health_{HealthRules{}};
  TimePoint now_{24h};
};

TEST_F(NodeHealthTest, SeveralFailuresOfSeveralJobsAreEnough) {
  EXPECT_FALSE(fail("1"));
  EXPECT_FALSE(fail("2"));
  EXPECT_FALSE(avoided());
  EXPECT_TRUE(fail("3"));
  EXPECT_THAT(health_.avoided("n1", now_), Optional(HasSubstr("3 failures of 3 jobs")));
  EXPECT_FALSE(avoided("n2"));
}

TEST_F(NodeHealthTest, OneJobThatAlwaysFailsIsNoProof) {
  for (std::uint32_t attempt = 1; attempt < 20; ++attempt) EXPECT_FALSE(fail("1", attempt));
  EXPECT_FALSE(avoided());
}

TEST_F(NodeHealthTest, OneFailureToldTwiceCountsOnce) {
  fail("1");
  fail("2");
  EXPECT_FALSE(fail("2"));
  EXPECT_FALSE(fail("1"));
  EXPECT_TRUE(fail("2", 2));
}

TEST_F(NodeHealthTest, OldFailuresAreForgotten) {
  fail("1");
  fail("2");
  now_ += 1h;
  EXPECT_FALSE(fail("3"));
  EXPECT_FALSE(fail("4"));
  EXPECT_TRUE(fail("5"));
}

TEST_F(NodeHealthTest, AJobThatEndsWellClearsIt) {
  fail("1");
  fail("2");
  health_.worked("n1");
  EXPECT_FALSE(fail("3"));
}

TEST_F(NodeHealthTest, ItIsAvoidedForTenMinutesThenLonger) {
  const auto times = {10min, 20min, 40min};
  for (const auto time : times) {
    fail("1");
    fail("2");
    EXPECT_TRUE(fail("3"));
    EXPECT_EQ(health_.next_change(now_), now_ + time);
    now_ += time - 1ms;
    EXPECT_TRUE(avoided());
    now_ += 1ms;
    EXPECT_FALSE(avoided());
    EXPECT_EQ(health_.next_change(now_), TimePoint::max());
  }
}

TEST_F(NodeHealthTest, WhatFailsThereMeanwhileChangesNothing) {
  fail("1");
  fail("2");
  fail("3");
  const TimePoint until = health_.next_change(now_);
  EXPECT_FALSE(fail("4"));
  EXPECT_FALSE(fail("5"));
  EXPECT_FALSE(fail("6"));
  EXPECT_EQ(health_.next_change(now_), until);
}

TEST_F(NodeHealthTest, AnOperatorForgives) {
  for (const char* job : {"1", "2", "3"}) fail(job);
  health_.forgive("n1");
  EXPECT_FALSE(avoided());
}

TEST_F(NodeHealthTest, ZeroFailuresMeansNever) {
  health_ = NodeHealth{{.failures = 0}};
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(fail(std::to_string(i)));
}

}  // namespace
}  // namespace commensal::cluster::node_health_test
