// SPDX-License-Identifier: Apache-2.0
// On how many of a GPU's multiprocessors (SMs) a job's work runs, as the session sees it.
#pragma once

#include <optional>
#include <string>

namespace commensal {

/// What came of a share of the multiprocessors.
struct MultiprocessorState {
  unsigned asked = 0;    ///< share times total, rounded down
  unsigned granted = 0;  ///< what the driver says that the work runs on
  unsigned total = 0;    ///< of the device; 0: not known yet
  std::string reason;    ///< why the work runs on all of them though fewer were asked for
};

/// Bounds on how many multiprocessors the work of a thread runs.
class MultiprocessorDial {
 public:
  virtual ~MultiprocessorDial() = default;
  /// At the end of a step, on the thread that ends it: what this thread issues from now on runs on
  /// at most this share of the device, above 0. Absent: on all of it, as before.
  /// @return nullopt: nothing can be done now, the end of the next step is as good.
  virtual std::optional<MultiprocessorState> follow(std::optional<double> share) noexcept = 0;
};

}  // namespace commensal
