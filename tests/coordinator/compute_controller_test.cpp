// SPDX-License-Identifier: Apache-2.0
// The slow loop in simulated time, against a small model of a guaranteed job.
#include "coordinator/node/compute_controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace commensal::node::compute_controller_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr double kBase = 0.05;  // seconds of a step alone

SlowdownEstimate estimate(double value, double error = 0.001) { return {value, error, 40}; }

// --- one decision
// ---------------------------------------------------------------------------------

TEST(ShareDecision, HalvesWhenTheSlowdownIsJustBeyondDoubt) {
  const auto decision = decide_share({{0, 1}, {0.4, 1.0, 0}, estimate(0.015)}, {});
  EXPECT_DOUBLE_EQ(decision.state.share, 0.2);
  EXPECT_DOUBLE_EQ(decision.state.ceiling, 0.4);
  EXPECT_THAT(
      decision.reason,
      HasSubstr("guaranteed step 1.5 % over baseline (+-0.1 %, n = 40), above 1.0 %: halved"));
}

TEST(ShareDecision, CutsInProportionToWhatIsCertain) {
  const auto decision = decide_share({{0, 1}, {0.4, 1.0, 0}, estimate(0.052)}, {});
  EXPECT_NEAR(decision.state.share, 0.4 * 0.01 / 0.05, 1e-9);
  EXPECT_NEAR(decision.state.ceiling, 2 * decision.state.share, 1e-9);
  EXPECT_THAT(decision.reason, HasSubstr("cut to 8.0 %"));
  const auto unsure = decide_share({{0, 1}, {0.4, 1.0, 0}, estimate(0.085, 0.035)}, {});
  EXPECT_DOUBLE_EQ(unsure.state.share, 0.2) << "1.5 % are certain";
  const auto chance = decide_share({{0, 1}, {0.4, 1.0, 0}, estimate(0.05, 0.035)}, {});
  EXPECT_DOUBLE_EQ(chance.state.share, 0.4) << "more than one standard error above, by chance";
}

TEST(ShareDecision, StaysWhereItIsWhileGapsAreRestricted) {
  ShareInput input{{0, 1}, {0.1, 1.0, 0}, estimate(0.0)};
  input.may_rise = false;
  EXPECT_DOUBLE_EQ(decide_share(input, {}).state.share, 0.1);
  input.slowdown = estimate(0.05);
  EXPECT_LT(decide_share(input, {}).state.share, 0.1);
}

TEST(ShareDecision, HoldsWhatIsNotCertain) {
  const auto decision = decide_share({{0, 1}, {0.4, 1.0, 0}, estimate(0.03, 0.05)}, {});
  EXPECT_DOUBLE_EQ(decision.state.share, 0.4);
  EXPECT_THAT(decision.reason, HasSubstr("not certain"));
}

TEST(ShareDecision, TheIdleClassIsCutOnceALookConfirmsIt) {
  ShareInput input{{0, 1}, {0.4, 1.0, 0}, estimate(0.05)};
  input.confirmed = false;
  const ShareDecision held = decide_share(input, {});
  EXPECT_DOUBLE_EQ(held.state.share, 0.4);
  EXPECT_TRUE(held.wants_look);
  input.confirmed = true;
  EXPECT_LT(decide_share(input, {}).state.share, 0.4);
  EXPECT_FALSE(decide_share(input, {}).wants_look);
  input.confirmed = input.idle_class = false;
  EXPECT_LT(decide_share(input, {}).state.share, 0.4) << "nobody else protects the other job";
  EXPECT_FALSE(decide_share(input, {}).wants_look);
}

TEST(ShareDecision, OutsideOfTheIdleClassRisesOnlyWhereItDoesNoHarmBeyondDoubt) {
  ShareInput input{{0, 1}, {0.1, 1.0, 0}, estimate(0.004, 0.01)};
  EXPECT_GT(decide_share(input, {}).state.share, 0.1) << "the kernel keeps it out of the way";
  input.idle_class = false;
  EXPECT_DOUBLE_EQ(decide_share(input, {}).state.share, 0.1);
  EXPECT_THAT(decide_share(input, {}).reason, HasSubstr("not certain, held"));
  input.slowdown = estimate(0.004, 0.002);
  EXPECT_GT(decide_share(input, {}).state.share, 0.1);
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
  void add_another(const std::string& id, ShareRange bounds) {
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
  void set_gap_cost(double cost) { gap_cost_ = cost; }
  /// A quarter of the time, for some seconds at once, everything takes so much longer.
  void set_unsteady(double part) { unsteady_ = part; }
  [[nodiscard]] int level() const { return controller_.gap_rules(JobId{"o"}).state.level; }
  void remove_guaranteed() { view_.guaranteed.clear(); }
  /// Passes time until the slowdown has stayed within a bound for so long. @return the time until
  /// then, and the number of steps.
  struct Settled {
    double seconds = 0.0;
    std::uint64_t steps = 0;
  };
  Settled settle(double bound, Duration hold, Duration most) {
    const TimePoint begin = now_;
    TimePoint since = now_;
    std::uint64_t steps = 0;
    std::uint64_t steps_until = 0;
    while (now_ - begin < most && now_ - since < hold) {
      const std::uint64_t before = ended_;
      run(20ms);
      steps += ended_ - before;
      if (before == ended_ || last_loss_ <= bound) continue;
      since = now_;
      steps_until = steps;
    }
    return {std::chrono::duration<double>(since - begin).count(), steps_until};
  }
  void set_constant_loss(double loss) { loss_ = loss; }

 private:
  void begin_step() {
    const bool disturbed = share_ > 0.0;
    double loss = cost_ * share_ + (disturbed ? loss_ : 0.0);
    if (disturbed && !view_.opportunistic.empty()) {  // the less, the more gaps are restricted
      const int level = controller_.gap_rules(view_.opportunistic[0].id).state.level;
      loss += gap_cost_ * std::pow(0.4, level);
    }
    step_loss_ = loss;
    if (step_end_ >= state_end_) {
      state_end_ = step_end_ + std::chrono::seconds{3 + static_cast<int>(random_() % 12)};
      machine_ = random_() % 4 == 0 ? 1.0 + unsteady_ : 1.0;
    }
    const double seconds = base_ * machine_ * (1.0 + loss) * (1.0 + noise_(random_));
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
    ++ended_;
    last_loss_ = step_loss_;
    begin_step();
  }

  double cost_;
  double loss_ = 0.0;
  double gap_cost_ = 0.0;
  double unsteady_ = 0.0;
  double machine_ = 1.0;
  TimePoint state_end_{};
  double step_loss_ = 0.0;
  double last_loss_ = 0.0;
  std::uint64_t ended_ = 0;
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

/// Mean level of the gap rules over ten minutes, and of the share.
struct Mean {
  double level = 0.0;
  double share = 0.0;
};
Mean mean_of(Simulation& simulation) {
  simulation.run(30s);
  Mean mean;
  constexpr int kLooks = 3000;
  for (int i = 0; i < kLooks; ++i) {
    simulation.run(200ms);
    mean.level += static_cast<double>(simulation.level()) / kLooks;
    mean.share += simulation.share() / kLooks;
  }
  return mean;
}

TEST(ComputeController, AnUnsteadyMachineDoesNotCloseTheGaps) {
  for (const bool idle_class : {true, false}) {
    Simulation simulation{0.0, idle_class};
    simulation.set_unsteady(0.15);
    simulation.add_guaranteed();
    simulation.add_opportunistic();
    const Mean mean = mean_of(simulation);
    EXPECT_LT(mean.level, 0.5) << "idle class " << idle_class;
    if (idle_class) {
      EXPECT_GT(mean.share, 0.8);
    }
  }
}

TEST(ComputeController, OnAnUnsteadyMachineGapsThatCostAreRestricted) {
  Simulation simulation{0.0, true};
  simulation.set_unsteady(0.15);
  simulation.set_gap_cost(0.20);
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  const Mean mean = mean_of(simulation);
  EXPECT_GT(mean.level, 1.5);
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
    // The first one is a credit: it is paid back before the next.
    ASSERT_LE(closed(), 0.10 * elapsed() + 0.40) << "after " << elapsed() << " s";
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

// --- changes of the guaranteed job ---------------------------------------------------------------

constexpr double kSettled = 0.02;  // twice the SLO: single steps, with their noise beside them

/// A job that costs its neighbour 20 % at its full share, in the idle class, settled beside it.
Simulation settled_neighbours(double base) {
  Simulation simulation{0.2, true};
  simulation.set_base(base);
  simulation.add_guaranteed();
  simulation.run(20s);
  simulation.add_opportunistic();
  simulation.run(120s);
  return simulation;
}

void expect_within_two_seconds_or_five_steps(const Simulation::Settled& settled,
                                             const Simulation& simulation) {
  EXPECT_TRUE(settled.seconds <= 2.0 || settled.steps <= 5)
      << settled.seconds << " s, " << settled.steps << " steps; " << simulation.reason();
}

/// Two seconds or five steps, from the end of the step that is under way.
Duration time_to_settle(double before, double after) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(before + std::max(2.0, 5.0 * after) + 0.1));
}

class Reconvergence : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(StepSeconds, Reconvergence, ::testing::Values(0.03, 0.05, 0.2, 1.0));

TEST_P(Reconvergence, AfterTheArrivalOfANeighbour) {
  Simulation simulation{0.2, true};
  simulation.set_base(GetParam());
  simulation.add_guaranteed();
  simulation.run(20s);
  simulation.add_opportunistic();
  expect_within_two_seconds_or_five_steps(simulation.settle(kSettled, 3s, 60s), simulation);
}

TEST_P(Reconvergence, AfterItsBatchDoubled) {
  Simulation simulation = settled_neighbours(GetParam());
  const double share = simulation.share();
  const double old = GetParam();
  simulation.set_base(2 * old);
  simulation.run(time_to_settle(old, 2 * old));
  EXPECT_NEAR(simulation.baseline(), 2 * old, 0.1 * old) << simulation.reason();
  (void)simulation.settle(kSettled, 3s, 30s);
  simulation.run(5s);
  EXPECT_GT(simulation.share() + (simulation.controller().window_closed() ? 1.0 : 0.0), share / 4)
      << "its neighbour does not pay for it: " << simulation.reason();
}

TEST_P(Reconvergence, AfterAStallWasSwitchedOnAndOff) {
  Simulation simulation = settled_neighbours(GetParam());
  const double old = GetParam();
  for (const double now : {1.6 * old, old}) {
    simulation.set_base(now);
    simulation.run(time_to_settle(now == old ? 1.6 * old : old, now));
    EXPECT_NEAR(simulation.baseline(), now, 0.06 * now) << simulation.reason();
    simulation.run(90s);  // the credit is paid back
  }
}

TEST_P(Reconvergence, ToFullUseWhenItLeaves) {
  Simulation simulation = settled_neighbours(GetParam());
  simulation.remove_guaranteed();
  simulation.update();  // no time passes
  EXPECT_DOUBLE_EQ(simulation.share(), 1.0);
}

/// A neighbour that begins to cost more is no change of the job: the baseline stays.
TEST(ChangeOfTheJob, C18_ANeighbourThatCostsMoreDoesNotMoveTheBaseline) {
  Simulation simulation{0.0, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.run(120s);
  simulation.set_constant_loss(0.5);  // steps under sharing jump, those alone do not
  for (int i = 0; i < 100; ++i) {
    simulation.run(1s);
    ASSERT_NEAR(simulation.baseline(), kBase, 0.03 * kBase) << i;
  }
  EXPECT_LT(simulation.share(), 0.1) << simulation.reason();
}

TEST(ChangeOfTheJob, LooksStayWithinTheirBudget) {
  Simulation simulation{0.0, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.run(60s);
  const Duration before = simulation.controller().closed_total();
  for (int i = 0; i < 60; ++i) {  // it changes every second
    simulation.set_base(i % 2 == 0 ? 2 * kBase : kBase);
    simulation.run(1s);
  }
  EXPECT_LE(simulation.controller().closed_total() - before, 60s * 0.12);
}

TEST(ChangeOfTheJob, OneLongStepIsNoChange) {
  StepHistory history;
  TimePoint now{1h};
  history.begin_quiet(now);
  for (int i = 0; i < 10; ++i) history.add(now += 1s, 50ms);
  history.begin_shared(now);
  for (int i = 0; i < 20; ++i) history.add(now += 1s, 50ms);
  EXPECT_FALSE(history.change_suspected());
  history.add(now += 1s, 400ms);  // an evaluation
  EXPECT_FALSE(history.change_suspected());
  history.add(now += 1s, 50ms);
  EXPECT_FALSE(history.change_suspected());
  history.add(now += 1s, 100ms);
  history.add(now += 1s, 100ms);
  EXPECT_FALSE(history.change_suspected()) << "within the range of those before";
}

TEST(ChangeOfTheJob, TwoStepsBeyondAllBeforeAreSuspected) {
  for (const Duration step : {Duration{100ms}, Duration{30ms}}) {
    StepHistory history;
    TimePoint now{1h};
    history.begin_shared(now);
    for (int i = 0; i < 20; ++i) history.add(now += 1s, 50ms + i * 100us);
    history.add(now += 1s, step);
    EXPECT_FALSE(history.change_suspected());
    history.add(now += 1s, step);
    EXPECT_TRUE(history.change_suspected());
    history.settle_change();
    EXPECT_FALSE(history.change_suspected()) << "it is looked at once";
  }
}

TEST(ChangeOfTheJob, StepsBesideOthersThatAreShorterThanAloneAreSuspectedAtOnce) {
  StepHistory history;
  TimePoint now{1h};
  history.begin_quiet(now);
  for (int i = 0; i < 5; ++i) history.add(now += 1s, 50ms);
  history.begin_shared(now);
  history.add(now += 1s, 30ms);
  history.add(now += 1s, 30ms);
  EXPECT_TRUE(history.change_suspected());
}

TEST(ChangeOfTheJob, QuietStepsMustConfirmIt) {
  for (const bool expected : {true, false}) {
    StepHistory history;
    TimePoint now{1h};
    history.begin_quiet(now);
    for (int i = 0; i < 20; ++i) history.add(now += 1s, 50ms);
    history.begin_shared(now);
    now += 1s;
    if (expected) history.expect_change(2);
    history.begin_quiet(now);
    history.add(now += 1s, 100ms);
    EXPECT_NEAR(history.baseline().seconds, 0.05, 1e-9) << "one is not enough";
    history.add(now += 1s, 101ms);
    EXPECT_NEAR(history.baseline().seconds, expected ? 0.1005 : 0.05, 1e-9);
  }
}

TEST(ChangeOfTheJob, QuietStepsThatDisagreeConfirmNothing) {
  StepHistory history;
  TimePoint now{1h};
  history.begin_quiet(now);
  for (int i = 0; i < 20; ++i) history.add(now += 1s, 50ms);
  history.expect_change(2);
  history.begin_shared(now);
  history.begin_quiet(now += 1s);
  history.add(now += 1s, 100ms);
  history.add(now += 1s, 400ms);
  EXPECT_NEAR(history.baseline().seconds, 0.05, 1e-9);
}

// --- gaps ----------------------------------------------------------------------------------------

TEST(GapsOfTheController, AreRestrictedOnceSharesAreAtTheirLeast) {
  Simulation simulation{0.0, false};
  simulation.set_gap_cost(0.05);  // 5 % whatever the share: what is used are gaps
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.run(60s);
  const GapDecision decision = simulation.controller().gap_rules(JobId{"o"});
  EXPECT_GE(decision.state.level, 1) << decision.reason;
  (void)simulation.take_slowdown();
  simulation.run(120s);
  EXPECT_LT(simulation.take_slowdown(), 0.015) << decision.reason;
}

TEST(GapsOfTheController, StayOpenWhereTheShareIsToBlame) {
  Simulation simulation{0.2, true};
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  for (int i = 0; i < 60; ++i) {
    simulation.run(2s);
    ASSERT_EQ(simulation.controller().gap_rules(JobId{"o"}).state.level, 0) << i;
  }
}

TEST(GapsOfTheController, ComeBackBeforeTheShareRises) {
  Simulation simulation{0.0, false};
  simulation.set_gap_cost(0.05);
  simulation.add_guaranteed();
  simulation.add_opportunistic();
  simulation.run(60s);
  const auto level = [&] { return simulation.controller().gap_rules(JobId{"o"}).state.level; };
  ASSERT_GE(level(), 1);
  simulation.set_gap_cost(0.0);
  for (int i = 0; i < 10'000 && level() > 0; ++i) {
    simulation.run(100ms);
    if (level() > 0) {
      ASSERT_LE(simulation.share(), 0.011) << simulation.reason();
    }
  }
  EXPECT_EQ(level(), 0);
  simulation.run(60s);
  EXPECT_GT(simulation.share() + (simulation.controller().window_closed() ? 1.0 : 0.0), 0.5);
}

TEST(GapsOfTheController, AreUnknownForAJobThatIsNotThere) {
  Simulation simulation{0.0, true};
  EXPECT_FALSE(simulation.controller().gap_rules(JobId{"o"}).rules.known);
  simulation.add_opportunistic();
  simulation.run(1s);
  EXPECT_EQ(simulation.controller().gap_rules(JobId{"o"}).rules, wire::GapRules{.known = true});
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
  for (int i = 0; i < 300 && simulation.share() < 0.04; ++i) simulation.run(1s);
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

// A request that was found is told when the next one comes: perhaps after a window has begun.
TEST(ComputeController, AStepCountsForTheTimeInWhichItRan) {
  for (const bool told : {true, false}) {
    ComputeController controller{ComputeConfig{}};
    ComputeView view;
    view.device = DeviceId{"host"};
    view.guaranteed = {{JobId{"g"}, 0, {}}};
    view.now = TimePoint{1h};
    (void)controller.update(view);
    const auto step = [&](Duration length, Duration ended_before) {
      ++view.guaranteed[0].step_number;
      view.guaranteed[0].step_last = length;
      if (told) view.guaranteed[0].step_end = view.now - ended_before;
      (void)controller.update(view);
    };
    for (int i = 0; i < 5; ++i) {
      view.now += 100ms;
      step(10ms, 0ms);
    }
    EXPECT_EQ(controller.baseline(JobId{"g"}).steps, 5U);
    // It ended before the device was quiet again.
    view.opportunistic = {{JobId{"o"}, {0, 1}, false, true}};
    (void)controller.update(view);
    view.now += 1s;
    view.opportunistic.clear();
    (void)controller.update(view);
    view.now += 200ms;
    step(10ms, 210ms);
    EXPECT_EQ(controller.baseline(JobId{"g"}).steps, told ? 5U : 6U);
  }
}

TEST(ComputeController, AJobThatIsMeasuredByItsCoresHasAMedianOfPieces) {
  ComputeController controller{ComputeConfig{}};
  ComputeView view;
  view.device = DeviceId{"host"};
  view.guaranteed = {{JobId{"g"}, 0, {}, 0.01, StepSignal::kCores}};
  view.opportunistic = {{JobId{"o"}, {0, 1}, false, false}};
  double share = 0.0;
  std::size_t closed = 0;
  for (int look = 0; look < 3000; ++look) {  // ten minutes, five looks a second
    view.now = TimePoint{1h} + look * 200ms;
    ++view.guaranteed[0].stretch_number;
    view.guaranteed[0].stretch_last =
        std::chrono::duration_cast<Duration>(50ms * (1.0 + 0.2 * share));
    const auto plan = controller.update(view);
    share = plan.shares.at(0).share;
    if (controller.window_closed()) ++closed;
  }
  EXPECT_NEAR(controller.baseline(JobId{"g"}).seconds, 0.05, 1e-4);
  ASSERT_TRUE(controller.slowdown(JobId{"g"}));
  EXPECT_LT(controller.slowdown(JobId{"g"})->value, 0.02);
  EXPECT_LT(closed, 300U);
}

/// A guaranteed job whose steps and pace are given; beside it, later, one whose law is its own.
class BesideAnotherLaw : public ::testing::Test {
 protected:
  BesideAnotherLaw() {
    view_.now = TimePoint{1h};
    view_.device = DeviceId{"host"};
    view_.guaranteed = {{JobId{"g"}, 0, {}, 0.01}};
  }
  ComputeView::Guaranteed& job() { return view_.guaranteed.front(); }
  /// Steps of that length, and every fifth of a second a look at the time on its cores.
  void run(Duration time, Duration step, double waits) {
    for (const TimePoint end = view_.now + time; view_.now < end;) {
      view_.now += 20ms;
      job().step_number = static_cast<std::uint64_t>((view_.now - TimePoint{1h}) / step);
      job().step_last = step;
      if (++looks_ % 10 == 0) {
        const double noise =
            noise_ == 0.0 ? 0.0 : std::uniform_real_distribution{-noise_, noise_}(dice_);
        ++job().stretch_number;
        job().stretch_last = std::chrono::duration_cast<Duration>(50ms * (1.0 + waits + noise));
      }
      (void)controller_.update(view_);
    }
  }
  void arrives(bool controlled = false) {
    view_.opportunistic = {{JobId{"o"}, {0, 1}, false, false, controlled}};
  }
  [[nodiscard]] double slowdown() const {
    return controller_.slowdown(JobId{"g"}).value_or(SlowdownEstimate{-1.0}).value;
  }
  [[nodiscard]] std::optional<SlowdownEstimate> waiting() const {
    return controller_.waiting(JobId{"g"});
  }

  ComputeController controller_{ComputeConfig{}};
  ComputeView view_;
  int looks_ = 0;
  double noise_ = 0.0;  // of what it waits, to both sides
  std::mt19937 dice_{7};
};

TEST_F(BesideAnotherLaw, AJobThatWaitsForCoresSuffersHoweverSlowTheMachineWasBefore) {
  run(3s, 14ms, 0.0);  // a third slower than later
  arrives();
  run(10s, 14ms, 0.4);
  ASSERT_TRUE(waiting());
  EXPECT_NEAR(waiting()->value, 0.4, 0.01);
  EXPECT_NEAR(slowdown(), 0.4, 0.01) << "by its steps it would be none";
  run(20s, 14ms, 0.0);
  EXPECT_NEAR(waiting()->value, 0.0, 0.01);
  EXPECT_NEAR(slowdown(), 0.0, 0.01) << "it is forgotten as soon as it does not wait";
}

TEST_F(BesideAnotherLaw, WaitingIsForgottenAlsoWhereStepsAloneAreTooFew) {
  run(3s, 2s, 0.0);  // one step alone says nothing, its pace does
  arrives();
  run(10s, 2s, 0.4);
  EXPECT_NEAR(slowdown(), 0.4, 0.01);
  run(20s, 2s, 0.0);
  EXPECT_NEAR(slowdown(), 0.0, 0.01);
}

TEST_F(BesideAnotherLaw, WhatStepsLoseCountsIfItIsMore) {
  run(3s, 10ms, 0.0);
  arrives();
  run(10s, 15ms, 0.05);  // its memory is slower, too
  EXPECT_NEAR(slowdown(), 0.5, 0.01);
  EXPECT_NEAR(waiting()->value, 0.05, 0.01);
}

TEST_F(BesideAnotherLaw, StepsThatMeanNothingMeanwhileCostNoBaseline) {
  run(3s, 10ms, 0.0);
  arrives();
  job().signal = StepSignal::kCores;
  run(10s, 13ms, 0.2);
  EXPECT_NEAR(slowdown(), 0.2, 0.01) << "its pace alone was known";
  job().signal = StepSignal::kMedian;
  run(10s, 13ms, 0.2);
  EXPECT_NEAR(slowdown(), 0.3, 0.01) << "and its steps alone still are";
}

TEST_F(BesideAnotherLaw, WhoWasAloneForAMomentIsProtectedBeforeItHasABaseline) {
  run(300ms, 14ms, 0.0);
  arrives();
  noise_ = 0.3;
  run(10s, 17ms, 0.4);
  ASSERT_TRUE(waiting());
  EXPECT_NEAR(waiting()->value, 0.4, 0.15);
  EXPECT_GT(waiting()->certain(), 0.01);
}

TEST_F(BesideAnotherLaw, WhoWasNeverAloneIsProtectedAndToldNoSlowdown) {
  arrives();
  run(10s, 14ms, 0.4);
  ASSERT_TRUE(waiting());
  EXPECT_NEAR(waiting()->value, 0.4, 0.01);
  EXPECT_FALSE(controller_.slowdown(JobId{"g"})) << "some of it may be its own";
}

TEST_F(BesideAnotherLaw, AJobWithoutStepsIsProtectedToo) {
  arrives();
  job().signal = StepSignal::kCores;
  run(10s, 1h, 0.4);
  EXPECT_NEAR(waiting()->value, 0.4, 0.01);
}

TEST_F(BesideAnotherLaw, AFewLooksAtItAloneAreNoBaseline) {
  noise_ = 0.4;
  run(2s, 14ms, 0.4);  // a machine that was busy for a moment
  arrives();
  noise_ = 0.0;
  run(10s, 14ms, 0.4);
  EXPECT_NEAR(waiting()->value, 0.4, 0.01);
  EXPECT_GT(waiting()->certain(), 0.01);
}

TEST_F(BesideAnotherLaw, WhatItWaitsAloneForLongIsNoLoss) {
  run(10s, 14ms, 1.0);  // two threads, pinned to one core
  arrives();
  run(10s, 14ms, 1.0);
  EXPECT_NEAR(waiting()->value, 0.0, 0.01);
  run(20s, 14ms, 1.5);
  EXPECT_NEAR(waiting()->value, 0.25, 0.01);
}

TEST_F(BesideAnotherLaw, HowItWaitedBeforeItsStepsIsNoMeasureOfThem) {
  run(30s, 31s, 1.0);  // prepares, with more threads than cores
  run(600ms, 14ms, 0.0);
  arrives();
  run(10s, 14ms, 0.4);
  EXPECT_NEAR(waiting()->value, 0.4, 0.01);
}

TEST_F(BesideAnotherLaw, WhereWindowsLookAtItAloneWaitingIsNoMeasure) {
  run(3s, 10ms, 0.0);
  arrives(true);
  run(10s, 10ms, 0.4);
  EXPECT_FALSE(waiting());
  EXPECT_LT(slowdown(), 0.05);
  arrives();
  run(10s, 10ms, 0.4);
  EXPECT_TRUE(waiting());
  view_.opportunistic.clear();
  run(1s, 10ms, 0.0);
  EXPECT_FALSE(waiting()) << "nobody is there to wait for";
}

}  // namespace
}  // namespace commensal::node::compute_controller_test
