// SPDX-License-Identifier: Apache-2.0
// How much time has passed for sure, whatever the wall clock was set to meanwhile.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/cluster/job.h"

namespace commensal::cluster {

/// The wall clock, and how long the machine has run, suspended or not, since which start of it.
struct ClockReading {
  WallTime wall{};
  std::chrono::milliseconds since_boot{};
  std::string boot;  ///< the kernel's name of this start of the machine
};

/// Reads both, the machine's by the kernel's files: programs that change a clock for one process
/// change those too. @throws std::runtime_error if they cannot be read.
[[nodiscard]] ClockReading read_clocks(const std::filesystem::path& proc = "/proc");

/// Counts time only while the wall clock and the machine's own agree. A jump of the wall clock, and
/// the time while the machine was off, are no time that has passed.
class CountedTime {
 public:
  /// Goes on with what `text` gave; anything else: nothing is known yet.
  explicit CountedTime(const std::string& text = "");

  /// Takes what the clocks show now.
  /// @return whether they do not go on as at the last look: worth to be kept at once.
  bool look(const ClockReading& now);

  /// Returns the time that has passed since then, at least: less than the wall clock says if that
  /// was set meanwhile. Before the first look counts what the wall clock says.
  [[nodiscard]] std::chrono::milliseconds since(WallTime then) const;
  /// Returns for how long both clocks were seen to agree, in all.
  [[nodiscard]] std::chrono::milliseconds counted() const;
  /// Returns the wall clock at the last look.
  [[nodiscard]] WallTime now() const;

  /// Forgets what does not matter to who asks whether more than `longest` has passed.
  void forget_before(std::chrono::milliseconds longest);
  [[nodiscard]] std::string text() const;

 private:
  struct Stretch {
    WallTime from;
    std::chrono::milliseconds length;
  };
  std::vector<Stretch> stretches_;  // in which they agreed, the last one up to the last look
  std::chrono::milliseconds since_boot_{};  // at the beginning of the last one
  std::string boot_;
};

}  // namespace commensal::cluster
