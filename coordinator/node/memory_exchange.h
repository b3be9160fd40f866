// SPDX-License-Identifier: Apache-2.0
// What a job's speed gains or loses with memory, and who should have how much of what is too
// little for all.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "coordinator/policies/view.h"

namespace commensal::node {

/// A job that competes for memory with others of its class.
struct Contender {
  const policies::JobView* job = nullptr;
  Bytes least;         ///< its minimum
  Bytes need;          ///< what it would use; at least `least`
  Bytes target;        ///< result
  std::string reason;  ///< result, where there is something to say
};

/// Estimates the part of its best speed that a job with `limit` gains by `step` more. Measured
/// speeds count; beyond them their slope, halved (more memory helps less and less); without one
/// the hope that it helps twice as much as its size says, so that it is tried.
[[nodiscard]] double estimated_gain(const policies::JobView& job, Bytes limit, Bytes step,
                                    Bytes need);
/// Estimates what it loses by `step` less: measured, or the slope and a half, or its size.
[[nodiscard]] double estimated_loss(const policies::JobView& job, Bytes limit, Bytes step,
                                    Bytes need);

/// Divides `amount`, which is less than the contenders need, by what their speed makes of it,
/// beginning with what they have: too much is taken from who loses least, then from the largest;
/// what is over goes to who gains most, then to the smallest. If nothing is over and
/// `may_exchange`, one `step` changes hands where that gains: 3 % or more if both sides were
/// measured, 1 % or more as a trial otherwise. So memory that gains nothing stays where it is.
/// @return what was given out: `amount`, unless their minima or needs forbid it.
Bytes divide_by_gain(std::vector<Contender>& contenders, Bytes amount, Bytes step,
                     bool may_exchange);

}  // namespace commensal::node
