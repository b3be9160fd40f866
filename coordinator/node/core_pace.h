// SPDX-License-Identifier: Apache-2.0
// What stands for steps where a guaranteed job shows none, or none that mean something.
#pragma once

#include <cstdint>

#include "allocator/base/clock.h"
#include "coordinator/node/cpu_meter.h"
#include "coordinator/node/step_history.h"

namespace commensal::node {

/// The pace of a process from its threads' clocks: how long a fixed piece of its work takes, the
/// waiting for a core included. Tells what a neighbour on its cores costs it, and nothing of what
/// one costs that only slows the cores down (memory, caches). Not thread safe.
class CorePace {
 public:
  /// Time on cores of one piece.
  static constexpr Duration kPiece = std::chrono::milliseconds(50);
  /// Stretches with less time on cores than this say nothing.
  static constexpr Duration kLeastRun = std::chrono::milliseconds(20);

  /// Takes totals. To be called some times a second, and when what runs beside the process changes.
  void note(const CpuMeter::Totals& totals);

  /// Stretches that were measured.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// kPiece * (run + delayed) / run, of the newest stretch; zero before the first.
  [[nodiscard]] Duration length() const noexcept { return length_; }

 private:
  bool began_ = false;
  CpuMeter::Totals last_;
  std::uint64_t number_ = 0;
  Duration length_{};
};

/// What is known of a guaranteed job's steps.
struct StepKnowledge {
  std::uint64_t number = 0;     ///< steps that ended
  double confidence = 0.0;      ///< 0..1, as its tracker declares it
  bool serves = false;          ///< its steps are requests
  std::uint64_t stretches = 0;  ///< CorePace::number
};

/// Chooses what a job's slowdown is measured by: its steps (requests: their tail) as soon as they
/// mean something, else the time on its cores. Pure. @param now  what it is measured by at present.
[[nodiscard]] StepSignal choose_signal(const StepKnowledge& steps, StepSignal now) noexcept;

}  // namespace commensal::node
