// SPDX-License-Identifier: Apache-2.0
// Leases: what one call does, and Law 3 under everything that can happen to messages.
#include "coordinator/node/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

namespace commensal::node::ledger_test {
namespace {

using namespace commensal::literals;

LeaseKey key(const char* job) { return {JobId{job}, 1}; }

class LedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ledger_.open(key("a"), 0_B, 0_B, 0, 0_B);
    ledger_.open(key("b"), 0_B, 0_B, 0, 0_B);
  }
  Ledger ledger_{100_MiB};
};

TEST_F(LedgerTest, GrowsIntoWhatIsFree) {
  EXPECT_EQ(ledger_.reachable(key("a"), 70_MiB), 70_MiB);
  ledger_.tell(key("a"), 70_MiB, 1);
  EXPECT_EQ(ledger_.reachable(key("b"), 70_MiB), 30_MiB);
  EXPECT_EQ(ledger_.free(), 30_MiB);
  EXPECT_THROW(ledger_.tell(key("b"), 31_MiB, 1), std::logic_error);
}

TEST_F(LedgerTest, CountsAShrinkWhenItIsConfirmed) {
  ledger_.tell(key("a"), 100_MiB, 1);
  ledger_.tell(key("a"), 40_MiB, 2);
  EXPECT_TRUE(ledger_.shrinking(key("a")));
  EXPECT_EQ(ledger_.reachable(key("b"), 60_MiB), 0_MiB);
  EXPECT_TRUE(ledger_.confirm(key("a"), 2, 40_MiB));
  EXPECT_EQ(ledger_.reachable(key("b"), 60_MiB), 60_MiB);
}

TEST_F(LedgerTest, WhatIsDeferredStaysCharged) {
  ledger_.tell(key("a"), 100_MiB, 1);
  ledger_.tell(key("a"), 40_MiB, 2);
  EXPECT_TRUE(ledger_.confirm(key("a"), 2, 55_MiB));
  EXPECT_EQ(ledger_.charged(key("a")), 55_MiB);
  EXPECT_TRUE(ledger_.confirm(key("a"), 2, 41_MiB));
  EXPECT_TRUE(ledger_.confirm(key("a"), 2, 70_MiB)) << "a late copy of an older report";
  EXPECT_EQ(ledger_.charged(key("a")), 41_MiB);
}

TEST_F(LedgerTest, StaleAndUnknownAnswersChangeNothing) {
  ledger_.tell(key("a"), 100_MiB, 1);
  ledger_.tell(key("a"), 40_MiB, 2);
  ledger_.tell(key("a"), 80_MiB, 3);
  EXPECT_TRUE(ledger_.confirm(key("a"), 2, 40_MiB));
  EXPECT_EQ(ledger_.charged(key("a")), 80_MiB) << "it may act on revision 3 already";
  EXPECT_FALSE(ledger_.confirm(key("a"), 1, 0_MiB));
  EXPECT_FALSE(ledger_.confirm(key("a"), 9, 0_MiB));
  EXPECT_FALSE(ledger_.confirm(key("nobody"), 1, 0_MiB));
  EXPECT_EQ(ledger_.charged(key("a")), 80_MiB);
  EXPECT_THROW(ledger_.tell(key("a"), 1_MiB, 3), std::logic_error);
}

TEST_F(LedgerTest, KeepsRoomForFloors) {
  ledger_.set_floor(key("a"), 60_MiB);
  EXPECT_EQ(ledger_.reachable(key("b"), 100_MiB), 40_MiB);
  ledger_.tell(key("b"), 40_MiB, 1);
  EXPECT_EQ(ledger_.reachable(key("a"), 100_MiB), 60_MiB);
}

TEST_F(LedgerTest, ADeathReturnsTheLease) {
  ledger_.tell(key("a"), 100_MiB, 1);
  ledger_.close(key("a"));
  ledger_.close(key("a"));
  EXPECT_EQ(ledger_.free(), 100_MiB);
  EXPECT_THROW((void)ledger_.limit(key("a")), std::logic_error);
}

TEST_F(LedgerTest, NothingGrowsBesideMoreThanThereIs) {
  ledger_.open(key("old"), 120_MiB, 130_MiB, 7, 0_B);
  EXPECT_EQ(ledger_.reachable(key("a"), 10_MiB), 0_MiB);
  ledger_.tell(key("old"), 50_MiB, 8);
  EXPECT_TRUE(ledger_.confirm(key("old"), 8, 50_MiB));
  EXPECT_EQ(ledger_.reachable(key("a"), 70_MiB), 50_MiB);
}

TEST_F(LedgerTest, UnmanagedAndOutsideMemoryIsNotGrantedButFloorsAre) {
  ledger_.set_unmanaged(JobId{"b"}, 30_MiB);
  ledger_.set_outside(20_MiB);
  EXPECT_EQ(ledger_.free(), 50_MiB);
  EXPECT_EQ(ledger_.reachable(key("a"), 100_MiB), 50_MiB);
  ledger_.set_floor(key("a"), 70_MiB);
  EXPECT_EQ(ledger_.reachable(key("a"), 100_MiB), 70_MiB) << "it was promised";
  EXPECT_EQ(ledger_.reachable(key("b"), 100_MiB), 0_MiB);
  ledger_.tell(key("a"), 70_MiB, 1);
  EXPECT_EQ(ledger_.free(), 0_MiB);
  EXPECT_EQ(ledger_.total_charged(), 70_MiB) << "shown apart";
  EXPECT_EQ(ledger_.total_unmanaged(), 30_MiB);
  ledger_.set_unmanaged(JobId{"b"}, Bytes{UINT64_MAX});
  ledger_.set_unmanaged(JobId{"c"}, Bytes{UINT64_MAX});
  EXPECT_EQ(ledger_.reachable(key("b"), 100_MiB), 0_MiB) << "a sum of nonsense is not small";
  for (const char* job : {"b", "c"}) ledger_.set_unmanaged(JobId{job}, 0_B);
  ledger_.set_outside(0_B);
  EXPECT_EQ(ledger_.reachable(key("b"), 100_MiB), 30_MiB);
}

TEST_F(LedgerTest, AFloorAloneIsReachedBeyondTheCapacityWhereMemoryIsThere) {
  ledger_.tell(key("b"), 80_MiB, 1);
  ASSERT_TRUE(ledger_.confirm(key("b"), 1, 80_MiB));
  ledger_.set_floor(key("a"), 60_MiB);
  EXPECT_EQ(ledger_.reachable(key("a"), 90_MiB), 20_MiB);
  ledger_.set_physical(130_MiB);
  EXPECT_EQ(ledger_.reachable(key("a"), 90_MiB), 50_MiB) << "all that is physically there";
  ledger_.set_physical(500_MiB);
  EXPECT_EQ(ledger_.reachable(key("a"), 90_MiB), 60_MiB) << "no more than the floor";
  EXPECT_EQ(ledger_.reachable(key("b"), 90_MiB), 80_MiB) << "it has no floor";
  ledger_.tell(key("a"), 60_MiB, 1);
  ledger_.set_physical(0_B);
  EXPECT_EQ(ledger_.beyond_budget(key("a")), 40_MiB);
  EXPECT_EQ(ledger_.beyond_budget(key("b")), 0_B);
  EXPECT_EQ(ledger_.reachable(key("b"), 81_MiB), 80_MiB) << "nobody else grows meanwhile";
  ledger_.tell(key("a"), 60_MiB, 2);
  EXPECT_EQ(ledger_.beyond_budget(key("a")), 40_MiB) << "told again";
  ledger_.tell(key("b"), 50_MiB, 2);
  EXPECT_EQ(ledger_.beyond_budget(key("a")), 40_MiB) << "not given back yet";
  ASSERT_TRUE(ledger_.confirm(key("b"), 2, 50_MiB));
  EXPECT_EQ(ledger_.beyond_budget(key("a")), 10_MiB);
  ledger_.close(key("b"));
  EXPECT_EQ(ledger_.beyond_budget(key("a")), 0_B);
}

TEST_F(LedgerTest, AnOlderLargerLimitMayStillBeActedOn) {
  ledger_.tell(key("a"), 100_MiB, 1);
  EXPECT_FALSE(ledger_.outdated(key("a")));
  ledger_.tell(key("a"), 40_MiB, 2);
  EXPECT_TRUE(ledger_.outdated(key("a")));
  EXPECT_EQ(ledger_.revision(key("a")), 2U);
  ASSERT_TRUE(ledger_.confirm(key("a"), 2, 70_MiB));
  EXPECT_FALSE(ledger_.outdated(key("a"))) << "what it keeps is known";
  EXPECT_TRUE(ledger_.shrinking(key("a")));
}

// --- Law 3 --------------------------------------------------------------------------------------

/// A process that obeys the protocol: it holds anything up to its limit, gives back late, and may
/// keep more than a lowered limit for a while, but never takes more then.
struct ModelJob {
  Revision revision = 0;
  Bytes limit;
  Bytes held;
};

struct Tell {
  LeaseKey to;
  Revision revision;
  Bytes limit;
};
struct Confirm {
  LeaseKey from;
  Revision revision;
  Bytes held;
};

/// Random joins, deaths, wishes and deliveries over channels that lose, double and reorder.
class World {
 public:
  static constexpr Bytes kCapacity{1000};

  World(unsigned seed, ConfirmShrinks confirm, Bytes physical = kCapacity)
      : ledger_(kCapacity, confirm), random_(seed), physical_(physical) {
    ledger_.set_physical(physical);
  }

  /// Applies one random operation. @return what is wrong afterwards; nothing if the law holds.
  std::optional<std::string> step() {
    switch (random_() % 8) {
      case 0: join(); break;
      case 1: leave(); break;
      case 2:
      case 3: wish(); break;
      case 4: deliver_tell(); break;
      case 5: deliver_confirm(); break;
      case 6: use_memory(); break;
      default: report(); break;
    }
    return check();
  }

 private:
  Bytes amount(std::uint64_t most) { return Bytes{random_() % (most + 1)}; }

  std::optional<LeaseKey> any() {
    if (jobs_.empty()) return std::nullopt;
    auto it = jobs_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_() % jobs_.size()));
    return it->first;
  }

  void join() {
    if (jobs_.size() >= 6) return;
    const LeaseKey k{JobId{"j" + std::to_string(next_++)}, 1};
    Bytes floors;
    for (const auto& [other, floor] : floors_) floors += floor;
    const Bytes floor = random_() % 2 == 0 ? amount((kCapacity - floors).count() / 2) : Bytes{};
    ledger_.open(k, Bytes{}, Bytes{}, 0, floor);
    jobs_[k] = ModelJob{};
    floors_[k] = floor;
    reached_[k] = floor.is_zero();
  }

  void leave() {
    const auto k = any();
    if (!k || random_() % 12 != 0) return;
    ledger_.close(*k);
    jobs_.erase(*k);
    floors_.erase(*k);
    reached_.erase(*k);
    revisions_.erase(*k);
    std::erase_if(tells_, [&](const Tell& t) { return t.to == *k; });
  }

  void wish() {
    const auto k = any();
    if (!k) return;
    const Bytes target = std::max(floors_[*k], amount(kCapacity.count()));
    const Bytes limit = ledger_.reachable(*k, target);
    if (limit > ledger_.charged(*k)) {  // a growth: what floors still lack is left for them
      Bytes others;
      for (const auto& [other, floor] : floors_) {
        if (other != *k) others += std::max(floor, ledger_.charged(other));
      }
      const Bytes most = limit <= floors_[*k] ? physical_ : kCapacity;
      if (limit + others > most) problem_ = "a growth took what a floor lacks";
    }
    const Revision revision = ++revisions_[*k];
    ledger_.tell(*k, limit, revision);
    tells_.push_back({*k, revision, limit});
    if (limit >= floors_[*k]) reached_[*k] = true;
  }

  void deliver_tell() {
    if (tells_.empty()) return;
    const std::size_t at = random_() % tells_.size();
    const Tell tell = tells_[at];
    if (random_() % 4 != 0) tells_.erase(tells_.begin() + static_cast<std::ptrdiff_t>(at));
    if (random_() % 5 == 0) return;  // lost (or: comes again later)
    ModelJob& job = jobs_.at(tell.to);
    if (tell.revision <= job.revision) return;  // stale
    job.revision = tell.revision;
    job.limit = tell.limit;
    if (job.held > job.limit && random_() % 2 == 0) job.held = job.limit;
    confirms_.push_back({tell.to, job.revision, job.held});
  }

  void deliver_confirm() {
    if (confirms_.empty()) return;
    const std::size_t at = random_() % confirms_.size();
    const Confirm confirm = confirms_[at];
    if (random_() % 4 != 0) confirms_.erase(confirms_.begin() + static_cast<std::ptrdiff_t>(at));
    if (random_() % 5 == 0) return;
    (void)ledger_.confirm(confirm.from, confirm.revision, confirm.held);
  }

  void use_memory() {
    const auto k = any();
    if (!k) return;
    ModelJob& job = jobs_.at(*k);
    const bool fill = random_() % 4 != 0;
    if (job.held > job.limit) {
      job.held = fill ? job.held : std::max(job.limit, amount(job.held.count()));
    } else {
      job.held = fill ? job.limit : amount(job.limit.count());
    }
  }

  void report() {
    const auto k = any();
    if (k && jobs_.at(*k).revision != 0) {
      confirms_.push_back({*k, jobs_.at(*k).revision, jobs_.at(*k).held});
    }
  }

  std::optional<std::string> check() {
    if (problem_) return problem_;
    if (ledger_.total_charged() > physical_) {
      return "granted " + to_string(ledger_.total_charged());
    }
    Bytes beyond;
    for (const auto& [k, job] : jobs_) {
      if (ledger_.beyond_budget(k) > floors_[k]) return "beyond the budget for more than a floor";
      beyond += ledger_.beyond_budget(k);
    }
    if (ledger_.total_charged() > kCapacity + beyond) return "beyond the budget, and not told";
    Bytes held;
    for (const auto& [k, job] : jobs_) {
      held += job.held;
      if (reached_[k] && ledger_.limit(k) < floors_[k]) return "below its floor: " + k.job.str();
    }
    if (held > physical_) return "the device is overfull: " + to_string(held);
    return std::nullopt;
  }

  Ledger ledger_;
  std::mt19937 random_;
  Bytes physical_;
  std::map<LeaseKey, ModelJob> jobs_;
  std::map<LeaseKey, Bytes> floors_;
  std::map<LeaseKey, bool> reached_;
  std::map<LeaseKey, Revision> revisions_;
  std::vector<Tell> tells_;
  std::vector<Confirm> confirms_;
  std::optional<std::string> problem_;
  int next_ = 0;
};

TEST(Law3Ledger, Law3_NeverGrantsMoreThanTheDeviceHas) {
  const unsigned seed = std::random_device{}();
  for (unsigned run = 0; run < 60; ++run) {
    World world{seed + run, ConfirmShrinks::kYes};
    for (int i = 0; i < 1000; ++i) {
      const auto wrong = world.step();
      ASSERT_FALSE(wrong) << *wrong << " at step " << i << " with seed " << seed + run;
    }
  }
}

TEST(Law3Ledger, Law3_PassesTheBudgetForFloorsAloneAndSaysSo) {
  const unsigned seed = std::random_device{}();
  for (unsigned run = 0; run < 60; ++run) {
    World world{seed + run, ConfirmShrinks::kYes, World::kCapacity + Bytes{run * 10}};
    for (int i = 0; i < 1000; ++i) {
      const auto wrong = world.step();
      ASSERT_FALSE(wrong) << *wrong << " at step " << i << " with seed " << seed + run;
    }
  }
}

TEST(Law3Ledger, Law3_FailsWithoutTheConfirmStep) {
  int broken = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    World world{seed, ConfirmShrinks::kNo};
    for (int i = 0; i < 5000; ++i) {
      if (!world.step()) continue;
      ++broken;
      break;
    }
  }
  EXPECT_EQ(broken, 20) << "the device would be overfull if shrinks counted before the answer";
}

}  // namespace
}  // namespace commensal::node::ledger_test
