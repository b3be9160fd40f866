// SPDX-License-Identifier: Apache-2.0
// Lets a job's memory come back to a GPU as other large copies go: in gaps, by its bytes.
#pragma once

#include "allocator/return_pace.h"
#include "torch_ext/gate/gate.h"

namespace commensal {

/// Memory comes back while the gate would let an op in that takes as long as the copy; how long
/// that is, is known from the copies before, at first by a rate that is slow for a GPU. As much
/// comes at once as fits into what is left of the gap.
///
/// A job whose neighbour leaves no gaps is not kept waiting for ever: after each `kPatience` in
/// which nothing might come, a piece does that takes `kOverdueShare` of the time that it waited.
class ReturnMeter final : public ReturnPace {
 public:
  static constexpr Duration kPatience = std::chrono::seconds{1};
  static constexpr double kOverdueShare = 1.0 / 128;  ///< within the objective of 1 %
  /// What is saved up in a job that asks rarely.
  static constexpr Duration kLongestSaved = std::chrono::seconds{4};
  static constexpr double kFirstBytesPerNanosecond = 8.0;

  /// @param gate  not owned; must live as long.
  ReturnMeter(Gate& gate, const Clock& clock) : gate_(gate), clock_(clock) {}

  [[nodiscard]] ReturnLeave leave(Bytes least, Bytes wanted) noexcept override;
  void returned(Bytes copied, Duration took) noexcept override;

 private:
  [[nodiscard]] Bytes bytes_in(Duration time) const noexcept;

  Gate& gate_;
  const Clock& clock_;
  double rate_ = kFirstBytesPerNanosecond;
  TimePoint waits_since_;  // zero: nothing waits
  TimePoint asked_;        // last
};

}  // namespace commensal
