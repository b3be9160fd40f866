// SPDX-License-Identifier: Apache-2.0
// The slow loop in simulated time, against a small model of a guaranteed job.
#include "coordinator/node/compute_controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace commensal::node {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr double kBase = 0.05;  // seconds of a step alone

SlowdownEstimate estimate(double value, double error = 0.001) { return {value, error, 40}; }

// --- one decision
// ---------------------------------------------------------------------------------

TEST(ShareDecision, HalvesWhenTheSlowdownIsBeyondDoubt) {
  const auto decision = decide_share({{0, 1}, {0.4, 1.0, 0}, estimate(0.05)}, {});
  EXPECT_DOUBLE_EQ(decision.state.share, 0.2);
  EXPECT_DOUBLE_EQ(decision.state.ceiling, 0.4);
  EXPECT_THAT(decision.reason,
              HasSubstr("guaranteed step 5.0 % over baseline (+-0.1 %, n = 40), above 1.0 %"));
}

TEST(ShareDecision, HoldsWhatIsNotCertain) {
  const auto decision = decide_share({{0, 1}, {0.4, 1.0, 0}, estimate(0.03, 0.05)}, {});
  EXPECT_DOUBLE_EQ(decision.state.share, 0.4);
  EXPECT_THAT(decision.reason, HasSubstr("not certain"));
}

TEST(ShareDecision, RisesToBelowWhatWasTooMuch) {
  ShareState state{0.1, 0.4, 0};
  for (int i = 0; i < 20; ++i) state = decide_share({{0, 1}, state, estimate(0.0)}, {}).state;
  EXPECT_DOUBLE_EQ(state.share, 0.32);
}

TEST(ShareDecision, ProbesAfterALongTime) {
  ShareState state{0.32, 0.4, 0};
  for (int i = 0; i < 100; ++i) state = decide_share({{0, 1}, state, estimate(0.0)}, {}).state;
  EXPECT_GT(state.share, 0.32);
}

TEST(ShareDecision, KeepsTrickleAndBounds) {
  ShareState state{1.0, 1.0, 0};
  for (int i = 0; i < 50; ++i) state = decide_share({{0, 1}, state, estimate(0.5)}, {}).state;
  EXPECT_DOUBLE_EQ(state.share, 0.01);
  state = decide_share({{0.2, 0.5}, state, estimate(0.5)}, {}).state;
  EXPECT_DOUBLE_EQ(state.share, 0.2) << "a minimum that was asked for";
  for (int i = 0; i < 50; ++i) state = decide_share({{0.2, 0.5}, state, estimate(0.0)}, {}).state;
  EXPECT_LE(state.share, 0.5);
}

// --- the loop
// -------------------------------------------------------------------------------------

/// A guaranteed job whose steps take `base * (1 + cost * share)`, and the time around it.
class Simulation {
 public:
  explicit Simulation(double cost, bool idle_class, ComputeConfig config = {})
      : cost_(cost), controller_(config) {
    view_.device = DeviceId{"host"};
    opportunistic_ = {JobId{"o"}, {0, 1}, false, idle_class};
    begin_step();
  }

  void add_guaranteed() { view_.guaranteed = {{JobId{"g"}, 0, {}}}; }
  void add_opportunistic() { view_.opportunistic = {opportunistic_}; }
  ComputeView::Opportunistic& job(std::size_t number = 0) { return view_.opportunistic.at(number); }
  void add_another(const std::string& id, policies::ShareRange bounds) {
    view_.opportunistic.push_back({JobId{id}, bounds, false, opportunistic_.idle_class});
  }
  void remove_last() { view_.opportunistic.pop_back(); }

  /// Passes time in ticks of 20 ms; `always_lose` slows every shared step, whatever the share.
  void run(Duration duration) {
    const TimePoint end = now_ + duration;
    while (now_ < end) {
      now_ += 20ms;
      while (step_end_ <= now_) end_step();
      view_.now = now_;
      update();
    }
  }

  void update() {
    view_.now = now_;
    const auto plan = controller_.update(view_);
    shares_.clear();
    for (const auto& change : plan.shares) shares_.push_back(change.share);
    share_ = std::accumulate(shares_.begin(), shares_.end(), 0.0);
    reason_ = plan.shares.empty() ? "" : plan.shares[0].reason;
    if (controller_.window_closed()) longest_closed_ += 20ms;
  }

  [[nodiscard]] double share() const { return share_; }  ///< of all jobs together
  [[nodiscard]] double share(std::size_t number) const { return shares_.at(number); }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] const ComputeController& controller() const { return controller_; }
  [[nodiscard]] double baseline() const { return controller_.baseline(JobId{"g"}).seconds; }
  [[nodiscard]] std::size_t baseline_steps() const {
    return controller_.baseline(JobId{"g"}).steps;
  }
  [[nodiscard]] TimePoint now() const { return now_; }
  /// Mean slowdown of the steps since the last call.
  double take_slowdown() {
    const double mean = steps_ == 0 ? 0.0 : total_ / static_cast<double>(steps_) / base_ - 1.0;
    steps_ = 0;
    total_ = 0.0;
    return mean;
  }
  void set_base(double seconds) { base_ = seconds; }
  void set_constant_loss(double loss) { loss_ = loss; }

 private:
  void begin_step() {
    const bool disturbed = share_ > 0.0;
    const double seconds =
        base_ * (1.0 + cost_ * share_ + (disturbed ? loss_ : 0.0)) * (1.0 + noise_(random_));
    step_duration_ = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    step_end_ += step_duration_;
  }
  void end_step() {
    if (!view_.guaranteed.empty()) {
      ++view_.guaranteed[0].step_number;
      view_.guaranteed[0].step_last = step_duration_;
    }
    total_ += std::chrono::duration<double>(step_duration_).count();
    ++steps_;
    begin_step();
  }

  double cost_;
  double loss_ = 0.0;
  double base_ = kBase;
  ComputeController controller_;
  ComputeView view_;
  ComputeView::Opportunistic opportunistic_;
  std::mt19937 random_{42};
  std::normal_distribution<double> noise_{0.0, 0.01};
  TimePoint now_{1h};
  TimePoint step_end_{1h};
  Duration step_duration_{};
  double share_ = 0.0;
  std::vector<double> shares_;
  std::string reason_;
  double total_ = 0.0;
  std::uint64_t steps_ = 0;
  Duration longest_closed_{};
};

TEST(ComputeController, SlowdownConvergesUnderTheObjective) {
  Simulation simulation{0.2, false};  // the whole share would cost 20 %
  simulation.add_guaranteed();
  simulation.run(10s);
  simulation.add_opportunistic();
  simulation.run(120s);
  simulation.take_slowdown();
  simulation.run(600s);
  EXPECT_LT(simulation.take_slowdown(), 0.0125) << simulation.reason();
  EXPECT_GT(simulation.share(), 0.015) << "and not by giving nothing: " << simulation.reason();
}

TEST(ComputeController, HarmlessJobsRiseToTheirMaximum) {
  Simulation simulation{0.0, false};
  simulation.add_guaranteed();
  simulation.run(10s);
  simulation.add_opportunistic();
  simulation.run(1ms);
  EXPECT_DOUBLE_EQ(simulation.share(), 0.01);
  EXPECT_THAT(simulation.reason(), HasSubstr("begins at its trickle"));
  simulation.run(300s);
  EXPECT_GT(simulation.share(), 0.5) << simulation.reason();
}

TEST(ComputeController, IdleClassJobsBeginAtTheirMaximumAndAreCutWhenTheyHurt) {
  Simulation harmless{0.0, true};
  harmless.add_guaranteed();
  harmless.run(10s);
  harmless.add_opportunistic();
  harmless.run(60s);
  EXPECT_DOUBLE_EQ(std::max(harmless.share(), harmless.controller().window_closed() ? 1.0 : 0.0),
                   1.0);
  Simulation harmful{0.3, true};
  harmful.add_guaranteed();
  harmful.run(10s);
  harmful.add_opportunistic();
  harmful.run(120s);
  EXPECT_LT(harmful.share(), 0.2) << harmful.reason();
}

TEST(ComputeController, WithoutAGuaranteedJobEverythingIsFree) {
  Simulation simulation{0.2, false};
  simulation.add_opportunistic();
  simulation.run(5s);
  EXPECT_DOUBLE_EQ(simulation.share(), 1.0);
  EXPECT_THAT(simulation.reason(), HasSubstr("no guaranteed job"));
  EXPECT_EQ(simulation.controller().closed_total(), Duration::zero());
}

TEST(ComputeController, ReactsAtOnceToAGuaranteedJobsArrival) {
  Simulation simulation{0.2, false};
  simulation.add_opportunistic();
  simulation.run(5s);
  simulation.add_guaranteed();
  simulation.update();  // no time passes
  EXPECT_DOUBLE_EQ(simulation.share(), 0.01);
}

TEST(ComputeController, C18_TheBaselineDoesNotDecayInAnHourOfLoss) {
  Simulation simulation{0.0, true};
  simulation.set_constant_loss(0.10);  // 10 % at any share: nothing the controller does helps
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.run(60s);
  for (int minute = 0; minute < 60; ++minute) {
    simulation.run(60s);
    ASSERT_NEAR(simulation.baseline(), kBase, kBase * 0.02) << "minute " << minute;
    const auto slowdown = simulation.controller().slowdown(JobId{"g"});
    ASSERT_TRUE(slowdown);
    ASSERT_NEAR(slowdown->value, 0.10, 0.03) << "minute " << minute;
  }
  EXPECT_GE(simulation.share(), 0.0);
}

TEST(ComputeController, ClosedWindowsStayWithinTheirBudget) {
  Simulation simulation{0.05, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  const TimePoint begin = simulation.now();
  const auto closed = [&] {
    return std::chrono::duration<double>(simulation.controller().closed_total()).count();
  };
  const auto elapsed = [&] {
    return std::chrono::duration<double>(simulation.now() - begin).count();
  };
  for (int i = 0; i < 600; ++i) {
    simulation.run(200ms);
    ASSERT_LE(closed(), 0.10 * elapsed() + 0.05) << "after " << elapsed() << " s";
  }
  EXPECT_GE(simulation.baseline_steps(), 20U) << "they bring a baseline";
  const double before = closed();
  const double since = elapsed();
  simulation.run(600s);
  EXPECT_LE(closed() - before, 0.02 * (elapsed() - since) + 1.0);
  EXPECT_GT(closed(), before) << "and go on, rarely";
}

TEST(ComputeController, WithinAWindowEveryShareIsZero) {
  Simulation simulation{0.05, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  bool seen = false;
  for (int i = 0; i < 2000 && !seen; ++i) {
    simulation.run(20ms);
    if (!simulation.controller().window_closed()) continue;
    seen = true;
    EXPECT_DOUBLE_EQ(simulation.share(), 0.0);
    EXPECT_THAT(simulation.reason(), HasSubstr("measuring"));
  }
  EXPECT_TRUE(seen);
}

TEST(ComputeController, FollowsAJobThatChanges) {
  Simulation simulation{0.0, true};
  simulation.add_guaranteed();
  simulation.run(10s);
  simulation.add_opportunistic();
  simulation.run(30s);
  simulation.set_base(2 * kBase);  // its batch doubles
  simulation.run(60s);
  EXPECT_NEAR(simulation.baseline(), 2 * kBase, kBase * 0.1);
  EXPECT_LT(simulation.controller().slowdown(JobId{"g"})->value, 0.05);
}

TEST(ComputeController, NoWindowsWithoutStepsOrForPausedJobs) {
  Simulation simulation{0.05, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.job().paused = true;
  simulation.run(60s);
  EXPECT_EQ(simulation.controller().closed_total(), Duration::zero());
  EXPECT_GE(simulation.baseline_steps(), 20U) << "a paused neighbour is no neighbour";
}

// --- requests ------------------------------------------------------------------------------------

/// Adds requests of 10 ms, every `slow`-th of which takes 30 ms.
void serve(StepHistory& history, TimePoint& now, int count, int slow) {
  for (int i = 0; i < count; ++i) {
    now += 50ms;
    history.add(now, slow > 0 && i % slow == 0 ? 30ms : 10ms);
  }
}

TEST(StepHistory, ForRequestsTheTailCounts) {
  for (const StepSignal signal : {StepSignal::kMedian, StepSignal::kTail}) {
    StepHistory history;
    history.follow(signal);
    TimePoint now{1h};
    history.begin_quiet(now);
    serve(history, now, 400, 0);
    history.begin_shared(now);
    now += 1s;
    serve(history, now, 400, 20);  // one of twenty waits for a neighbour's op
    ASSERT_TRUE(history.slowdown());
    const double expected = signal == StepSignal::kTail ? 2.0 : 0.0;
    EXPECT_NEAR(history.slowdown()->value, expected, 1e-6);
  }
}

TEST(StepHistory, APercentileNeedsManyRequests) {
  StepHistory history;
  history.follow(StepSignal::kTail);
  TimePoint now{1h};
  history.begin_quiet(now);
  serve(history, now, 60, 0);
  history.begin_shared(now);
  now += 1s;
  serve(history, now, 40, 0);
  EXPECT_FALSE(history.slowdown());
  serve(history, now, 20, 0);
  EXPECT_TRUE(history.slowdown());
  history.follow(StepSignal::kMedian);
  EXPECT_EQ(history.baseline_steps(), 0U) << "latencies are no mini-batches";
}

TEST(StepHistory, TheErrorOfATailIsThatOfItsRank) {
  StepHistory history;
  history.follow(StepSignal::kTail);
  TimePoint now{1h};
  history.begin_quiet(now);
  for (int i = 0; i < 400; ++i) {
    now += 50ms;
    history.add(now, 1ms * (1 + i % 100));
  }
  EXPECT_NEAR(history.baseline().seconds, 0.099, 0.0015);
  EXPECT_GT(history.baseline().error, 0.0002);
  EXPECT_LT(history.baseline().error, 0.002);
}

// --- several jobs --------------------------------------------------------------------------------

TEST(SharesOfSeveral, TheirSumStaysUnderTheObjectiveWhateverTheirNumber) {
  Simulation simulation{0.2, false};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  for (const char* id : {"p", "q", "r"}) simulation.add_another(id, {0, 1});
  simulation.run(200s);
  (void)simulation.take_slowdown();
  simulation.run(100s);
  EXPECT_LT(simulation.take_slowdown(), 0.02) << "four jobs cost no more than one";
  EXPECT_NEAR(simulation.share(0), simulation.share(3), 1e-9);
}

TEST(SharesOfSeveral, MinimumSharesAreKeptFirst) {
  Simulation simulation{0.2, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.add_another("p", {0.3, 1});
  simulation.run(200s);
  EXPECT_GE(simulation.share(1), 0.3 - 1e-9);
  EXPECT_LT(simulation.share(0), 0.05) << "what is left of the budget is nearly nothing";
}

TEST(SharesOfSeveral, WhoGotLessGetsMore) {
  Simulation simulation{0.2, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.add_another("p", {0, 1});
  simulation.job(0).used = 0.3;
  simulation.job(1).used = 0.1;
  simulation.run(100s);
  EXPECT_GT(simulation.share(1), 2 * simulation.share(0));
  EXPECT_GE(simulation.share(0), 0.01 - 1e-9) << "the trickle is everybody's";
  simulation.job(1).used = 0.5;
  simulation.run(10s);
  EXPECT_GT(simulation.share(0), simulation.share(1));
}

TEST(SharesOfSeveral, WhoLeavesOrIsPausedGivesItsPartBack) {
  Simulation simulation{0.2, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.add_another("p", {0.2, 1});
  simulation.run(100s);
  const double together = simulation.share();
  simulation.job(1).paused = true;
  simulation.run(100s);
  EXPECT_GT(simulation.share(0), 0.01);
  EXPECT_LT(simulation.share(0), together);
  simulation.remove_last();
  simulation.run(100s);
  (void)simulation.take_slowdown();
  simulation.run(100s);
  EXPECT_LT(simulation.take_slowdown(), 0.02);
}

TEST(SharesOfSeveral, EachKindHasABudgetOfItsOwn) {
  Simulation simulation{0.0, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.add_another("p", {0, 1});
  simulation.job(1).idle_class = false;
  simulation.update();
  EXPECT_DOUBLE_EQ(simulation.share(0), 1.0) << "idle class: at its maximum";
  EXPECT_DOUBLE_EQ(simulation.share(1), 0.01) << "not in the idle class: at its trickle";
}

/// The shares of 50 s, by a controller that has run for `before` already.
std::vector<double> shares_after(Duration before) {
  Simulation simulation{0.2, false};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.run(before);
  std::vector<double> shares;
  for (int i = 0; i < 500; ++i) {
    simulation.run(100ms);
    shares.push_back(simulation.share());
  }
  return shares;
}

TEST(Law5Compute, Law5_EqualViewsEqualPlans) {
  EXPECT_EQ(shares_after(Duration::zero()), shares_after(Duration::zero()));
}

/// A controller's state is made of its views alone; one that has seen others plans otherwise.
TEST(Law5Compute, Law5_BreaksWhenAControllerHasSeenMore) {
  EXPECT_NE(shares_after(Duration::zero()), shares_after(3s));
}

}  // namespace
}  // namespace commensal::node
