// SPDX-License-Identifier: Apache-2.0
// The one gate of a process: the point where an op waits before it is launched.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "allocator/base/clock.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {

/// Totals of the gate, and its state now.
struct GateStats {
  std::string law;
  const char* state = "off";  ///< "off", "open", "closed" or "paused"
  std::string reason;         ///< of the newest decision
  Duration closed_total{};    ///< time that ops waited (summed over threads: longest of them)
  Duration busy_total{};      ///< time with at least one op running
  std::uint64_t ops_gated = 0;
  std::uint64_t ops_seen = 0;
};

/// Lets a thread's outermost dispatcher ops pass or wait, as its pacing law decides.
///
/// The op callback is switched on only while the gate has something to do (`wants_callback`), for
/// even an empty one costs 110 to 190 ns an event. While closed, `enter_op` waits outside of all
/// locks; the caller has released the GIL (on_wait). The gate never throws.
/// Thread safety: any member may be called from any thread.
class Gate {
 public:
  /// @param view  answers what the device looks like now; called without locks, often.
  Gate(std::unique_ptr<PacingLaw> law, const DeviceObserver& view,
       const Clock& clock = SteadyClock::instance());
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// Called at the entry of a thread's outermost dispatcher op. `name` is a pointer that is
  /// constant for the process and distinct by op; it is the key for predicted durations.
  /// Quick when open. Returns false if the op would have to wait: then call `wait_op`.
  [[nodiscard]] bool try_enter_op(const char* name) noexcept;
  /// Waits until the gate opens for this op, then enters it.
  void wait_op(const char* name) noexcept;
  /// Called when that op has ended.
  void leave_op(const char* name) noexcept;

  /// Closes until `resume`: `commensal pause`.
  void pause() noexcept;
  void resume() noexcept;
  void set_law(std::unique_ptr<PacingLaw> law);
  void set_share(double min, double max) noexcept;

  /// Whether ops need the callback now; changes are reported to the listener, without locks.
  [[nodiscard]] bool wants_callback() const noexcept;
  void on_callback_switch(void (*enable)(bool on));

  /// In a forked child: opens for ever.
  void disarm_in_child() noexcept;

  [[nodiscard]] GateStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace commensal
