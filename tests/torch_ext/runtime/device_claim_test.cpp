// SPDX-License-Identifier: Apache-2.0
// A process that stands still may go on at any moment: whatever it takes is counted.
#include "torch_ext/runtime/device_claim.h"

#include <gtest/gtest.h>

#include <string>

#include "coordinator/node/ledger.h"

namespace commensal::device_claim_test {
namespace {

using namespace commensal::literals;

constexpr Bytes kDevice = 1000_MiB;
constexpr Bytes kNewLimit = 300_MiB;

/// A coordinator that takes the limit of one process back and grants to another what is left.
class Recall {
 public:
  Recall() {
    ledger_.open(opportunistic_, {}, {}, 0, {});
    ledger_.open(guaranteed_, {}, {}, 0, {});
    ledger_.tell(opportunistic_, kDevice, 1);
    (void)ledger_.confirm(opportunistic_, 1, {});
    ledger_.set_floor(guaranteed_, 900_MiB);
  }

  /// Writes the order, then reads what is shown. The process hears of it later, if ever.
  void run(wire::JobPage& page) {
    ledger_.tell(opportunistic_, kNewLimit, 2);
    order_ = 2;
    EXPECT_TRUE(ledger_.confirm(opportunistic_, 2, Bytes{page.memory_taken.load()}));
    granted_ = ledger_.reachable(guaranteed_, 900_MiB);
    ledger_.tell(guaranteed_, granted_, 1);
  }
  [[nodiscard]] std::uint64_t order() const noexcept { return order_; }
  [[nodiscard]] Bytes granted() const noexcept { return granted_; }

 private:
  node::LeaseKey opportunistic_{JobId{"o"}, 1};
  node::LeaseKey guaranteed_{JobId{"g"}, 2};
  node::Ledger ledger_{kDevice};
  std::uint64_t order_ = 0;
  Bytes granted_;
};

/// Where the process is stopped while it takes 200 MiB beside 500 that it has.
enum class At : std::uint8_t { kBefore, kShown, kLooked, kTaken };

constexpr const char* name_of(At at) noexcept {
  switch (at) {
    case At::kBefore: return "Before";
    case At::kShown: return "Shown";
    case At::kLooked: return "Looked";
    case At::kTaken: return "Taken";
  }
  return "";
}

class DeviceClaimAt : public ::testing::TestWithParam<At> {
 protected:
  void stop_at(At at) {
    if (armed_ && at == GetParam()) coordinator_.run(page_);
  }
  wire::JobPage page_{};
  Recall coordinator_;
  bool armed_ = false;
};

TEST_P(DeviceClaimAt, Law3_TheSumNeverPassesTheDevice) {
  DeviceClaim claims(page_, [this] {
    stop_at(At::kShown);
    const std::uint64_t seen = coordinator_.order();
    stop_at(At::kLooked);
    return seen;
  });
  claims.granted(kDevice, 1);
  ASSERT_EQ(claims.claim(500_MiB), nullptr);
  armed_ = true;
  stop_at(At::kBefore);
  const bool taken = claims.claim(200_MiB) == nullptr;
  stop_at(At::kTaken);
  EXPECT_LE((taken ? 700_MiB : 500_MiB) + coordinator_.granted(), kDevice);
  EXPECT_GE(coordinator_.granted(), 300_MiB) << "what it does not hold is granted at once";
  EXPECT_EQ(page_.memory_taken.load(), (taken ? 700_MiB : 500_MiB).count());
}

/// The same process if it looked first and showed then.
TEST_P(DeviceClaimAt, Law3_BreaksWhereItLooksBeforeItShows) {
  page_.memory_taken = (500_MiB).count();
  armed_ = true;
  stop_at(At::kBefore);
  const bool may = coordinator_.order() == 0;
  stop_at(At::kLooked);
  if (may) page_.memory_taken += (200_MiB).count();
  stop_at(At::kTaken);
  const Bytes sum = Bytes{page_.memory_taken.load()} + coordinator_.granted();
  EXPECT_EQ(sum > kDevice, GetParam() == At::kLooked) << to_string(sum);
}

INSTANTIATE_TEST_SUITE_P(Steps, DeviceClaimAt,
                         ::testing::Values(At::kBefore, At::kShown, At::kLooked, At::kTaken),
                         [](const auto& step) { return std::string(name_of(step.param)); });

TEST(DeviceClaim, AThreadThatReadAnOlderLimitTakesNoMoreThanTheNewOneAllows) {
  wire::JobPage page{};
  std::uint64_t order = 0;
  DeviceClaim claims(page, [&] { return order; });
  claims.granted(kDevice, 1);
  ASSERT_EQ(claims.claim(500_MiB), nullptr);
  order = 2;
  EXPECT_NE(claims.claim(1_MiB), nullptr) << "the new limit has not come";
  claims.granted(600_MiB, 2);
  EXPECT_NE(claims.claim(200_MiB), nullptr) << "it fitted under the old limit";
  EXPECT_EQ(claims.claim(100_MiB), nullptr);
  claims.give_back(600_MiB);
  EXPECT_EQ(page.memory_taken.load(), 0U);
}

TEST(DeviceClaim, AProcessWithoutAGrantIsNotHeldBack) {
  wire::JobPage page{};
  DeviceClaim claims(page, [] { return std::uint64_t{7}; });
  EXPECT_EQ(claims.claim(500_MiB), nullptr);
}

}  // namespace
}  // namespace commensal::device_claim_test
