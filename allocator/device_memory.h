// SPDX-License-Identifier: Apache-2.0
// The memory of one device, of which a process may hold a limited amount.
#pragma once

#include <cstdint>
#include <string>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"

namespace commensal {

/// Answers a change of the limit. `done + deferred` is what the change asked for.
struct LimitTicket {
  Revision revision = 0;
  Bytes limit;         ///< the limit that holds now (the newest revision's)
  Bytes done;          ///< bytes given back (or, growing, brought back) so far
  Bytes deferred;      ///< bytes still above the limit
  std::string reason;  ///< why bytes are deferred, or why the change was stale; empty: all done
  bool stale = false;  ///< a newer revision was there already; nothing was changed

  [[nodiscard]] bool complete() const noexcept { return !stale && deferred.is_zero(); }
};

/// Totals over the life of the process, and the state now. All in bytes unless named otherwise.
struct AllocatorStats {
  Bytes limit;         ///< most device bytes; max value: no limit
  Bytes device;        ///< chunks on the device tier (live and cached)
  Bytes host;          ///< chunks on the slower tier
  Bytes host_touched;  ///< of `host`: resident because touched again; counts against the limit
  Bytes parked;        ///< saved, no memory of the device
  Bytes away;          ///< of `parked`: not mapped; but for tags that are parked by name
  Bytes dropped;       ///< addresses of blocks whose content was given up; no memory at all
  Bytes kept;          ///< chunks that stay where they are, see `keep_in_place`
  Bytes outside;       ///< held by others in the process, see `count_outside`
  Bytes live;          ///< blocks handed out (as asked, before rounding)
  Bytes cached;        ///< device bytes that no live block uses
  Bytes peak_live;
  Bytes peak_device;
  Bytes peak_reserved;  ///< most of `device + host + parked` since `reset_peak_reserved`
  Bytes moved_out;      ///< live bytes moved to the slower tier, total
  Bytes moved_ahead;    ///< of `moved_out`: between safe points, while the job ran
  Bytes moved_in;       ///< live bytes brought back, total
  Bytes given_back;     ///< device bytes released to the system by limits, total
  Bytes deferred;       ///< bytes above the limit at the last safe point, with a reason
  Bytes held_back;      ///< bytes that have room on the device and no leave to come back
  std::string held_back_reason;
  std::uint64_t held_back_times = 0;  ///< looks at which some had none
  Bytes held_by_children;
  std::uint64_t moves = 0;  ///< fences in which at least one chunk was swapped
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t chunks_device = 0;
  std::uint64_t chunks_host = 0;
  std::uint64_t out_of_memory = 0;  ///< times OutOfMemory was thrown
  Duration longest_pause{};         ///< longest fence
  Duration total_pause{};
  Duration safe_point_wait{};  ///< time that training threads waited at safe points
  std::string deferred_reason;
};

/// Memory that follows a limit: elastic, where live memory moves, or bound from outside. It is
/// measured, limited and moved alike, whoever serves the blocks. Thread safety: all.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  /// Records a limit without doing anything for it yet: the next safe point enforces it.
  virtual LimitTicket post_limit(Bytes limit) = 0;
  /// Does what there is to do, as far as the calling thread may.
  virtual LimitTicket safe_point() = 0;
  /// Saves what it holds, for as long as the job is parked: its limit is zero meanwhile.
  virtual LimitTicket park() { return safe_point(); }
  /// A step of the training ended.
  virtual void step_ended() noexcept {}
  /// From now on, or no more: what is live on the device stays there when a limit falls, and what
  /// is on the slower tier comes back as room allows.
  virtual void keep_live(bool /*keeps*/) noexcept {}
  /// Whether a safe point has something to do.
  [[nodiscard]] virtual bool work_pending() const noexcept = 0;
  [[nodiscard]] virtual AllocatorStats stats() const = 0;
  /// Bytes of its device; zero: not known.
  [[nodiscard]] virtual Bytes capacity() const { return {}; }
  /// Bytes that its slower tier can hold; zero: it has none.
  [[nodiscard]] virtual Bytes slower_capacity() const { return {}; }
};

}  // namespace commensal
