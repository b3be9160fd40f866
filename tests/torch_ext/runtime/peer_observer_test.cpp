// SPDX-License-Identifier: Apache-2.0
// What the gate is told about the device, from real pages.
#include "torch_ext/runtime/peer_observer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "tests/torch_ext/runtime/page_file.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal::peer_observer_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const TimePoint kNow{std::chrono::hours{1}};

class PeerObserverTest : public ::testing::Test {
 protected:
  PeerObserverTest() {
    device_.header = {wire::kDevicePageMagic, wire::kPageVersion,
                      static_cast<std::uint32_t>(wire::kPageSize), 1, 0};
    device_.heartbeat_ns.store(to_page_time(kNow));
    device_.trickle_ppm.store(30'000);
    put(0, "own", JobClass::kOpportunistic);
    entry(0).share_min_ppm.store(10'000);
    entry(0).share_max_ppm.store(1'000'000);
  }

  wire::DeviceEntry& entry(std::size_t index) { return device_.entries[index]; }
  void put(std::size_t index, const char* id, JobClass job_class) {
    std::strncpy(entry(index).job_id, id, wire::kIdSize - 1);
    entry(index).job_class.store(static_cast<std::uint64_t>(job_class));
    device_.revision.fetch_add(1);
  }
  void use_device() {
    observer_.set_device_page(wire::MappedPage(device_fd_.get(), wire::kPageSize, false));
  }
  void add_guaranteed(std::size_t index) {
    put(index, "other", JobClass::kGuaranteed);
    entry(index).lease_until_ns.store(to_page_time(kNow + seconds{3}));
    device_.guaranteed_alive.fetch_add(1);
  }
  static wire::MappedPage view_of(const OwnPage& page) {
    return wire::MappedPage(file_of(page).get(), wire::kPageSize, false);
  }
  static void set(OwnPage& page, wire::Activity activity, TimePoint since, TimePoint end = {}) {
    page.page().activity.store(static_cast<std::uint64_t>(activity));
    page.page().activity_since_ns.store(to_page_time(since));
    page.page().wait_expected_end_ns.store(end == TimePoint{} ? 0 : to_page_time(end));
    page.page().heartbeat_ns.store(to_page_time(kNow));
  }

  wire::UniqueFd device_fd_ = wire::make_page_memfd("test-device");
  wire::MappedPage device_map_{device_fd_.get(), wire::kPageSize, true};
  wire::DevicePage& device_ = *device_map_.as<wire::DevicePage>();
  OwnPage first_{JobId{"other"}, JobClass::kGuaranteed, 0};
  OwnPage second_{JobId{"other"}, JobClass::kGuaranteed, 1};
  PeerObserver observer_{JobId{"own"}};
};

TEST_F(PeerObserverTest, WithoutPagesNobodyIsThere) {
  const DeviceObservation seen = observer_.observe(kNow);
  EXPECT_FALSE(seen.guaranteed_present);
  EXPECT_FALSE(seen.coordinator_alive);
  EXPECT_FALSE(seen.all_waiting);
  EXPECT_EQ(seen.share_max, 1.0);
}

TEST_F(PeerObserverTest, ABusyProcessRingsUnlessItsWaitsAreNotTold) {
  use_device();
  add_guaranteed(1);
  observer_.add_peer(1, view_of(first_));
  observer_.add_peer(2, view_of(second_));
  set(first_, wire::Activity::kWaiting, kNow - milliseconds{5});
  set(second_, wire::Activity::kBusy, kNow - milliseconds{5});
  const Doorbell bell = observer_.observe(kNow).bell;
  ASSERT_TRUE(bell);
  EXPECT_EQ(bell.seen, static_cast<std::uint32_t>(wire::Activity::kBusy));
  second_.page().activity.store(42);
  EXPECT_EQ(bell.word->load(), 42U) << "the busy one's word";
  set(second_, wire::Activity::kBusy, kNow - milliseconds{5});
  second_.page().quiet_ns.store(10'000'000'000);
  EXPECT_FALSE(observer_.observe(kNow).bell);
  second_.page().quiet_ns.store(0);
  set(second_, wire::Activity::kWaiting, kNow - milliseconds{5});
  EXPECT_FALSE(observer_.observe(kNow).bell) << "both wait";
}

TEST_F(PeerObserverTest, AProcessThatWaitsWhileItsDeviceWorksDrainsAndDoesNotRing) {
  use_device();
  add_guaranteed(1);
  observer_.add_peer(1, view_of(first_));
  observer_.add_peer(2, view_of(second_));
  set(first_, wire::Activity::kWaiting, kNow - milliseconds{5});
  first_.page().queue_issued.store(7);
  first_.page().queue_done.store(6);
  set(second_, wire::Activity::kBusy, kNow - milliseconds{5});
  DeviceObservation seen = observer_.observe(kNow);
  EXPECT_FALSE(seen.draining) << "the second is busy itself";
  EXPECT_EQ(seen.bell.seen, static_cast<std::uint32_t>(wire::Activity::kBusy)) << "and rings";
  for (const wire::Activity activity : {wire::Activity::kWaiting, wire::Activity::kPaused}) {
    set(second_, activity, kNow - milliseconds{5});
    seen = observer_.observe(kNow);
    EXPECT_FALSE(seen.all_waiting);
    EXPECT_TRUE(seen.draining);
    EXPECT_FALSE(seen.bell) << "its word has changed already";
  }
  first_.page().queue_done.store(7);
  seen = observer_.observe(kNow);
  EXPECT_TRUE(seen.all_waiting);
  EXPECT_FALSE(seen.draining);
}

TEST_F(PeerObserverTest, ADeviceIsSurelyIdleWhereItSaysSoAndTheEndOfTheWaitIsTold) {
  use_device();
  add_guaranteed(1);
  observer_.add_peer(1, view_of(first_));
  const auto surely = [&](wire::GapPhase phase) {
    first_.page().wait_phase.store(static_cast<std::uint64_t>(phase));
    const DeviceObservation seen = observer_.observe(kNow);
    EXPECT_TRUE(seen.all_waiting);
    return seen.surely_idle;
  };
  set(first_, wire::Activity::kWaiting, kNow - milliseconds{5});
  EXPECT_FALSE(surely(wire::GapPhase::kLoader)) << "its device says nothing";
  first_.page().queue_issued.store(7);
  first_.page().queue_done.store(7);
  for (const auto phase :
       {wire::GapPhase::kLoader, wire::GapPhase::kEvaluation, wire::GapPhase::kCheckpoint}) {
    EXPECT_TRUE(surely(phase)) << wire::to_string(phase);
  }
  for (const auto phase : {wire::GapPhase::kBoundary, wire::GapPhase::kSynchronisation,
                           wire::GapPhase::kRequests, wire::GapPhase::kUnknown}) {
    EXPECT_FALSE(surely(phase)) << wire::to_string(phase)
                                << ": an op that nobody tells of may come";
  }
  first_.page().wait_phase.store(static_cast<std::uint64_t>(wire::GapPhase::kLoader));
  observer_.add_peer(2, view_of(second_));
  set(second_, wire::Activity::kPaused, kNow - milliseconds{5});
  EXPECT_FALSE(observer_.observe(kNow).surely_idle) << "of one of them it is not known";
  set(second_, wire::Activity::kBusy, kNow - milliseconds{5});
  EXPECT_FALSE(observer_.observe(kNow).surely_idle);
}

TEST_F(PeerObserverTest, TheOwnEntrysCoresAreRead) {
  put(1, "another", JobClass::kOpportunistic);
  const auto words = wire::CoreSet::parse("1,70,255")->words();
  for (std::size_t i = 0; i < words.size(); ++i) device_.core_sets[0].cpus[i].store(words[i]);
  device_.core_sets[1].cpus[0].store(1);
  EXPECT_FALSE(observer_.cores_left(kNow)->coordinator_alive) << "no page yet";
  use_device();
  const auto word = observer_.cores_left(kNow);
  ASSERT_TRUE(word);
  EXPECT_TRUE(word->coordinator_alive);
  EXPECT_FALSE(word->guaranteed_present);
  EXPECT_EQ(word->left.to_string(), "1,70,255");
  add_guaranteed(2);
  EXPECT_TRUE(observer_.cores_left(kNow)->guaranteed_present);
  EXPECT_FALSE(observer_.cores_left(kNow + seconds{5})->coordinator_alive);
}

TEST_F(PeerObserverTest, CoresThatAreBeingWrittenAreNotRead) {
  use_device();
  entry(0).sequence.store(7);
  EXPECT_FALSE(observer_.cores_left(kNow));
  entry(0).sequence.store(8);
  EXPECT_TRUE(observer_.cores_left(kNow));
}

TEST_F(PeerObserverTest, TheOwnEntryBoundsTheGate) {
  entry(0).share_max_ppm.store(250'000);
  entry(0).paused.store(1);
  use_device();
  const DeviceObservation seen = observer_.observe(kNow);
  EXPECT_TRUE(seen.coordinator_alive);
  EXPECT_DOUBLE_EQ(seen.trickle, 0.01);
  EXPECT_DOUBLE_EQ(seen.share_max, 0.25);
  EXPECT_TRUE(seen.paused);
}

TEST_F(PeerObserverTest, FindsTheOwnEntryAgainWhenItMoves) {
  use_device();
  EXPECT_DOUBLE_EQ(observer_.observe(kNow).trickle, 0.01);
  std::memset(entry(0).job_id, 0, wire::kIdSize);
  put(7, "own", JobClass::kOpportunistic);
  entry(7).share_min_ppm.store(70'000);
  entry(7).share_max_ppm.store(1'000'000);
  EXPECT_DOUBLE_EQ(observer_.observe(kNow).trickle, 0.07);
  std::memset(entry(7).job_id, 0, wire::kIdSize);
  device_.revision.fetch_add(1);
  EXPECT_DOUBLE_EQ(observer_.observe(kNow).trickle, 0.03) << "the page's, without an entry";
}

TEST_F(PeerObserverTest, AGuaranteedLeaseIsSeenWithoutAnyPageOfItsJob) {
  add_guaranteed(1);
  use_device();
  const DeviceObservation seen = observer_.observe(kNow);
  EXPECT_TRUE(seen.guaranteed_present);
  EXPECT_FALSE(seen.all_waiting);
}

TEST_F(PeerObserverTest, ItselfIsNoNeighbour) {
  put(0, "own", JobClass::kGuaranteed);
  device_.guaranteed_alive.store(1);
  use_device();
  EXPECT_FALSE(observer_.observe(kNow).guaranteed_present);
  const OwnPage mine{JobId{"own"}, JobClass::kGuaranteed, 0};
  observer_.add_peer(5, view_of(mine));
  EXPECT_EQ(observer_.peers(), 0U);
}

TEST_F(PeerObserverTest, AllProcessesMustWait) {
  add_guaranteed(1);
  use_device();
  observer_.add_peer(10, view_of(first_));
  observer_.add_peer(11, view_of(second_));
  EXPECT_FALSE(observer_.observe(kNow).all_waiting) << "unknown counts as busy";
  set(first_, wire::Activity::kWaiting, kNow - milliseconds{5}, kNow + milliseconds{9});
  set(second_, wire::Activity::kBusy, kNow - milliseconds{2});
  DeviceObservation seen = observer_.observe(kNow);
  EXPECT_FALSE(seen.all_waiting);
  EXPECT_EQ(seen.busy_since, kNow - milliseconds{2});
  set(second_, wire::Activity::kWaiting, kNow - milliseconds{3}, kNow + milliseconds{4});
  second_.page().last_touch_ns.store(to_page_time(kNow - milliseconds{1}));
  seen = observer_.observe(kNow);
  EXPECT_TRUE(seen.all_waiting);
  EXPECT_EQ(seen.idle_since, kNow - milliseconds{3});
  EXPECT_EQ(seen.idle_expected_end, kNow + milliseconds{4});
  EXPECT_EQ(seen.last_touch, kNow - milliseconds{1});
}

TEST_F(PeerObserverTest, TheEndOfAWaitIsExpectedGivenHowLongItHasLasted) {
  add_guaranteed(1);
  use_device();
  observer_.add_peer(10, view_of(first_));
  set(first_, wire::Activity::kWaiting, kNow, kNow + milliseconds{7});
  EXPECT_EQ(observer_.observe(kNow).idle_expected_end, kNow + milliseconds{7})
      << "of a writer without a table";
  first_.page().wait_phase.store(static_cast<std::uint64_t>(wire::GapPhase::kEvaluation));
  auto& table = wire::gap_table(first_.page())
                    .expected_ns[static_cast<std::size_t>(wire::GapPhase::kEvaluation)];
  for (std::size_t i = 0; i < wire::kGapBuckets; ++i) {
    table[i].store(i <= wire::gap_bucket(4'000'000) ? 4'000'000 : 80'000'000);
  }
  table[wire::gap_bucket(1'000'000'000)].store(0);
  DeviceObservation seen = observer_.observe(kNow + milliseconds{1});
  EXPECT_EQ(seen.idle_expected_end, kNow + milliseconds{4});
  EXPECT_EQ(seen.gap_phases, wire::phase_bit(wire::GapPhase::kEvaluation));
  seen = observer_.observe(kNow + milliseconds{6});
  EXPECT_EQ(seen.idle_expected_end, kNow + milliseconds{80}) << "it is one of the long ones";
  seen = observer_.observe(kNow + seconds{1});
  EXPECT_EQ(seen.idle_expected_end, TimePoint{}) << "none lasted so long";
}

TEST_F(PeerObserverTest, OfSeveralWaitsThePhasesAddUpAndTheFirstEndCounts) {
  add_guaranteed(1);
  use_device();
  observer_.add_peer(10, view_of(first_));
  observer_.add_peer(11, view_of(second_));
  const auto waits = [](OwnPage& page, wire::GapPhase phase, std::uint64_t length) {
    set(page, wire::Activity::kWaiting, kNow - milliseconds{1});
    page.page().wait_phase.store(static_cast<std::uint64_t>(phase));
    for (auto& word : wire::gap_table(page.page()).expected_ns[static_cast<std::size_t>(phase)]) {
      word.store(length);
    }
  };
  waits(first_, wire::GapPhase::kLoader, 30'000'000);
  waits(second_, wire::GapPhase::kCheckpoint, 500'000'000);
  const DeviceObservation seen = observer_.observe(kNow);
  EXPECT_EQ(seen.gap_phases, wire::phase_bit(wire::GapPhase::kLoader) |
                                 wire::phase_bit(wire::GapPhase::kCheckpoint));
  EXPECT_EQ(seen.idle_expected_end, kNow + milliseconds{29});
}

TEST_F(PeerObserverTest, NonsenseInATableIsNoHarm) {
  use_device();
  observer_.add_peer(10, view_of(first_));
  set(first_, wire::Activity::kWaiting, kNow);
  for (const std::uint64_t phase : {std::uint64_t{3}, std::uint64_t{99}, UINT64_MAX}) {
    first_.page().wait_phase.store(phase);
    for (auto& row : wire::gap_table(first_.page()).expected_ns) {
      for (auto& word : row) word.store(UINT64_MAX);
    }
    for (const std::uint64_t since : {std::uint64_t{0}, to_page_time(kNow), UINT64_MAX}) {
      first_.page().activity_since_ns.store(since);
      const DeviceObservation seen = observer_.observe(kNow);
      EXPECT_EQ(seen.idle_expected_end == TimePoint{}, phase != 3) << phase << " " << since;
    }
  }
}

TEST_F(PeerObserverTest, TheRulesForGapsAreTheOwnEntrys) {
  wire::GapRules rules;
  rules.known = true;
  rules.guard = milliseconds{1};
  rules.in_flight = milliseconds{2};
  rules.hand_overs = 4.5;
  const wire::PackedGapRules words = wire::pack(rules);
  entry(0).gap_rules.store(words.gaps);
  entry(0).flight_rules.store(words.flight);
  use_device();
  EXPECT_EQ(observer_.observe(kNow).gap_rules, rules);
  entry(0).gap_rules.store(0);
  EXPECT_FALSE(observer_.observe(kNow).gap_rules.known) << "an older coordinator's page";
}

TEST_F(PeerObserverTest, ADeadProcessNoLongerCounts) {
  add_guaranteed(1);
  use_device();
  observer_.add_peer(10, view_of(first_));
  observer_.add_peer(11, view_of(second_));
  set(first_, wire::Activity::kWaiting, kNow - milliseconds{5});
  set(second_, wire::Activity::kBusy, kNow - milliseconds{2});
  observer_.remove_peer(11);
  EXPECT_TRUE(observer_.observe(kNow).all_waiting);
  EXPECT_EQ(observer_.peers(), 1U);
}

TEST_F(PeerObserverTest, C20_ASilentCoordinatorLeavesLeasesToExpire) {
  add_guaranteed(1);
  use_device();
  const TimePoint later = kNow + PeerObserver::kSilence + milliseconds{1};
  DeviceObservation seen = observer_.observe(later);
  EXPECT_FALSE(seen.coordinator_alive);
  EXPECT_TRUE(seen.guaranteed_present) << "its lease runs for another second";
  EXPECT_DOUBLE_EQ(seen.trickle, 0.03) << "the configured rate, not the last measured one";
  seen = observer_.observe(kNow + seconds{4});
  EXPECT_FALSE(seen.guaranteed_present);
  device_.heartbeat_ns.store(to_page_time(kNow + seconds{5}));
  entry(1).lease_until_ns.store(to_page_time(kNow + seconds{8}));
  seen = observer_.observe(kNow + seconds{5});
  EXPECT_TRUE(seen.coordinator_alive) << "it speaks again";
  EXPECT_TRUE(seen.guaranteed_present);
}

TEST_F(PeerObserverTest, Law4_AMomentsClosingEndsWithItsCoordinator) {
  add_guaranteed(1);
  use_device();
  entry(0).share_max_ppm.store(0);
  EXPECT_DOUBLE_EQ(observer_.observe(kNow).share_max, 0.0) << "the twin: it lives";
  const TimePoint later = kNow + PeerObserver::kSilence + milliseconds{1};
  EXPECT_DOUBLE_EQ(observer_.observe(later).share_max, 1.0);
  entry(0).share_max_ppm.store(400'000);
  EXPECT_DOUBLE_EQ(observer_.observe(later).share_max, 0.4) << "a bound lets work through";
}

TEST_F(PeerObserverTest, ALivingGuaranteedProcessCountsWithoutALease) {
  use_device();
  observer_.add_peer(10, view_of(first_));
  first_.page().heartbeat_ns.store(to_page_time(kNow + seconds{10}));
  EXPECT_TRUE(observer_.observe(kNow + seconds{11}).guaranteed_present);
  EXPECT_FALSE(observer_.observe(kNow + seconds{13}).guaranteed_present);
}

/// Law 6 while the job trains: its daemon dies and leaves a page that says that a guaranteed job is
/// busy and that nothing may run beside it.
class Law6Observer : public PeerObserverTest {
 protected:
  Law6Observer() {
    device_.trickle_ppm.store(0);
    entry(0).share_min_ppm.store(0);
    add_guaranteed(1);
    use_device();
  }
  [[nodiscard]] bool lets_an_op_pass(TimePoint now) const {
    return law_->decide(PacingInput{.device = observer_.observe(now)}).open;
  }

  std::unique_ptr<PacingLaw> law_ = make_pacing_law("gap");
};

TEST_F(Law6Observer, Law6_TrainsOnAfterItsDaemonDied) {
  EXPECT_FALSE(lets_an_op_pass(kNow));
  EXPECT_FALSE(lets_an_op_pass(kNow + PeerObserver::kSilence)) << "the other job's lease runs";
  EXPECT_TRUE(lets_an_op_pass(kNow + seconds{4}));
}

TEST_F(Law6Observer, Law6_BreaksWhenTheDaemonsDeathDoesNotShow) {
  int passed = 0;
  for (TimePoint now = kNow; now < kNow + std::chrono::hours{1}; now += seconds{1}) {
    device_.heartbeat_ns.store(to_page_time(now));  // as if the page were alive without a writer
    passed += lets_an_op_pass(now) ? 1 : 0;
  }
  EXPECT_EQ(passed, 0) << "it would never train again";
}

/// A job at a closed gate, which sleeps for as long as the law says, or until a bell rings, while a
/// guaranteed job's host and device come to rest one after the other.
class DrainObserver : public PeerObserverTest {
 protected:
  static constexpr std::uint64_t kWork = 7;  // number of the mark behind what the device works on

  DrainObserver() {
    device_.trickle_ppm.store(0);
    entry(0).share_min_ppm.store(0);
    add_guaranteed(1);
    use_device();
    observer_.add_peer(10, view_of(first_));
    set(first_, wire::Activity::kBusy, kNow - milliseconds{30});
    first_.page().last_touch_ns.store(to_page_time(kNow - milliseconds{1}));
  }

  void host_waits() {
    first_.page().activity_since_ns.store(to_page_time(now_));
    first_.page().queue_issued.store(kWork);
    first_.page().activity.store(static_cast<std::uint64_t>(wire::Activity::kWaiting));
  }
  void device_is_done() { first_.page().queue_done.store(kWork); }

  struct Wait {
    Duration until_open{};
    int looks = 0;
    int looks_while_draining = 0;
    Duration longest_while_draining{};
  };
  /// @param events  what happens when; the last one makes the gate open.
  Wait wait_at_gate(const std::map<Duration, std::function<void()>>& events) {
    const auto law = make_pacing_law("gap");
    Wait wait;
    auto next = events.begin();
    for (; wait.looks < 100'000; ++wait.looks) {
      device_.heartbeat_ns.store(to_page_time(now_));
      const DeviceObservation seen = observer_.observe(now_);
      const PacingDecision decision = law->decide({.device = seen});
      wait.until_open = now_ - kNow;
      if (decision.open) break;
      if (seen.draining) {
        ++wait.looks_while_draining;
        wait.longest_while_draining = std::max(wait.longest_while_draining, decision.recheck);
        EXPECT_FALSE(decision.bell) << "it would wait for a word that does not change";
      }
      const TimePoint until = now_ + decision.recheck;
      bool rung = false;
      while (!rung && next != events.end() && kNow + next->first <= until) {
        now_ = kNow + next->first;
        next++->second();
        rung = decision.bell &&
               static_cast<std::uint32_t>(decision.bell.word->load()) != decision.bell.seen;
      }
      if (!rung) now_ = until;
    }
    return wait;
  }

  TimePoint now_ = kNow;
};

TEST_F(DrainObserver, TheGateOpensWithinATenthOfAMillisecondOfTheDevicesRest) {
  const Wait wait = wait_at_gate(
      {{milliseconds{4}, [&] { host_waits(); }}, {milliseconds{9}, [&] { device_is_done(); }}});
  EXPECT_GE(wait.until_open, milliseconds{9});
  EXPECT_LE(wait.until_open, milliseconds{9} + std::chrono::microseconds{100});
  EXPECT_EQ(wait.longest_while_draining, std::chrono::microseconds{100});
  EXPECT_EQ(wait.looks_while_draining, 50) << "5 ms, each 100 us";
  EXPECT_EQ(wait.looks, 51) << "one before, while it was busy";
}

TEST_F(DrainObserver, ADeviceThatRestsBeforeItsHostWaitsIsNotPolled) {
  device_is_done();
  const Wait wait = wait_at_gate({{milliseconds{4}, [&] { host_waits(); }}});
  EXPECT_EQ(wait.until_open, milliseconds{4} + kQuietBeforeGap);
  EXPECT_EQ(wait.looks_while_draining, 0);
  EXPECT_EQ(wait.looks, 2) << "while it is busy, until the bell; and when it begins to wait";
}

TEST_F(DrainObserver, AHostThatGoesOnWhileItsDeviceWorksRingsAgain) {
  const Wait wait = wait_at_gate({
      {milliseconds{1}, [&] { host_waits(); }},
      {milliseconds{2},
       [&] { first_.page().activity.store(static_cast<std::uint64_t>(wire::Activity::kBusy)); }},
      {milliseconds{9}, [&] { device_is_done(); }},
      {milliseconds{10}, [&] { host_waits(); }},
  });
  EXPECT_EQ(wait.until_open, milliseconds{10} + kQuietBeforeGap);
  EXPECT_LE(wait.looks_while_draining, 11);
  EXPECT_LE(wait.looks, 14);
}

/// The own job has three ranks; this process is one of them.
class GangObserver : public PeerObserverTest {
 protected:
  GangObserver() {
    entry(0).gang_epoch.store(3);
    own_.page().collectives_begun.store(5);
    show(second_rank_, 5);
    show(third_rank_, 5);
    rank_.set_device_page(wire::MappedPage(device_fd_.get(), wire::kPageSize, false));
    rank_.add_peer(21, view_of(second_rank_));
    rank_.add_peer(22, view_of(third_rank_));
  }
  static void show(OwnPage& rank, std::uint64_t begun) {
    rank.page().heartbeat_ns.store(to_page_time(kNow));
    rank.page().collectives_begun.store(begun);
  }

  OwnPage own_{JobId{"own"}, JobClass::kOpportunistic, 0};
  OwnPage second_rank_{JobId{"own"}, JobClass::kOpportunistic, 1};
  OwnPage third_rank_{JobId{"own"}, JobClass::kOpportunistic, 2};
  PeerObserver rank_{JobId{"own"}, &own_.page()};
};

TEST_F(GangObserver, TheFrontIsTheRankThatHasBegunMost) {
  EXPECT_EQ(rank_.ranks(), 2U);
  EXPECT_EQ(rank_.peers(), 0U) << "ranks of the own job are no neighbours";
  GangObservation gang = rank_.observe(kNow).gang;
  EXPECT_EQ(gang.epoch, 3U);
  EXPECT_EQ(gang.begun, 5U);
  EXPECT_EQ(gang.front, 5U);
  show(third_rank_, 7);
  gang = rank_.observe(kNow).gang;
  EXPECT_EQ(gang.front, 7U);
  EXPECT_TRUE(gang.behind());
  own_.page().collectives_begun.store(9);
  EXPECT_EQ(rank_.observe(kNow).gang.front, 9U) << "itself";
}

TEST_F(GangObserver, ASilentOrDeadRankIsNotTheFront) {
  show(third_rank_, 7);
  third_rank_.page().heartbeat_ns.store(to_page_time(kNow - seconds{3}));
  EXPECT_FALSE(rank_.observe(kNow).gang.behind());
  third_rank_.page().heartbeat_ns.store(to_page_time(kNow));
  EXPECT_TRUE(rank_.observe(kNow).gang.behind());
  rank_.remove_peer(22);
  EXPECT_FALSE(rank_.observe(kNow).gang.behind());
  EXPECT_EQ(rank_.ranks(), 1U);
}

TEST_F(GangObserver, WithoutACoordinatorThereIsNoGang) {
  show(third_rank_, 7);
  device_.heartbeat_ns.store(to_page_time(kNow - seconds{3}));
  EXPECT_EQ(rank_.observe(kNow).gang.epoch, 0U);
  device_.heartbeat_ns.store(to_page_time(kNow));
  entry(0).gang_epoch.store(0);
  EXPECT_FALSE(rank_.observe(kNow).gang.behind()) << "the coordinator freed it";
}

TEST_F(GangObserver, ShowsItsStandByEpoch) {
  rank_.show_gang(3, 6);
  EXPECT_EQ(own_.page().gang_epoch.load(), 3U);
  EXPECT_EQ(own_.page().gang_stand.load(), 6U);
  rank_.show_gang(4, 0);
  EXPECT_EQ(own_.page().gang_epoch.load(), 4U);
  EXPECT_EQ(own_.page().gang_stand.load(), 0U);
}

TEST_F(GangObserver, WithoutAPageOfItsOwnAProcessIsNeverBehind) {
  show(third_rank_, 7);
  observer_.set_device_page(wire::MappedPage(device_fd_.get(), wire::kPageSize, false));
  observer_.add_peer(22, view_of(third_rank_));
  EXPECT_EQ(observer_.observe(kNow).gang.epoch, 0U);
  observer_.show_gang(1, 1);  // nowhere to show it
}

TEST_F(GangObserver, NonsenseInAnotherRanksPageOpensNoGateForLong) {
  show(third_rank_, UINT64_MAX);
  const GangObservation gang = rank_.observe(kNow).gang;
  EXPECT_TRUE(gang.behind());
  EXPECT_FALSE(runs_on(gang, kMostCatchUp));
}

/// A data-parallel guaranteed job: its device is free only while all of its ranks wait.
TEST_F(Law6Observer, AGapBeginsWithTheLastRankOfAGuaranteedJob) {
  observer_.add_peer(10, view_of(first_));
  observer_.add_peer(11, view_of(second_));
  set(first_, wire::Activity::kWaiting, kNow - milliseconds{20}, kNow + milliseconds{50});
  set(second_, wire::Activity::kBusy, kNow - milliseconds{20});
  EXPECT_FALSE(lets_an_op_pass(kNow)) << "one computes, or waits for the other in a collective";
  set(second_, wire::Activity::kWaiting, kNow - milliseconds{5}, kNow + milliseconds{50});
  EXPECT_TRUE(lets_an_op_pass(kNow));
  set(first_, wire::Activity::kBusy, kNow);
  EXPECT_FALSE(lets_an_op_pass(kNow)) << "and ends with the first";
}

/// The page of another device, with the own entry on it.
struct FurtherPage {
  explicit FurtherPage(const char* id) {
    page.header = {wire::kDevicePageMagic, wire::kPageVersion,
                   static_cast<std::uint32_t>(wire::kPageSize), 1, 0};
    std::strncpy(page.device_id, id, wire::kIdSize - 1);
    page.heartbeat_ns.store(to_page_time(kNow));
    std::strncpy(own.job_id, "own", wire::kIdSize - 1);
    own.job_class.store(static_cast<std::uint64_t>(JobClass::kOpportunistic));
    own.share_min_ppm.store(20'000);
    own.share_max_ppm.store(1'000'000);
  }
  [[nodiscard]] wire::MappedPage view() const {
    return wire::MappedPage(fd.get(), wire::kPageSize, false);
  }
  wire::UniqueFd fd = wire::make_page_memfd("other-device");
  wire::MappedPage map{fd.get(), wire::kPageSize, true};
  wire::DevicePage& page = *map.as<wire::DevicePage>();
  wire::DeviceEntry& own = page.entries[3];
};

TEST_F(PeerObserverTest, AGuaranteedJobOnAnyDeviceCounts) {
  use_device();
  FurtherPage second("GPU-b");
  observer_.add_device_page(second.view());
  EXPECT_FALSE(observer_.observe(kNow).guaranteed_present);
  second.page.guaranteed_alive.store(1);
  second.own.slo_ppm.store(30'000);
  DeviceObservation seen = observer_.observe(kNow);
  EXPECT_TRUE(seen.guaranteed_present);
  EXPECT_DOUBLE_EQ(seen.trickle, 0.02) << "as that device's coordinator says";
  EXPECT_DOUBLE_EQ(seen.slo, 0.03);
  // With one on each: closed when any of them is busy, and the tighter word counts.
  add_guaranteed(1);
  set(first_, wire::Activity::kWaiting, kNow - seconds{1});
  set(second_, wire::Activity::kBusy, kNow - milliseconds{3});
  observer_.add_peer(41, view_of(first_));
  observer_.add_peer(42, view_of(second_));
  seen = observer_.observe(kNow);
  EXPECT_FALSE(seen.all_waiting);
  EXPECT_DOUBLE_EQ(seen.trickle, 0.01);
  set(second_, wire::Activity::kWaiting, kNow - milliseconds{3});
  EXPECT_TRUE(observer_.observe(kNow).all_waiting);
}

TEST_F(PeerObserverTest, WhatAnyDeviceAsksForHolds) {
  use_device();
  FurtherPage second("GPU-b");
  observer_.add_device_page(second.view());
  second.own.share_max_ppm.store(400'000);
  EXPECT_DOUBLE_EQ(observer_.observe(kNow).share_max, 0.4);
  second.own.paused.store(1);
  EXPECT_TRUE(observer_.observe(kNow).paused);
  second.own.paused.store(0);
  second.own.turn_until_ns.store(to_page_time(kNow + seconds{2}));
  EXPECT_EQ(observer_.observe(kNow).turn_until, kNow + seconds{2});
  entry(0).turn_until_ns.store(to_page_time(kNow - seconds{1}));
  EXPECT_EQ(observer_.observe(kNow).turn_until, kNow - seconds{1}) << "a turn on each";
  // Rules are about guaranteed jobs: none, no rules.
  const auto rules = [](wire::DeviceEntry& of, Duration in_flight, Duration guard) {
    wire::GapRules set;
    set.known = true;
    set.in_flight = in_flight;
    set.guard = guard;
    const wire::PackedGapRules packed = wire::pack(set);
    of.gap_rules.store(packed.gaps);
    of.flight_rules.store(packed.flight);
  };
  rules(entry(0), milliseconds{4}, milliseconds{1});
  rules(second.own, milliseconds{2}, Duration{});
  EXPECT_EQ(observer_.observe(kNow).gap_rules.in_flight, milliseconds{4});
  second.page.guaranteed_alive.store(1);
  EXPECT_EQ(observer_.observe(kNow).gap_rules.in_flight, milliseconds{2});
  EXPECT_EQ(observer_.observe(kNow).gap_rules.guard, Duration{});
  add_guaranteed(1);
  EXPECT_EQ(observer_.observe(kNow).gap_rules.in_flight, milliseconds{2});
  EXPECT_EQ(observer_.observe(kNow).gap_rules.guard, milliseconds{1});
}

TEST_F(PeerObserverTest, AFurtherDevicesNewPageTakesThePlaceOfItsOldOne) {
  use_device();
  FurtherPage before("GPU-b");
  before.page.guaranteed_alive.store(1);
  observer_.add_device_page(before.view());
  EXPECT_TRUE(observer_.observe(kNow).guaranteed_present);
  const FurtherPage after("GPU-b");
  observer_.add_device_page(after.view());
  EXPECT_FALSE(observer_.observe(kNow).guaranteed_present);
  for (std::size_t i = 2; i < PeerObserver::kMaxDevices; ++i) {
    observer_.add_device_page(FurtherPage(("GPU-" + std::to_string(i)).c_str()).view());
  }
  EXPECT_THROW(observer_.add_device_page(FurtherPage("GPU-many").view()), std::runtime_error);
}

TEST_F(PeerObserverTest, RefusesPagesThatAreNone) {
  device_.header.version = 99;
  EXPECT_THROW(use_device(), std::runtime_error);
  EXPECT_THROW(observer_.add_peer(10, wire::MappedPage(device_fd_.get(), wire::kPageSize, false)),
               std::runtime_error);
}

TEST_F(PeerObserverTest, ASilentServerThatMarksNothingWaits) {
  use_device();
  add_guaranteed(1);
  observer_.add_peer(7, view_of(first_));
  set(first_, wire::Activity::kBusy, kNow - seconds{1});
  first_.page().last_touch_ns.store(to_page_time(kNow - milliseconds{3}));
  EXPECT_FALSE(observer_.observe(kNow).all_waiting) << "of a training job silence says nothing";
  first_.page().quiet_ns.store(4'000'000);
  EXPECT_FALSE(observer_.observe(kNow).all_waiting);
  const DeviceObservation seen = observer_.observe(kNow + milliseconds{1});
  EXPECT_TRUE(seen.all_waiting);
  EXPECT_EQ(seen.idle_since, kNow - milliseconds{3});
  EXPECT_EQ(seen.gap_phases, wire::phase_bit(wire::GapPhase::kRequests));
}

}  // namespace
}  // namespace commensal::peer_observer_test
