// SPDX-License-Identifier: Apache-2.0
// Ranks of one job under random interleavings: real gates, real pages, the real keeper of gangs.
//
// One thread plays all: at each turn a rank tries its next op, begins a collective or waits in it,
// a communication thread brings collectives to their end, the coordinator reads the pages and
// writes the device page, or somebody orders the gates to close or to open. Every order of turns
// may happen. What must hold is looked at when nothing can move any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "coordinator/node/device_page.h"
#include "coordinator/node/gang_keeper.h"
#include "tests/torch_ext/fake_clock.h"
#include "tests/torch_ext/runtime/page_file.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/peer_observer.h"

namespace commensal::gang_model_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::size_t kCollectives = 12;

struct Rules {
  std::size_t ranks = 2;
  bool gang = true;          ///< off: each rank is gated by itself
  bool gate_inside = false;  ///< on: what runs inside of a collective waits at the gate, too
};

class Rank {
 public:
  Rank(const testing::FakeClock& clock, int number)
      : page_(JobId{"job"}, JobClass::kOpportunistic, number),
        observer_(JobId{"job"}, &page_.page()),
        gate_(make_pacing_law("gap"), observer_, clock) {
    op_.record(microseconds{10});
  }

  [[nodiscard]] wire::JobPage& page() { return page_.page(); }
  [[nodiscard]] std::uint64_t begun() { return page().collectives_begun.load(); }
  [[nodiscard]] std::uint64_t ended() { return page().collectives_ended.load(); }
  [[nodiscard]] bool done() const { return next_ == kCollectives && !waits_ && ops_ == 0; }
  /// In a collective that has not ended, as far as the rank knows.
  [[nodiscard]] bool inside() { return waits_ && ended() < begun(); }
  [[nodiscard]] bool alive() const { return alive_; }
  void set_alive(bool alive) { alive_ = alive; }
  /// As by SIGSTOP: none of its threads runs.
  [[nodiscard]] bool stopped() const { return stopped_; }
  void set_stopped(bool stopped) { stopped_ = stopped; }
  [[nodiscard]] const OwnPage& own_page() const { return page_; }
  PeerObserver& observer() { return observer_; }
  Gate& gate() { return gate_; }

  bool pass_an_op() {
    if (!gate_.try_enter_op(op_)) return false;
    gate_.leave_op(op_);
    return true;
  }
  /// Takes a turn. @return whether anything moved.
  template <typename Random>
  bool take_turn(Random& random, const std::vector<bool>& waits_at_once) {
    if (!alive_ || stopped_ || done()) return false;
    if (waits_) {
      if (ended() < begun()) return false;
      waits_ = false;
      return true;
    }
    if (ops_ > 0) {
      if (!pass_an_op()) return false;
      --ops_;
      return true;
    }
    page().collectives_begun.fetch_add(1);
    ++next_;
    waits_ = waits_at_once[next_ - 1] || next_ == kCollectives;
    ops_ = static_cast<int>(random() % 4);  // ranks differ in what lies between
    return true;
  }

 private:
  OwnPage page_;
  PeerObserver observer_;
  Gate gate_;
  OpDuration op_;
  std::size_t next_ = 0;  // collectives that it has begun
  int ops_ = 1;           // before the next one
  bool waits_ = false;
  bool alive_ = true;
  bool stopped_ = false;
};

class World {
 public:
  World(const Rules& rules, std::uint64_t seed) : rules_(rules), random_(seed) {
    for (std::size_t i = 0; i < rules.ranks; ++i) {
      ranks_.push_back(std::make_unique<Rank>(clock_, static_cast<int>(i)));
    }
    for (std::size_t i = 0; i < rules.ranks; ++i) {
      ranks_[i]->observer().set_device_page(
          wire::MappedPage(writer_.reader().get(), wire::kPageSize, false));
      for (std::size_t k = 0; k < rules.ranks; ++k) {
        if (k == i) continue;
        ranks_[i]->observer().add_peer(
            pid(k), wire::MappedPage(file_of(ranks_[k]->own_page()).get(), wire::kPageSize, false));
      }
    }
    for (std::size_t i = 0; i < kCollectives; ++i) waits_at_once_.push_back(random_() % 2 == 0);
    coordinate();
  }

  [[nodiscard]] Rank& rank(std::size_t i) { return *ranks_[i]; }
  [[nodiscard]] const node::GangKeeper& keeper() const { return keeper_; }
  void order(bool closed) { closed_ = closed; }
  void pass_time(Duration time) { clock_.advance(time); }
  void let_the_coordinator_die() { coordinator_alive_ = false; }

  /// Any turn of anybody. @return whether a rank or a collective moved.
  bool turn() {
    clock_.advance(microseconds{1});
    const std::size_t who = random_() % (ranks_.size() + 3);
    if (who < ranks_.size()) return move(who);
    if (who == ranks_.size()) return communicate();
    if (who == ranks_.size() + 1) {
      coordinate();
    } else {
      tick();
    }
    return false;
  }
  /// Takes turns in any order until nothing moves. @return false if that does not come to an end.
  bool settle() {
    for (int pass = 0; pass < 5000; ++pass) {
      bool moved = false;
      for (int i = 0; i < 20; ++i) moved = turn() || moved;
      clock_.advance(microseconds{100});  // older than what any gate remembers
      for (std::size_t i = 0; i < ranks_.size(); ++i) moved = move(i) || moved;
      moved = communicate(true) || moved;
      tick();
      const std::uint64_t before = keeper_.page_epoch();
      coordinate();
      if (!moved && keeper_.page_epoch() == before) return true;
    }
    return false;
  }
  [[nodiscard]] bool anybody_inside() {
    return any([](Rank& rank) { return rank.inside(); });
  }
  [[nodiscard]] bool all_done() {
    return !any([](Rank& rank) { return !rank.done(); });
  }
  [[nodiscard]] bool all_equally_far() {
    const std::uint64_t first = ranks_.front()->begun();
    return !any([first](Rank& rank) { return rank.begun() != first; });
  }
  /// What is read of the pages, and written to the device page.
  void coordinate() {
    if (!coordinator_alive_) return;
    node::GangView view{clock_.now(), static_cast<int>(rules_.ranks), closed_, {}};
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      wire::JobPage& page = ranks_[i]->page();
      node::GangRank rank{pid(i), static_cast<int>(i), true, {}, 0, 0, 0, 0};
      rank.heartbeat = from_page_time(page.heartbeat_ns.load());
      rank.ended = page.collectives_ended.load();
      rank.begun = page.collectives_begun.load();
      rank.epoch = page.gang_epoch.load();
      rank.stand = page.gang_stand.load();
      view.ranks.push_back(rank);
    }
    (void)keeper_.update(view);
    node::PageEntry entry;
    entry.job_id = "job";
    entry.law = "gap";
    entry.paused = closed_;
    entry.gang_epoch = rules_.gang ? keeper_.page_epoch() : 0;
    writer_.publish({entry}, device_, clock_.now());
  }

 private:
  static node::Device device() {
    node::Device device;
    device.cores = 2;
    return device;
  }
  static std::int64_t pid(std::size_t i) { return 100 + static_cast<std::int64_t>(i); }
  bool any(const std::function<bool(Rank&)>& holds) {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [&](const auto& rank) { return rank->alive() && holds(*rank); });
  }
  bool move(std::size_t i) { return ranks_[i]->take_turn(random_, waits_at_once_); }
  void tick() {  // the ranks' client threads
    for (const auto& rank : ranks_) {
      if (!rank->alive() || rank->stopped()) continue;
      rank->page().heartbeat_ns.store(to_page_time(clock_.now()));
      rank->gate().refresh();
    }
  }
  /// A collective ends, in each rank by itself, once all have begun it.
  bool communicate(bool all = false) {
    std::uint64_t everywhere = UINT64_MAX;
    for (const auto& rank : ranks_) {
      if (rank->alive()) everywhere = std::min(everywhere, rank->begun());
    }
    bool moved = false;
    for (const auto& rank : ranks_) {
      if (!rank->alive() || rank->stopped() || (!all && random_() % 2 == 0)) continue;
      while (rank->ended() < std::min(rank->begun(), everywhere)) {
        if (rules_.gate_inside && !rank->pass_an_op()) break;
        rank->page().collectives_ended.fetch_add(1);
        moved = true;
      }
    }
    return moved;
  }

  Rules rules_;
  std::mt19937_64 random_;
  testing::FakeClock clock_;
  node::Device device_ = device();
  node::DevicePageWriter writer_{device_, 0.01, 1};
  node::GangKeeper keeper_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<bool> waits_at_once_;
  bool closed_ = false;
  bool coordinator_alive_ = true;
};

/// What was found over many interleavings.
struct Found {
  int closes = 0;
  int not_settled = 0;   ///< something went on and on
  int inside = 0;        ///< closed, and a rank waits in a collective
  int apart = 0;         ///< closed, and not between the same two collectives
  int not_together = 0;  ///< the keeper did not see them stand together
  int never_done = 0;    ///< open, and a rank does not come to its end
};

Found explore(const Rules& rules, int worlds) {
  Found found;
  for (int seed = 0; seed < worlds; ++seed) {
    World world(rules, static_cast<std::uint64_t>(seed) * 7919 + rules.ranks);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    for (int round = 0; round < 6; ++round) {
      for (std::uint64_t turns = random() % 60; turns > 0; --turns) {
        if (random() % 30 == 0) world.order(random() % 2 == 0);  // and at once something else
        (void)world.turn();
      }
      world.order(true);
      ++found.closes;
      if (!world.settle()) ++found.not_settled;
      if (world.anybody_inside()) ++found.inside;
      if (!world.all_equally_far()) ++found.apart;
      const bool told = world.keeper().reason().starts_with("closed together");
      if (world.keeper().gated() && !told) ++found.not_together;
      world.order(false);
    }
    if (!world.settle() || !world.all_done()) ++found.never_done;
  }
  return found;
}

class GangModel : public ::testing::TestWithParam<std::size_t> {};

TEST_P(GangModel, AllRanksStopBetweenTheSameTwoCollectivesAndGoOn) {
  const Found found = explore({.ranks = GetParam()}, 150);
  EXPECT_EQ(found.closes, 900);
  EXPECT_EQ(found.not_settled, 0);
  EXPECT_EQ(found.apart, 0);
  EXPECT_EQ(found.not_together, 0);
  EXPECT_EQ(found.never_done, 0);
}

TEST_P(GangModel, C10_NoGateClosesInsideOfACollective) {
  EXPECT_EQ(explore({.ranks = GetParam()}, 150).inside, 0);
}

TEST_P(GangModel, C10_WithAGateInsideOfCollectivesRanksStopInThem) {
  const Found found = explore({.ranks = GetParam(), .gate_inside = true}, 50);
  EXPECT_GT(found.inside, 10);
  EXPECT_EQ(found.never_done, 0) << "what is open again goes on all the same";
}

TEST_P(GangModel, C11_NobodyWaitsInACollectiveForARankAtItsGate) {
  const Found found = explore({.ranks = GetParam()}, 150);
  EXPECT_EQ(found.inside + found.apart, 0);
}

TEST_P(GangModel, C11_GatedOneByOneOthersWaitForARankAtItsGate) {
  const Found found = explore({.ranks = GetParam(), .gang = false}, 150);
  EXPECT_GT(found.inside, 50);
  EXPECT_GT(found.apart, 50);
  EXPECT_EQ(found.never_done, 0) << "slower, not stuck";
}

INSTANTIATE_TEST_SUITE_P(Ranks, GangModel, ::testing::Values(2, 3, 8),
                         ::testing::PrintToStringParamName());

TEST(GangModelFaults, ARankThatDiesFreesTheOthers) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    World world({.ranks = 3}, seed);
    for (int i = 0; i < 40; ++i) (void)world.turn();
    world.order(true);
    ASSERT_TRUE(world.settle());
    world.rank(seed % 3).set_alive(false);
    world.order(false);
    for (int i = 0; i < 30; ++i) {
      world.pass_time(milliseconds{100});
      ASSERT_TRUE(world.settle());
    }
    EXPECT_FALSE(world.keeper().gated());
    EXPECT_EQ(world.keeper().page_epoch(), 0U);
    EXPECT_TRUE(world.all_done()) << "seed " << seed;
  }
}

TEST(GangModelFaults, AStoppedRankFreesTheOthersAndComesBack) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    World world({.ranks = 2}, seed);
    for (int i = 0; i < 30; ++i) (void)world.turn();
    world.rank(1).set_stopped(true);  // the others wait for it in the next collective
    for (int i = 0; i < 30; ++i) {
      world.pass_time(milliseconds{100});
      world.order(i % 3 == 0);
      ASSERT_TRUE(world.settle());
    }
    EXPECT_FALSE(world.keeper().gated());
    EXPECT_THAT(world.keeper().reason(), HasSubstr("rank 1 has shown no sign of life"));
    world.order(false);
    world.rank(1).set_stopped(false);
    ASSERT_TRUE(world.settle());
    EXPECT_TRUE(world.keeper().gated()) << world.keeper().reason();
    EXPECT_TRUE(world.all_done()) << "seed " << seed;
  }
}

TEST(GangModelFaults, ADeadCoordinatorFreesAll) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    World world({.ranks = 2}, seed);
    for (int i = 0; i < 30; ++i) (void)world.turn();
    world.let_the_coordinator_die();
    for (int i = 0; i < 30; ++i) {
      world.pass_time(milliseconds{100});
      ASSERT_TRUE(world.settle());
    }
    EXPECT_TRUE(world.all_done()) << "seed " << seed;
    EXPECT_EQ(world.rank(0).gate().stats().gang_epoch, 0U);
  }
}

/// Two streams of one process whose ops wait for each other: op k of each for op k - 1 of the
/// other. An op that passed its gate is in flight until what it waits for is done.
class TwoStreams {
 public:
  explicit TwoStreams(bool gate_for_each) : gates_(gate_for_each ? 2 : 1) {
    for (int i = 0; i < gates_; ++i) {
      made_.push_back(std::make_unique<Gate>(make_pacing_law("open"), nobody_, clock_));
    }
  }
  /// Takes a turn of a stream. @return whether it did anything.
  bool turn(std::size_t stream) {
    Stream& own = streams_[stream];
    const Stream& other = streams_[1 - stream];
    if (own.issued > own.completed) {
      if (own.issued - 1 > other.completed) return false;  // waits for the other's record
      ++own.completed;
      return true;
    }
    if (!gate(stream).try_enter_op(op_)) return false;
    gate(stream).leave_op(op_);
    ++own.issued;
    return true;
  }
  /// Opens one gate and closes the other, as soon as nothing is in flight behind that one; with one
  /// gate, closes and opens it.
  void toggle() {
    if (gates_ == 1) {
      made_[0]->pause();
      (void)turn(0);
      (void)turn(1);
      made_[0]->resume();
      return;
    }
    const Stream& open = streams_[open_];
    if (open.issued > open.completed) return;
    made_[open_]->pause();
    open_ = 1 - open_;
    made_[open_]->resume();
  }
  void begin_with_one_open() {
    if (gates_ == 2) made_[1]->pause();
  }
  [[nodiscard]] int completed() const { return streams_[0].completed + streams_[1].completed; }

 private:
  class Nobody final : public DeviceObserver {
   public:
    DeviceObservation observe(TimePoint now) const noexcept override {
      DeviceObservation seen;
      seen.now = now;
      return seen;
    }
  };
  struct Stream {
    int issued = 0;
    int completed = 0;
  };
  Gate& gate(std::size_t stream) { return *made_[gates_ == 1 ? 0 : stream]; }

  testing::FakeClock clock_;
  Nobody nobody_;
  OpDuration op_;
  int gates_;
  std::vector<std::unique_ptr<Gate>> made_;
  Stream streams_[2];
  std::size_t open_ = 0;
};

int completed_in_ten_thousand_toggles(TwoStreams& streams) {
  std::mt19937_64 random(5);
  streams.begin_with_one_open();
  for (int i = 0; i < 10'000; ++i) {
    for (std::uint64_t turns = random() % 4; turns > 0; --turns) (void)streams.turn(random() % 2);
    streams.toggle();
  }
  return streams.completed();
}

TEST(GangModelStreams, C9_OneGateForTwoStreamsThatWaitForEachOther) {
  TwoStreams streams(false);
  EXPECT_GT(completed_in_ten_thousand_toggles(streams), 1000);
}

TEST(GangModelStreams, C9_AGateForEachStreamDeadlocks) {
  TwoStreams streams(true);
  EXPECT_LT(completed_in_ten_thousand_toggles(streams), 100);
  const int before = streams.completed();
  (void)completed_in_ten_thousand_toggles(streams);
  EXPECT_EQ(streams.completed(), before) << "for ever";
}

}  // namespace
}  // namespace commensal::gang_model_test
