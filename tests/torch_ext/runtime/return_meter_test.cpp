// SPDX-License-Identifier: Apache-2.0
// When memory may come back beside a guaranteed job, how much of it, and that it does in the end.
#include "torch_ext/runtime/return_meter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "tests/torch_ext/fake_clock.h"
#include "tests/torch_ext/gate/fake_device.h"
#include "tests/torch_ext/gate/fake_streams.h"

namespace commensal::return_meter_test {
namespace {

using namespace std::chrono_literals;
using testing::FakeClock;
using testing::FakeDevice;
using testing::FakeStreams;

constexpr Bytes kPiece = 2_MiB;
constexpr Bytes kAll = 1_GiB;

class ReturnMeterTest : public ::testing::Test {
 protected:
  void use(const std::string& law) {
    gate_->set_law(make_pacing_law(law));
    gate_->refresh();
  }
  /// The link's speed in bytes a nanosecond, as copies show it.
  void copies_at(double rate) {
    for (int i = 0; i < 40; ++i) {
      meter_.returned(64_MiB, Duration{static_cast<Duration::rep>((64_MiB).count() / rate)});
    }
  }
  void gap(Duration length) {
    device_.gap(clock_.now() - 1ms, clock_.now() + length);
    gate_->refresh();
  }
  void busy() {
    device_.burst(clock_.now());
    gate_->refresh();
  }

  FakeClock clock_;
  FakeDevice device_;
  FakeStreams streams_{clock_};
  std::unique_ptr<Gate> gate_ = std::make_unique<Gate>(
      make_pacing_law("gap"), device_, clock_,
      [this](Duration time, const Doorbell&) { clock_.advance(time); },
      DeviceTime{.threads = nullptr, .work = &streams_});
  ReturnMeter meter_{*gate_, clock_};
};

TEST_F(ReturnMeterTest, AloneEverythingComesAtOnce) {
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, kAll);
}

TEST_F(ReturnMeterTest, C15_BesideABusyGuaranteedJobNothingComes) {
  busy();
  const ReturnLeave leave = meter_.leave(kPiece, kAll);
  EXPECT_EQ(leave.most, 0_B);
  EXPECT_STREQ(leave.reason, "guaranteed job busy");
}

TEST_F(ReturnMeterTest, C15_WithALawThatKnowsNoGapsItCollides) {
  busy();
  use("open");
  gate_->expect_hold(true);  // ops pass the gate all the same
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, kAll);
}

TEST_F(ReturnMeterTest, ATrickleIsForOpsUnlessAllMayRunThere) {
  busy();
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.5; });
  clock_.advance(10ms);
  ASSERT_TRUE(gate_->leave(1us).fits == Duration::zero());
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, 0_B);
  device_.set([](DeviceObservation& seen) { seen.trickle = 1.0; });
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, kAll) << "found to do no harm";
}

TEST_F(ReturnMeterTest, AGapTakesWhatFitsByTheBytesThatTheLinkCopies) {
  gap(10ms);
  // 8 bytes a nanosecond before the first copy: 80 MB in 10 ms, less what a decision is old.
  EXPECT_NEAR(static_cast<double>(meter_.leave(kPiece, kAll).most.count()), 80e6, 1e6);
  copies_at(50.0);
  EXPECT_NEAR(static_cast<double>(meter_.leave(kPiece, kAll).most.count()), 500e6, 5e6);
  copies_at(0.1);  // a piece takes 21 ms
  const ReturnLeave leave = meter_.leave(kPiece, kAll);
  EXPECT_EQ(leave.most, 0_B);
  EXPECT_STREQ(leave.reason, "op does not fit in what is left of the gap");
}

TEST_F(ReturnMeterTest, WorkInQueuesTakesRoomAndItsBoundNone) {
  device_.set([](DeviceObservation& seen) { seen.gap_rules.in_flight = 500us; });
  gap(10ms);
  OpDuration op;
  for (int i = 0; i < 8; ++i) op.record(4ms);
  ASSERT_TRUE(gate_->try_enter_op(op));
  streams_.issue(4ms);
  gate_->leave_op(op);
  EXPECT_FALSE(gate_->try_enter_op(op)) << "its queue is full";
  EXPECT_NEAR(static_cast<double>(meter_.leave(kPiece, kAll).most.count()), 48e6, 1e6)
      << "the fence waits for what is queued";
  EXPECT_EQ(meter_.leave(64_MiB, kAll).most, 0_B) << "4 ms and 8 ms are more than 10 ms";
}

TEST_F(ReturnMeterTest, WhoFindsNoGapGetsAPieceASecondWithinTheObjective) {
  busy();
  Bytes came;
  int pieces = 0;
  for (Duration time{}; time < 100s; time += 50ms) {
    const ReturnLeave leave = meter_.leave(kPiece, kAll);
    came += leave.most;
    pieces += leave.most.is_zero() ? 0 : 1;
    clock_.advance(50ms);
  }
  EXPECT_NEAR(pieces, 95, 6);
  const double at_the_rate = 100e9 * ReturnMeter::kFirstBytesPerNanosecond;
  EXPECT_LE(static_cast<double>(came.count()) / at_the_rate, 0.01) << "of the time, in copies";
  EXPECT_GE(static_cast<double>(came.count()) / at_the_rate, 0.006);
}

TEST_F(ReturnMeterTest, AJobThatAsksRarelySavesUpForSeconds) {
  busy();
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, 0_B);
  clock_.advance(3s);
  const double three = static_cast<double>(meter_.leave(kPiece, kAll).most.count());
  EXPECT_NEAR(three, 3e9 / 128 * 8, 1e6);
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, 0_B) << "the wait begins anew";
  clock_.advance(50s);
  EXPECT_NEAR(static_cast<double>(meter_.leave(kPiece, kAll).most.count()), 4e9 / 128 * 8, 1e6);
  clock_.advance(10min);
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, 0_B) << "nothing waited for so long";
}

TEST_F(ReturnMeterTest, AGapEndsTheWait) {
  busy();
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, 0_B);
  clock_.advance(900ms);
  gap(10ms);
  EXPECT_GT(meter_.leave(kPiece, kAll).most, 0_B);
  busy();
  clock_.advance(200ms);
  EXPECT_EQ(meter_.leave(kPiece, kAll).most, 0_B);
}

TEST_F(ReturnMeterTest, ACopyOfNothingTeachesNothing) {
  meter_.returned(0_B, 1ms);
  meter_.returned(64_MiB, Duration::zero());
  gap(10ms);
  EXPECT_NEAR(static_cast<double>(meter_.leave(kPiece, kAll).most.count()), 80e6, 1e6);
}

TEST_F(ReturnMeterTest, AskingEntersAGapOnceAndAClosedGateSavesNothingUp) {
  gap(10ms);
  const std::uint64_t before = gate_->stats().hand_overs;
  EXPECT_GT(meter_.leave(kPiece, kAll).most, 0_B);
  EXPECT_EQ(gate_->stats().hand_overs, before + 1) << "what comes costs a hand-over as ops do";
  EXPECT_GT(meter_.leave(kPiece, kAll).most, 0_B);
  EXPECT_EQ(gate_->stats().hand_overs, before + 1);
  EXPECT_EQ(gate_->stats().ops_seen, 0U);
}

}  // namespace
}  // namespace commensal::return_meter_test
