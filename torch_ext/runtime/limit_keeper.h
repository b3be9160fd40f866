// SPDX-License-Identifier: Apache-2.0
// Which memory limit holds: the job's own bound, the coordinator's grant, and what is still owed.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/base/mutex.h"
#include "allocator/device_memory.h"
#include "coordinator/wire/outcome.h"

namespace commensal {

inline constexpr Bytes kNoLimit{UINT64_MAX};

/// What to answer to a change of the limit.
struct LimitAnswer {
  Revision revision = 0;
  wire::Outcome outcome = wire::Outcome::kApplied;
  Bytes done;
  Bytes deferred;
  std::string reason;
};

/// Keeps the limit of an allocator.
///
/// The coordinator knows the job's MAX, so its grant rules. A bound that the job sets itself holds
/// at once and besides, until the coordinator has taken it over. Revisions are the coordinator's:
/// an older one than the newest is stale, the same one again does no harm.
/// Thread safety: any member may be called from any thread. Memory is moved without the lock held.
class LimitKeeper {
 public:
  /// Keeps the limit of `memory`, which must outlive this and has the job's own bound already, as
  /// far as that counts there.
  LimitKeeper(DeviceMemory& memory, std::optional<Bytes> own_max);
  [[nodiscard]] DeviceMemory& memory() const noexcept { return *memory_.load(); }
  /// From now on the limits are those of `memory`, on another device: what was granted before does
  /// not count there. Must live as long.
  void move_to(DeviceMemory& memory, std::optional<Bytes> own_max);

  /// Records the coordinator's grant. Answers at once when nothing has to move for it; otherwise
  /// `after_safe_point` does later.
  [[nodiscard]] std::optional<LimitAnswer> grant(Bytes limit, Revision revision, TimePoint now);
  /// Notes a revision without a limit in it. @return false if it is stale.
  [[nodiscard]] bool note_revision(Revision revision);
  /// Takes a new registration: the coordinator counts from here.
  void start_over(Revision revision);

  /// Sets the job's own MAX. `here`: the caller is at a safe point; otherwise it is only recorded.
  LimitTicket set_own(Bytes max, bool here);
  /// The coordinator has changed the job's MAX, and grants within it: no bound of the job's own,
  /// unless a newer one has not been answered yet.
  void take_max(std::optional<Bytes> max);
  /// The coordinator has answered to the own bound; `taken`: its grants respect it now.
  void own_bound_answered(bool taken);

  /// Called with what a safe point did. Returns what is to be answered, if anything.
  [[nodiscard]] std::optional<LimitAnswer> after_safe_point(const LimitTicket& ticket);

  /// The same without a safe point, where memory that was freed meanwhile has met the limit.
  [[nodiscard]] std::optional<LimitAnswer> if_met();

  /// Since when a grant waits to be applied; nullopt if none does.
  [[nodiscard]] std::optional<TimePoint> waiting_since() const;
  [[nodiscard]] Revision revision() const;
  [[nodiscard]] std::optional<Bytes> own_max() const;
  /// The limit that holds; nullopt: none.
  [[nodiscard]] std::optional<Bytes> effective() const;
  /// Whether the limit that holds is at least `total`.
  [[nodiscard]] bool allows(Bytes total) const;
  /// Whether the job's own bound, not the grant, is what limits it: asking for more is no use.
  [[nodiscard]] bool bound_by_itself() const;

 private:
  struct Waiting {
    Revision revision = 0;            // the coordinator's
    Revision allocator_revision = 0;  // the allocator's
    TimePoint since;
    bool told_deferred = false;
  };
  [[nodiscard]] std::optional<Bytes> effective_locked() const COMMENSAL_REQUIRES(mutex_);
  /// Tells the allocator, under the lock: of two changes at once the newer one must win there too.
  LimitTicket post_locked() COMMENSAL_REQUIRES(mutex_);

  std::atomic<DeviceMemory*> memory_;
  mutable Mutex mutex_;
  std::optional<Bytes> own_max_ COMMENSAL_GUARDED_BY(mutex_);
  bool own_bound_new_ COMMENSAL_GUARDED_BY(mutex_) = false;  // the coordinator has not taken it yet
  std::optional<Bytes> grant_ COMMENSAL_GUARDED_BY(mutex_);
  Revision revision_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  std::optional<Waiting> waiting_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal
