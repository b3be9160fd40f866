// SPDX-License-Identifier: Apache-2.0
// What every engine keeps to: a suite that each one's test instantiates with its own harness.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/cluster/engine.h"

namespace commensal::cluster {

/// An engine and the world that outlives it.
class EngineHarness {
 public:
  virtual ~EngineHarness() = default;
  /// Nodes of each of its jobs, which have one rank on each.
  [[nodiscard]] virtual std::size_t width() const { return 1; }
  /// Another object of the engine, as after a crash of the coordinator.
  virtual std::unique_ptr<Engine> make() = 0;

  [[nodiscard]] virtual JobSpec ends_with(int exit_code) = 0;
  [[nodiscard]] virtual JobSpec runs_on() = 0;  ///< until it gets SIGTERM
  [[nodiscard]] virtual JobSpec ignores_sigterm() = 0;
  /// How often each rank of the attempt was started; counted by themselves where there are
  /// processes.
  [[nodiscard]] virtual int starts(const Attempt& attempt) = 0;
  /// Makes it impossible to say what became of a running attempt.
  virtual void lose(const Attempt& attempt) = 0;
  /// Returns when the engine may have something to tell, or soon.
  virtual void wait(Engine& engine) = 0;
};

struct EngineUnderTest {
  std::string name;
  std::function<std::unique_ptr<EngineHarness>()> make;
  /// What this machine lacks for it; empty: nothing.
  std::function<std::string()> lacks = [] { return std::string{}; };
};

inline std::string name_of(const ::testing::TestParamInfo<EngineUnderTest>& info) {
  return info.param.name;
}
inline void PrintTo(const EngineUnderTest& engine, std::ostream* out) { *out << engine.name; }

class EngineContract : public ::testing::TestWithParam<EngineUnderTest> {
 protected:
  using Kind = EngineEvent::Kind;
  static constexpr auto kGrace = std::chrono::milliseconds{60'000};
  static constexpr auto kNoGrace = std::chrono::milliseconds{0};

  void SetUp() override {
    if (const std::string what = GetParam().lacks(); !what.empty()) GTEST_SKIP() << what;
    harness_ = GetParam().make();
    engine_ = harness_->make();
  }

  /// The coordinator dies and is started again.
  void crash() {
    engine_.reset();
    engine_ = harness_->make();
    events_.clear();
  }

  [[nodiscard]] std::vector<DevicePlace> somewhere(std::size_t device = 0) {
    const auto nodes = engine_->nodes();
    std::vector<DevicePlace> places;
    for (std::size_t i = 0; i < harness_->width(); ++i) {
      const EngineNode& node = nodes.at((device + i) % nodes.size());
      places.push_back(
          {node.name, static_cast<std::int32_t>(device / nodes.size() % node.devices.size())});
    }
    return places;
  }
  void start(const Attempt& attempt, const JobSpec& spec) {
    engine_->hold(attempt, spec);
    engine_->place(attempt, somewhere(), JobClass::kOpportunistic);
    engine_->release(attempt);
  }

  /// Collects events until `done`; false after a minute.
  bool until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes{1};
    while (true) {
      for (EngineEvent& event : engine_->watch()) events_.push_back(std::move(event));
      if (done()) return true;
      if (std::chrono::steady_clock::now() > deadline) return false;
      harness_->wait(*engine_);
    }
  }
  [[nodiscard]] std::vector<Kind> kinds(const Attempt& attempt) const {
    std::vector<Kind> all;
    for (const EngineEvent& event : events_) {
      if (event.attempt == attempt) all.push_back(event.kind);
    }
    return all;
  }
  [[nodiscard]] const EngineEvent* end_of(const Attempt& attempt) const {
    for (const EngineEvent& event : events_) {
      if (event.attempt == attempt && event.kind != Kind::kBegan) return &event;
    }
    return nullptr;
  }
  bool until_end(const Attempt& attempt) {
    return until([&] { return end_of(attempt) != nullptr; });
  }
  /// Began, and its own process has come to say so.
  bool until_runs(const Attempt& attempt) {
    return until([&] { return !kinds(attempt).empty() && harness_->starts(attempt) > 0; });
  }
  [[nodiscard]] const Engine::Found* found(const std::vector<Engine::Found>& all,
                                           const Attempt& attempt) const {
    for (const Engine::Found& one : all) {
      if (one.attempt == attempt) return &one;
    }
    return nullptr;
  }

  const Attempt attempt_{JobId{"7"}, 1};
  std::unique_ptr<EngineHarness> harness_;
  std::unique_ptr<Engine> engine_;
  std::vector<EngineEvent> events_;
};

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_P(EngineContract, HasANameAndNodesWithDevices) {
  EXPECT_FALSE(engine_->name().empty());
  const auto nodes = engine_->nodes();
  ASSERT_FALSE(nodes.empty());
  std::set<std::string> names;
  for (const EngineNode& node : nodes) {
    EXPECT_TRUE(names.insert(node.name).second) << node.name;
    EXPECT_FALSE(node.devices.empty()) << node.name;
    EXPECT_GT(node.cpu_milli, 0) << node.name;
    EXPECT_GT(node.memory_mib, 0) << node.name;
  }
}

TEST_P(EngineContract, NothingRunsBeforeItIsReleased) {
  engine_->hold(attempt_, harness_->runs_on());
  engine_->place(attempt_, somewhere(), JobClass::kGuaranteed);
  const Attempt other{JobId{"8"}, 1};
  start(other, harness_->ends_with(0));
  ASSERT_TRUE(until_end(other));  // what was released first would have begun by now
  EXPECT_THAT(kinds(attempt_), IsEmpty());
  EXPECT_EQ(harness_->starts(attempt_), 0);
}

TEST_P(EngineContract, TellsBeginAndEndOnceAndInOrder) {
  start(attempt_, harness_->ends_with(0));
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_EQ(end_of(attempt_)->exit_code, 0);
  EXPECT_FALSE(end_of(attempt_)->reason.empty());
  const Attempt other{JobId{"8"}, 1};
  start(other, harness_->ends_with(0));
  ASSERT_TRUE(until_end(other));
  EXPECT_THAT(kinds(attempt_), ElementsAre(Kind::kBegan, Kind::kExited));
  EXPECT_EQ(harness_->starts(attempt_), 1);
}

TEST_P(EngineContract, ExitCodesArriveAsTheyAre) {
  for (const int code : {1, 3, 255}) {
    const Attempt attempt{JobId{"code-" + std::to_string(code)}, 1};
    start(attempt, harness_->ends_with(code));
    ASSERT_TRUE(until_end(attempt));
    EXPECT_EQ(end_of(attempt)->kind, Kind::kExited);
    EXPECT_EQ(end_of(attempt)->exit_code, code);
  }
}

TEST_P(EngineContract, WhatWasNotHeldCannotBePlacedAndWhatWasNotPlacedCannotBeReleased) {
  EXPECT_THROW(engine_->place(attempt_, somewhere(), JobClass::kGuaranteed), EngineFailed);
  EXPECT_THROW(engine_->release(attempt_), EngineFailed);
  engine_->hold(attempt_, harness_->runs_on());
  EXPECT_THROW(engine_->release(attempt_), EngineFailed);
  EXPECT_THROW(engine_->place(attempt_, {}, JobClass::kGuaranteed), EngineFailed);
  EXPECT_THROW(engine_->place(attempt_, {{"no such node", 0}}, JobClass::kGuaranteed),
               EngineFailed);
  EXPECT_THROW(engine_->release(attempt_), EngineFailed);
  EXPECT_THAT(events_, IsEmpty());
}

TEST_P(EngineContract, JobsThatCanNeverStartAreRefusedAndNothingIsKeptOfThem) {
  JobSpec empty = harness_->runs_on();
  empty.command.clear();
  EXPECT_THROW(engine_->hold(attempt_, empty), std::invalid_argument);
  JobSpec relative = harness_->runs_on();
  relative.directory = "somewhere";
  EXPECT_THROW(engine_->hold(attempt_, relative), std::invalid_argument);
  EXPECT_THAT(engine_->adopt(), IsEmpty());
}

TEST_P(EngineContract, BeforeReleaseTheLastPlacementCountsAndAfterItNone) {
  engine_->hold(attempt_, harness_->runs_on());
  engine_->place(attempt_, somewhere(0), JobClass::kGuaranteed);
  engine_->place(attempt_, somewhere(1), JobClass::kOpportunistic);
  engine_->release(attempt_);
  ASSERT_TRUE(until_runs(attempt_));
  engine_->place(attempt_, somewhere(0), JobClass::kGuaranteed);
  EXPECT_THAT(engine_->adopt(),
              ElementsAre(Engine::Found{attempt_, true, somewhere(1), JobClass::kOpportunistic}));
}

TEST_P(EngineContract, EveryCallMayBeRepeated) {
  for (int i = 0; i < 3; ++i) engine_->hold(attempt_, harness_->runs_on());
  for (int i = 0; i < 3; ++i) engine_->place(attempt_, somewhere(), JobClass::kGuaranteed);
  for (int i = 0; i < 3; ++i) engine_->release(attempt_);
  ASSERT_TRUE(until_runs(attempt_));
  engine_->hold(attempt_, harness_->runs_on());
  engine_->release(attempt_);
  for (int i = 0; i < 3; ++i) engine_->take_back(attempt_, kGrace);
  ASSERT_TRUE(until_end(attempt_));
  engine_->take_back(attempt_, kGrace);
  engine_->release(attempt_);
  EXPECT_THAT(kinds(attempt_), ElementsAre(Kind::kBegan, Kind::kTakenBack));
  for (int i = 0; i < 3; ++i) engine_->forget(attempt_);
  EXPECT_THAT(engine_->watch(), IsEmpty());
  EXPECT_EQ(harness_->starts(attempt_), 1);
}

TEST_P(EngineContract, RanksStartOnceThoughTheCoordinatorDiesAfterEachCall) {
  const std::vector<std::function<void()>> calls{
      [&] { engine_->hold(attempt_, harness_->runs_on()); },
      [&] { engine_->place(attempt_, somewhere(), JobClass::kGuaranteed); },
      [&] { engine_->release(attempt_); }};
  for (std::size_t last = 0; last < calls.size(); ++last) {
    // It does not know how far it came, and begins again.
    for (std::size_t i = 0; i <= last; ++i) calls[i]();
    crash();
  }
  for (const auto& call : calls) call();
  ASSERT_TRUE(until_runs(attempt_));
  crash();
  engine_->release(attempt_);
  engine_->take_back(attempt_, kGrace);
  crash();
  engine_->take_back(attempt_, kGrace);
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_EQ(end_of(attempt_)->kind, Kind::kTakenBack);
  EXPECT_EQ(harness_->starts(attempt_), 1);
}

TEST_P(EngineContract, AdoptFindsWhatIsHeldPlacedOrRuns) {
  const Attempt placed{JobId{"8"}, 2};
  const Attempt running{JobId{"9"}, 3};
  engine_->hold(attempt_, harness_->runs_on());
  engine_->hold(placed, harness_->runs_on());
  engine_->place(placed, somewhere(), JobClass::kGuaranteed);
  start(running, harness_->runs_on());
  ASSERT_TRUE(until_runs(running));
  crash();
  for (int i = 0; i < 2; ++i) {
    const auto all = engine_->adopt();
    EXPECT_EQ(all.size(), 3U);
    ASSERT_NE(found(all, attempt_), nullptr);
    EXPECT_FALSE(found(all, attempt_)->running);
    EXPECT_THAT(found(all, attempt_)->placement, IsEmpty());
    ASSERT_NE(found(all, placed), nullptr);
    EXPECT_EQ(*found(all, placed),
              (Engine::Found{placed, false, somewhere(), JobClass::kGuaranteed}));
    ASSERT_NE(found(all, running), nullptr);
    EXPECT_EQ(*found(all, running),
              (Engine::Found{running, true, somewhere(), JobClass::kOpportunistic}));
  }
}

TEST_P(EngineContract, EventsAreToldAgainAfterACrashUntilTheyAreForgotten) {
  start(attempt_, harness_->ends_with(3));
  ASSERT_TRUE(until_end(attempt_));
  const auto first = events_;
  EXPECT_THAT(engine_->watch(), IsEmpty());
  for (int i = 0; i < 2; ++i) {
    crash();
    EXPECT_THAT(engine_->adopt(), IsEmpty());
    ASSERT_TRUE(until_end(attempt_));
    EXPECT_EQ(events_, first);
  }
  engine_->forget(attempt_);
  crash();
  EXPECT_THAT(engine_->adopt(), IsEmpty());
  EXPECT_THAT(engine_->watch(), IsEmpty());
}

TEST_P(EngineContract, WhatEndsWhileThereIsNoCoordinatorIsToldToTheNext) {
  start(attempt_, harness_->ends_with(5));
  crash();
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_THAT(kinds(attempt_), ElementsAre(Kind::kBegan, Kind::kExited));
  EXPECT_EQ(end_of(attempt_)->exit_code, 5);
}

TEST_P(EngineContract, AHeldAttemptThatIsTakenBackIsForgotten) {
  for (const bool placed : {false, true}) {
    engine_->hold(attempt_, harness_->runs_on());
    if (placed) engine_->place(attempt_, somewhere(), JobClass::kGuaranteed);
    engine_->take_back(attempt_, kGrace);
    EXPECT_THAT(engine_->adopt(), IsEmpty());
    EXPECT_THROW(engine_->release(attempt_), EngineFailed);
    EXPECT_THAT(engine_->watch(), IsEmpty());
  }
  EXPECT_EQ(harness_->starts(attempt_), 0);
}

TEST_P(EngineContract, WhatWasReleasedAndTakenBackAtOnceEndsOnce) {
  for (int i = 0; i < 10; ++i) {
    const Attempt attempt{JobId{"quick"}, static_cast<std::uint32_t>(i)};
    start(attempt, harness_->runs_on());
    if (i % 2 == 1) crash();
    engine_->take_back(attempt, kGrace);
    ASSERT_TRUE(until_end(attempt)) << i;
    EXPECT_EQ(end_of(attempt)->kind, Kind::kTakenBack) << end_of(attempt)->reason;
    EXPECT_LE(harness_->starts(attempt), 1);
  }
}

TEST_P(EngineContract, OneThatIgnoresSigtermIsKilledAfterTheGrace) {
  start(attempt_, harness_->ignores_sigterm());
  ASSERT_TRUE(until_runs(attempt_));
  engine_->take_back(attempt_, kGrace);
  EXPECT_EQ(end_of(attempt_), nullptr);
  engine_->take_back(attempt_, kNoGrace);  // there is no time any more
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_EQ(end_of(attempt_)->kind, Kind::kTakenBack);
  EXPECT_EQ(end_of(attempt_)->exit_code, 137);
}

TEST_P(EngineContract, TakingBackWhatIsUnknownOrHasEndedChangesNothing) {
  engine_->take_back(attempt_, kNoGrace);
  start(attempt_, harness_->ends_with(4));
  ASSERT_TRUE(until_end(attempt_));
  engine_->take_back(attempt_, kNoGrace);
  crash();
  engine_->take_back(attempt_, kNoGrace);
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_EQ(end_of(attempt_)->kind, Kind::kExited);
  EXPECT_EQ(end_of(attempt_)->exit_code, 4);
}

TEST_P(EngineContract, ALostAttemptVanishesAndDoesNotStartAgain) {
  start(attempt_, harness_->runs_on());
  ASSERT_TRUE(until_runs(attempt_));
  harness_->lose(attempt_);
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_THAT(kinds(attempt_), ElementsAre(Kind::kBegan, Kind::kVanished));
  EXPECT_FALSE(end_of(attempt_)->exit_code.has_value());
  engine_->release(attempt_);
  crash();
  engine_->release(attempt_);
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_EQ(end_of(attempt_)->kind, Kind::kVanished);
  EXPECT_THAT(engine_->adopt(), IsEmpty());
  EXPECT_EQ(harness_->starts(attempt_), 1);
}

TEST_P(EngineContract, OneThatIsLostWhileThereIsNoCoordinatorVanishesForTheNext) {
  start(attempt_, harness_->runs_on());
  ASSERT_TRUE(until_runs(attempt_));
  engine_.reset();
  harness_->lose(attempt_);
  crash();
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_EQ(end_of(attempt_)->kind, Kind::kVanished);
}

TEST_P(EngineContract, ForgettingWhatRunsOrIsUnknownChangesNothing) {
  engine_->forget(attempt_);
  start(attempt_, harness_->runs_on());
  ASSERT_TRUE(until_runs(attempt_));
  engine_->forget(attempt_);
  EXPECT_EQ(engine_->adopt().size(), 1U);
  engine_->take_back(attempt_, kGrace);
  ASSERT_TRUE(until_end(attempt_));
  EXPECT_EQ(end_of(attempt_)->kind, Kind::kTakenBack);
}

TEST_P(EngineContract, AttemptsOfOneJobAreNotMixedUp) {
  const Attempt second{attempt_.job, 2};
  start(attempt_, harness_->runs_on());
  ASSERT_TRUE(until_runs(attempt_));
  harness_->lose(attempt_);
  ASSERT_TRUE(until_end(attempt_));
  start(second, harness_->runs_on());
  ASSERT_TRUE(until_runs(second));
  engine_->take_back(attempt_, kNoGrace);
  engine_->forget(attempt_);
  EXPECT_THAT(engine_->adopt(),
              ElementsAre(Engine::Found{second, true, somewhere(), JobClass::kOpportunistic}));
  engine_->take_back(second, kGrace);
  ASSERT_TRUE(until_end(second));
  EXPECT_EQ(end_of(second)->kind, Kind::kTakenBack);
  EXPECT_EQ(harness_->starts(second), 1);
}

TEST_P(EngineContract, TheHighestJobIsThatOfWhateverIsLeft) {
  EXPECT_EQ(engine_->highest_job(), 0U);
  engine_->hold({JobId{"law-99"}, 99}, harness_->runs_on());
  EXPECT_EQ(engine_->highest_job(), 0U) << "its id is no number";
  const Attempt ended{JobId{"12"}, 1};
  start(ended, harness_->ends_with(0));
  ASSERT_TRUE(until_end(ended));
  start(attempt_, harness_->runs_on());
  ASSERT_TRUE(until_runs(attempt_));
  const Attempt held{JobId{"100"}, 2};  // in the order of names it is before 12
  engine_->hold(held, harness_->runs_on());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(engine_->highest_job(), 100U) << "held";
    crash();
  }
  engine_->take_back(held, kGrace);
  EXPECT_EQ(engine_->highest_job(), 12U) << "ended and not forgotten";
}

TEST_P(EngineContract, WhatIsForgottenCountsAsLongAsItsOutputIsThere) {
  start(attempt_, harness_->ends_with(0));
  ASSERT_TRUE(until_end(attempt_));
  engine_->forget(attempt_);
  const std::vector<std::string> logs = engine_->logs(attempt_);
  crash();
  EXPECT_EQ(engine_->logs(attempt_), logs);
  const std::uint64_t highest = engine_->highest_job();
  EXPECT_TRUE(highest == 7 || (logs.empty() && highest == 0)) << highest;
}

TEST_P(EngineContract, AttemptsAreAllOfWhichThereIsAnything) {
  EXPECT_THAT(engine_->attempts(), IsEmpty());
  const Attempt ended{JobId{"12"}, 1};
  start(ended, harness_->ends_with(0));
  ASSERT_TRUE(until_end(ended));
  start(attempt_, harness_->runs_on());
  const Attempt held{JobId{"law-99"}, 99};
  engine_->hold(held, harness_->runs_on());
  crash();
  EXPECT_THAT(engine_->attempts(), ::testing::UnorderedElementsAre(ended, attempt_, held));
  engine_->take_back(held, kGrace);
  ASSERT_TRUE(until_end(ended));
  engine_->forget(ended);
  EXPECT_THAT(engine_->attempts(), ::testing::ElementsAre(attempt_));
}

TEST_P(EngineContract, TheStampOfTheStoreIsKept) {
  EXPECT_EQ(engine_->store_stamp(), "");
  for (const char* stamp : {"0123abcd", "another"}) {
    engine_->set_store_stamp(stamp);
    crash();
    EXPECT_EQ(engine_->store_stamp(), stamp);
  }
}

TEST_P(EngineContract, LogsOfAnUnknownAttemptAreEmpty) {
  EXPECT_THAT(engine_->logs(attempt_), IsEmpty());
}

/// Random calls and crashes. Whatever their order: no attempt's ranks start twice, none ends twice
/// for one coordinator, and in the end nothing is left.
TEST_P(EngineContract, LawsHoldForAnyOrderOfCalls) {
  const unsigned seed =
      ::testing::UnitTest::GetInstance()->random_seed() != 0
          ? static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed())
          : 20261u;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<Attempt> attempts;
  for (std::uint32_t i = 0; i < 6; ++i) attempts.push_back({JobId{"law-" + std::to_string(i)}, i});
  const auto check = [&] {
    for (const Attempt& attempt : attempts) {
      ASSERT_LE(harness_->starts(attempt), 1);
      const auto told = kinds(attempt);
      ASSERT_LE(told.size(), 2U);
      if (told.size() == 2) {
        ASSERT_EQ(told[0], Kind::kBegan);
        ASSERT_NE(told[1], Kind::kBegan);
      }
    }
  };
  const auto attempted = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const EngineFailed&) {  // out of order: it says so
    }
  };
  for (int step = 0; step < 120; ++step) {
    const Attempt& attempt = attempts[below(attempts.size())];
    switch (below(8)) {
      case 0:
        engine_->hold(attempt, below(2) == 0 ? harness_->runs_on() : harness_->ends_with(1));
        break;
      case 1:
        attempted([&] { engine_->place(attempt, somewhere(), JobClass::kGuaranteed); });
        break;
      case 2:
      case 3: attempted([&] { engine_->release(attempt); }); break;
      case 4:
        if (below(3) == 0) engine_->take_back(attempt, kGrace);
        break;
      case 5:
        if (below(3) == 0) crash();
        break;
      case 6: (void)until([] { return true; }); break;
      default: (void)engine_->adopt(); break;
    }
    check();
  }
  for (const Attempt& attempt : attempts) engine_->take_back(attempt, kNoGrace);
  ASSERT_TRUE(until([&] { return engine_->adopt().empty(); }));
  check();
  for (const Attempt& attempt : attempts) engine_->forget(attempt);
  crash();
  EXPECT_THAT(engine_->adopt(), IsEmpty());
  EXPECT_THAT(engine_->watch(), IsEmpty());
}

}  // namespace commensal::cluster
