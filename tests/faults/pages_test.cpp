// SPDX-License-Identifier: Apache-2.0
// Shared pages scribbled over while both sides read them: random words, extreme words, ids without
// an end. Nobody crashes, what is believed stays within the documented bounds, and once the page is
// sound again all is as before. (Wrong magic, version and size: wire_handover_test.cpp.)
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/torch_ext/fake_clock.h"
#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "tests/torch_ext/runtime/page_file.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/peer_observer.h"

namespace commensal::pages_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kWords = wire::kPageSize / sizeof(wire::Word);
constexpr std::size_t kHeaderWords = sizeof(wire::PageHeader) / sizeof(wire::Word);

/// Writes random and extreme words over a page, its header excepted.
class Scribbler {
 public:
  explicit Scribbler(unsigned seed) : random_(seed) {}

  void scribble(void* page, std::size_t count) {
    auto* words = static_cast<wire::Word*>(page);
    for (std::size_t i = 0; i < count; ++i) {
      words[kHeaderWords + random_() % (kWords - kHeaderWords)].store(word());
    }
  }
  std::uint64_t word() {
    switch (random_() % 6) {
      case 0: return 0;
      case 1: return std::numeric_limits<std::uint64_t>::max();
      case 2: return static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      case 3: return std::uint64_t{1} << 63U;
      case 4: return random_() % 3;
      default: return std::uint64_t{random_()} << 32U | random_();
    }
  }

 private:
  std::mt19937 random_;
};

/// A device page and a peer's page, and a gate that looks at them.
class ScribbledPages : public ::testing::Test {
 protected:
  ScribbledPages() {
    SCOPED_TRACE(seed_);
    make_sound();
    observer_.set_device_page(wire::MappedPage(device_fd_.get(), wire::kPageSize, false));
    observer_.add_peer(10, wire::MappedPage(file_of(peer_).get(), wire::kPageSize, false));
  }
  /// The pages as a coordinator and a waiting guaranteed job would have them.
  void make_sound() {
    std::memset(device_map_.as<char>() + sizeof(wire::PageHeader), 0,
                wire::kPageSize - sizeof(wire::PageHeader));
    device_.header = {wire::kDevicePageMagic, wire::kPageVersion,
                      static_cast<std::uint32_t>(wire::kPageSize), 1, 0};
    std::strncpy(device_.entries[0].job_id, "own", wire::kIdSize - 1);
    device_.entries[0].share_min_ppm = 10'000;
    device_.entries[0].share_max_ppm = 1'000'000;
    device_.heartbeat_ns = to_page_time(SteadyClock::instance().now());
    device_.trickle_ppm = 30'000;
    device_.revision = ++revision_;
    wire::JobPage& page = peer_.page();
    std::memset(reinterpret_cast<char*>(&page) + sizeof(wire::PageHeader), 0,
                sizeof page - sizeof(wire::PageHeader));
    std::strncpy(page.job_id, "other", wire::kIdSize - 1);
    page.heartbeat_ns = to_page_time(SteadyClock::instance().now());
  }

  const unsigned seed_ = std::random_device{}();
  wire::UniqueFd device_fd_ = wire::make_page_memfd("scribbled-device");
  wire::MappedPage device_map_{device_fd_.get(), wire::kPageSize, true};
  wire::DevicePage& device_ = *device_map_.as<wire::DevicePage>();
  OwnPage peer_{JobId{"other"}, JobClass::kGuaranteed, 0};
  // No number that a scribbler writes: an entry that was found is believed until it changes.
  std::uint64_t revision_ = 1'000'000;
  PeerObserver observer_{JobId{"own"}};
};

TEST_F(ScribbledPages, WhatIsBelievedStaysWithinItsBounds) {
  Scribbler scribbler{seed_};
  const TimePoint now = SteadyClock::instance().now();
  for (int round = 0; round < 20'000; ++round) {
    scribbler.scribble(device_map_.as<void>(), 40);
    scribbler.scribble(&peer_.page(), 20);
    if (round % 2 == 0) {  // the own entry is found, and full of nonsense
      std::memcpy(device_.entries[round % 64].job_id, "own", 4);
      device_.revision.fetch_add(1);
    }
    const DeviceObservation seen = observer_.observe(now);
    ASSERT_GE(seen.trickle, 0.0);
    ASSERT_LE(seen.trickle, 1.0);
    ASSERT_GE(seen.share_max, 0.0);
    ASSERT_LE(seen.share_max, 1.0);
    ASSERT_EQ(seen.now, now);
  }
}

TEST_F(ScribbledPages, SignsOfLifeFromTheFutureAreNone) {
  const TimePoint now = SteadyClock::instance().now();
  for (const std::uint64_t beat :
       {std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(), std::uint64_t{1} << 63U,
        (std::uint64_t{1} << 63U) - 1, to_page_time(now + std::chrono::hours{1})}) {
    device_.heartbeat_ns = beat;
    peer_.page().heartbeat_ns = beat;
    std::strncpy(device_.entries[3].job_id, "other", wire::kIdSize - 1);
    device_.entries[3].job_class = static_cast<std::uint64_t>(JobClass::kGuaranteed);
    device_.entries[3].lease_until_ns = beat;
    const DeviceObservation seen = observer_.observe(now);
    EXPECT_FALSE(seen.coordinator_alive) << beat;
    EXPECT_FALSE(seen.guaranteed_present) << beat << ": or this job would never run again";
  }
}

TEST_F(ScribbledPages, Law4_AGateThatWasToldNonsenseOpensWhenThePageIsSound) {
  for (const char* law : {"gap", "duty_cycle", "antman", "rate_aimd", "token_window", "open"}) {
    SCOPED_TRACE(law);
    Gate gate{make_pacing_law(law), observer_};
    static OpDuration op;
    std::atomic<std::uint64_t> passed{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> workers;
    for (int i = 0; i < 2; ++i) {
      workers.emplace_back([&] {
        while (!stop) {
          if (!gate.try_enter_op(op)) gate.wait_op(op);
          ++passed;
          gate.leave_op(op);
        }
      });
    }
    Scribbler scribbler{seed_};
    for (int round = 0; round < 3000; ++round) {
      scribbler.scribble(device_map_.as<void>(), 10);
      scribbler.scribble(&peer_.page(), 10);
      if (round % 3 == 0) std::memcpy(device_.entries[round % 64].job_id, "own", 4);
      gate.refresh();
      (void)gate.stats();
    }
    make_sound();
    const std::uint64_t before = passed;
    // The page's heartbeat is as old as it is: both a live and a silent coordinator let it run.
    EXPECT_TRUE(testing::eventually([&] {
      gate.refresh();
      return passed > before + 100;
    })) << gate.stats().reason;
    stop = true;
    make_sound();
    gate.set_law(make_pacing_law("open"));
    for (std::thread& worker : workers) worker.join();
    EXPECT_EQ(gate.ops_in_flight(), 0U);
  }
}

}  // namespace
}  // namespace commensal::pages_test
