// SPDX-License-Identifier: Apache-2.0
// Which ops are long, and when one that finds no long gap goes all the same.
#include "torch_ext/gate/long_ops.h"

#include <algorithm>

#include "torch_ext/gate/law_parts.h"

namespace commensal {
namespace {

constexpr int kMostOfOneGap = 4;
constexpr int kDecay = 8;
/// A held op asks every ten milliseconds or so: after this long without a question it is another
/// one.
constexpr Duration kNotAskedFor = std::chrono::seconds{1};

}  // namespace

void LongOps::note_room(TimePoint gap, Duration room) noexcept {
  if (gap != gap_) {
    if (room_ > Duration::zero()) {
      usual_ = usual_ == Duration::zero()
                   ? room_
                   : usual_ + (std::min(room_, usual_ * kMostOfOneGap) - usual_) / kDecay;
    }
    gap_ = gap;
    room_ = Duration::zero();
  }
  room_ = std::max(room_, room);
}

PacingDecision LongOps::hold(const PacingInput& input, Duration needs, Duration recheck) noexcept {
  constexpr const char* kHeld = "op longer than the usual gap: held for a long one";
  const double share = std::max(input.share_min, input.device.trickle);
  if (share <= 0.0 || share >= 1.0) return beside(input, recheck, kHeld);
  const TimePoint now = input.device.now;
  if (held_since_ == TimePoint{} || now - asked_ > kNotAskedFor) held_since_ = now;
  asked_ = now;
  const bool saved = input.trickle_debt <= -needs;
  const auto enough =
      Duration{static_cast<Duration::rep>(2.0 * static_cast<double>(needs.count()) / share)};
  if (saved || (now - held_since_ >= enough && input.trickle_debt <= Duration::zero())) {
    held_since_ = TimePoint{};
    PacingDecision decision = one_op("no long gap came: the op goes by the trickle");
    decision.trickle = true;
    decision.prepaid = saved ? needs : Duration::zero();
    return decision;
  }
  PacingDecision decision =
      closed(std::min(recheck, time_to_pay(input.trickle_debt + needs, share)), kHeld);
  decision.saves = needs;
  return decision;
}

}  // namespace commensal
