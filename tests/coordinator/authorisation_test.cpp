// SPDX-License-Identifier: Apache-2.0
// Who may ask what.
#include "coordinator/cluster/authorisation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace commensal::cluster::authorisation_test {
namespace {

using keys::AllowedKey;
using keys::Role;
using ::testing::AllOf;
using ::testing::HasSubstr;

AllowedKey key(const std::string& name, Role role, std::vector<std::string> tenants = {}) {
  return {.name = name,
          .key = {},
          .role = role,
          .tenants = std::move(tenants),
          .created_ms = 0,
          .revoked_ms = std::nullopt};
}

const AllowedKey kAnn = key("ann", Role::kUser, {"vision", "speech"});
const AllowedKey kBoss = key("boss", Role::kOperator);
const AllowedKey kMachine = key("n1", Role::kNode);

const std::vector<std::string> kOfAJob{"submit",   "cancel",    "resume",       "logs",
                                       "read_log", "explain",   "report_loss",  "report_input",
                                       "inputs",   "add_input", "remove_input", "first_step"};
const std::vector<std::string> kLists{"queue", "nodes", "tenants"};
const std::vector<std::string> kSteering{"quota", "drain",    "undrain", "health",
                                         "",      "shutdown", "Queue"};

TEST(AuthorisationTest, AUserActsForItsTenants) {
  for (const std::string& type : kOfAJob) {
    EXPECT_TRUE(authorise(kAnn, type, "vision").allowed) << type;
    EXPECT_TRUE(authorise(kAnn, type, "speech").allowed) << type;
    const Verdict other = authorise(kAnn, type, "robots");
    EXPECT_FALSE(other.allowed) << type;
    EXPECT_THAT(other.reason, AllOf(HasSubstr("'ann'"), HasSubstr("vision, speech"),
                                    HasSubstr("not for tenant robots")));
    EXPECT_FALSE(authorise(kAnn, type, "").allowed) << type;
    EXPECT_FALSE(authorise(kAnn, type, "Vision").allowed) << type;
    EXPECT_FALSE(authorise(kAnn, type, "visio").allowed) << type;
  }
}

TEST(AuthorisationTest, AUserHearsThatAJobIsNotThere) {
  for (const std::string& type : kOfAJob) EXPECT_TRUE(authorise(kAnn, type, {}).allowed) << type;
}

TEST(AuthorisationTest, AUserLooksAndDoesNotSteer) {
  for (const std::string& type : kLists) EXPECT_TRUE(authorise(kAnn, type, {}).allowed) << type;
  for (const std::string& type : kSteering) {
    const Verdict verdict = authorise(kAnn, type, {});
    EXPECT_FALSE(verdict.allowed) << type;
    EXPECT_THAT(verdict.reason, HasSubstr("is for operators"));
    EXPECT_FALSE(authorise(kAnn, type, "vision").allowed) << type;
  }
}

TEST(AuthorisationTest, AnOperatorDoesEverythingButReport) {
  for (const auto& types : {kOfAJob, kLists, kSteering}) {
    for (const std::string& type : types) {
      EXPECT_TRUE(authorise(kBoss, type, "robots").allowed) << type;
      EXPECT_TRUE(authorise(kBoss, type, {}).allowed) << type;
    }
  }
  EXPECT_FALSE(authorise(kBoss, kHeartbeat, {}).allowed);
  EXPECT_FALSE(authorise(kAnn, kHeartbeat, {}).allowed);
}

TEST(AuthorisationTest, ANodeOnlyReports) {
  EXPECT_TRUE(authorise(kMachine, kHeartbeat, {}).allowed);
  for (const auto& types : {kOfAJob, kLists, kSteering}) {
    for (const std::string& type : types) {
      const Verdict verdict = authorise(kMachine, type, {});
      EXPECT_FALSE(verdict.allowed) << type;
      EXPECT_THAT(verdict.reason, HasSubstr("a node only reports"));
      EXPECT_FALSE(authorise(kMachine, type, "vision").allowed) << type;
    }
  }
}

TEST(AuthorisationTest, EveryVerdictSaysWhy) {
  for (const AllowedKey& caller : {kAnn, kBoss, kMachine}) {
    for (const auto& types : {kOfAJob, kLists, kSteering}) {
      for (const std::string& type : types) {
        EXPECT_FALSE(authorise(caller, type, {}).reason.empty());
        EXPECT_FALSE(authorise(caller, type, "vision").reason.empty());
      }
    }
  }
}

TEST(AuthorisationTest, OneSeesWhatIsOnesOwn) {
  EXPECT_TRUE(may_see(kAnn, "vision"));
  EXPECT_FALSE(may_see(kAnn, "robots"));
  EXPECT_FALSE(may_see(kAnn, ""));
  EXPECT_TRUE(may_see(kBoss, "robots"));
  EXPECT_FALSE(may_see(kMachine, "vision"));
}

}  // namespace
}  // namespace commensal::cluster::authorisation_test
