// SPDX-License-Identifier: Apache-2.0
// A session follows its share of a GPU's multiprocessors at the ends of steps. One session a
// process.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "allocator/deferred_source.h"
#include "tests/allocator/moving_source.h"
#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "torch_ext/runtime/multiprocessor_dial.h"
#include "torch_ext/runtime/session.h"

namespace commensal::session_multiprocessors_test {
namespace {

using testing::eventually;
using testing::FakeCoordinator;
using testing::TemporaryFolder;

using Asked = std::vector<std::optional<double>>;

/// Of 100 multiprocessors; grants what is asked for.
class FakeDial final : public MultiprocessorDial {
 public:
  FakeDial(Asked& asked, std::string& refusal) : asked_(asked), refusal_(refusal) {}
  std::optional<MultiprocessorState> follow(std::optional<double> share) noexcept override {
    asked_.push_back(share);
    const auto count = static_cast<unsigned>(100 * share.value_or(1.0));
    return MultiprocessorState{count, refusal_.empty() ? count : 100U, 100, refusal_};
  }

 private:
  Asked& asked_;
  std::string& refusal_;
};

std::unique_ptr<MemorySource> make_offered(const SessionConfig& /*config*/, bool (*)()) {
  return std::make_unique<DeferredSource>([] { return std::make_unique<MovingSource>(); }, 64_KiB,
                                          [] { return MoveRisk{}; });
}

class SessionMultiprocessorsTest : public ::testing::Test {
 protected:
  Session& start(std::optional<double> share, const std::string& device = "made-up",
                 JobClass job_class = JobClass::kOpportunistic, const std::string& held_by = "") {
    Session::offer_memory("made-up", &make_offered);
    SessionConfig config;
    config.job_id = JobId{"job-1"};
    config.name = "test";
    config.job_class = job_class;
    config.terms.idle_class = false;
    config.device = device;
    config.terms.sm_share = share;
    config.sm_held_by = held_by;
    // The coordinator of the tests takes every job for an opportunistic one.
    if (job_class == JobClass::kOpportunistic) config.runtime_dir = folder_.path();
    config.connect_timeout = std::chrono::seconds{10};
    Session& session = Session::start(config);
    session.follow_multiprocessors(std::make_unique<FakeDial>(asked_, refusal_));
    return session;
  }
  static void step(Session& session) {
    session.range_begin("Optimizer.step#SGD.step");
    session.range_end("Optimizer.step#SGD.step");
  }
  static nlohmann::json stats(const Session& session) {
    return nlohmann::json::parse(session.stats_json()).at("multiprocessors");
  }
  static std::size_t notes(const Session& session, const std::string& line) {
    std::size_t count = 0;
    const nlohmann::json stats = nlohmann::json::parse(session.stats_json());
    for (const auto& note : stats.at("memory").at("notes")) count += note == line ? 1 : 0;
    return count;
  }

  Asked asked_;
  std::string refusal_;
  TemporaryFolder folder_;
  FakeCoordinator coordinator_{folder_.path()};
};

TEST_F(SessionMultiprocessorsTest, WithoutAShareNothingIsAsked) {
  Session& session = start(std::nullopt);
  step(session);
  EXPECT_TRUE(asked_.empty());
  EXPECT_TRUE(stats(session)["share"].is_null());
  EXPECT_TRUE(stats(session)["total"].is_null());
}

TEST_F(SessionMultiprocessorsTest, IsFollowedAtTheEndsOfStepsAndTold) {
  Session& session = start(0.25);
  EXPECT_EQ(stats(session)["reason"], "from the end of the first step on a GPU");
  EXPECT_TRUE(asked_.empty());
  step(session);
  step(session);
  EXPECT_EQ(asked_, (Asked{0.25, 0.25}));
  EXPECT_EQ(stats(session),
            (nlohmann::json{
                {"share", 0.25}, {"asked", 25}, {"granted", 25}, {"total", 100}, {"reason", ""}}));
}

TEST_F(SessionMultiprocessorsTest, AChangeCountsFromTheNextStepOn) {
  Session& session = start(std::nullopt);
  wire::Change change;
  change.job_id = "job-1";
  change.revision = 2;
  change.terms.sm_share = 0.5;
  coordinator_.send(change);
  EXPECT_TRUE(eventually([&] { return stats(session)["share"] == 0.5; }));
  EXPECT_TRUE(asked_.empty());
  step(session);
  EXPECT_EQ(asked_, Asked{0.5});
}

TEST_F(SessionMultiprocessorsTest, AWrongChangeLeavesItAsItWas) {
  Session& session = start(0.25);
  wire::Change change;
  change.job_id = "job-1";
  change.revision = 2;
  change.terms.sm_share = -1.0;
  coordinator_.send(change);
  change.revision = 3;
  change.terms.sm_share.reset();
  change.terms.share = ShareRange{0.0, 0.5};
  coordinator_.send(change);
  EXPECT_TRUE(eventually([&] {
    return nlohmann::json::parse(session.stats_json()).at("gate").at("share") == 0.5;
  })) << "it lives on";
  EXPECT_EQ(stats(session)["share"], 0.25);
}

TEST_F(SessionMultiprocessorsTest, AReasonIsNotedOnce) {
  Session& session = start(0.25);
  refusal_ = "cuGreenCtxCreate: no";
  step(session);
  step(session);
  EXPECT_EQ(stats(session)["reason"], "cuGreenCtxCreate: no");
  EXPECT_EQ(stats(session)["granted"], 100);
  EXPECT_EQ(notes(session, "no share of the SMs: cuGreenCtxCreate: no"), 1U);
}

TEST_F(SessionMultiprocessorsTest, AGuaranteedJobHasAllOfThem) {
  Session& session = start(0.25, "made-up", JobClass::kGuaranteed);
  step(session);
  EXPECT_TRUE(asked_.empty());
  EXPECT_TRUE(stats(session)["share"].is_null());
}

TEST_F(SessionMultiprocessorsTest, WhatHoldsItFromOutsideIsTold) {
  Session& session = start(0.25, "made-up", JobClass::kOpportunistic, "MPS holds it");
  step(session);
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(stats(session)["reason"], "MPS holds it");
  EXPECT_EQ(stats(session)["share"], 0.25);
}

TEST_F(SessionMultiprocessorsTest, OnTheHostThereAreNone) {
  Session& session = start(0.25, "host");
  EXPECT_NE(stats(session)["reason"].get<std::string>().find("uses no GPU"), std::string::npos);
}

}  // namespace
}  // namespace commensal::session_multiprocessors_test
