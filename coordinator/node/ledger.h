// SPDX-License-Identifier: Apache-2.0
// Who holds how much of one device. Never grants more than there is.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"

namespace commensal::node {

/// Names one process's lease.
struct LeaseKey {
  JobId job;
  std::int64_t pid = 0;
  auto operator<=>(const LeaseKey&) const = default;
};

/// Whether a shrink counts only when the job has confirmed it. `kNo` exists to show in a test that
/// the step is needed.
enum class ConfirmShrinks : bool { kNo = false, kYes = true };

/// Keeps the leases on one device.
///
/// A lease is *charged* with the most that its process may hold: the largest of the limits it may
/// still act on and of what it reported. Growing reserves first and is told then; shrinking is told
/// first and counts when the process has confirmed it. So the sum of what is charged is at most the
/// capacity, whatever message is lost, late, doubled or out of order. Only `open` may exceed it,
/// with what a process holds already (a coordinator that starts again); nothing grows until that
/// has gone down.
///
/// What no limit moves is kept apart: a job's *unmanaged* memory, and what others have taken of the
/// device (*outside*). Nothing grows into either, with one exception: floors, which were promised,
/// are kept on all of the capacity. Where memory is physically free (`set_physical`), a floor, and
/// nothing else, may be reached beyond the capacity; that part is told apart (`beyond_budget`) and
/// is no more as soon as the sum fits again.
///
/// Not thread safe.
class Ledger {
 public:
  explicit Ledger(Bytes capacity, ConfirmShrinks confirm = ConfirmShrinks::kYes) noexcept
      : capacity_(capacity), confirm_(confirm) {}

  /// Opens a lease. `held` and `limit` are what the process has already: zero for a new one.
  /// Opening it again changes nothing. @param floor  what it must be able to get, guaranteed.
  void open(const LeaseKey& key, Bytes held, Bytes limit, Revision revision, Bytes floor);
  /// Returns a lease; unknown keys are ignored.
  void close(const LeaseKey& key) noexcept;
  void set_floor(const LeaseKey& key, Bytes floor);
  void set_capacity(Bytes capacity) noexcept;
  /// Notes what a job holds beside its leases; zero forgets it.
  void set_unmanaged(const JobId& job, Bytes bytes);
  /// Notes how much of the capacity others than the jobs have taken.
  void set_outside(Bytes bytes) noexcept { outside_ = bytes; }
  /// Sets the most that all leases together may be charged with where a floor needs it, because so
  /// much is physically there. Up to the capacity it changes nothing; zero from the start.
  void set_physical(Bytes bytes) noexcept { physical_ = bytes; }

  /// Returns how far the limit can go toward `target` now: down always, up as far as there is
  /// memory that nobody is charged with and no other's floor needs.
  [[nodiscard]] Bytes reachable(const LeaseKey& key, Bytes target) const;
  /// Notes that `limit` is told as `revision`. @throws std::logic_error if it is above
  /// `reachable`, or the revision is not newer than all before: the caller's mistake.
  void tell(const LeaseKey& key, Bytes limit, Revision revision);
  /// Notes that the process has applied `revision` and holds `held` now.
  /// @return false if the answer is older than a known one, or of no revision that was told.
  bool confirm(const LeaseKey& key, Revision revision, Bytes held);

  [[nodiscard]] bool contains(const LeaseKey& key) const { return leases_.contains(key); }
  [[nodiscard]] Bytes limit(const LeaseKey& key) const;    ///< last told
  [[nodiscard]] Bytes charged(const LeaseKey& key) const;  ///< most that it may hold
  [[nodiscard]] bool shrinking(const LeaseKey& key) const { return charged(key) > limit(key); }
  [[nodiscard]] Revision revision(const LeaseKey& key) const;  ///< last told
  /// Whether the process may still act on an older limit that is larger than the last told.
  [[nodiscard]] bool outdated(const LeaseKey& key) const;
  /// Of what a lease is charged with, what was granted beyond the capacity and is still above it.
  [[nodiscard]] Bytes beyond_budget(const LeaseKey& key) const { return at(key).beyond; }
  [[nodiscard]] Bytes capacity() const noexcept { return capacity_; }
  [[nodiscard]] Bytes total_charged() const noexcept;  ///< of the leases
  [[nodiscard]] Bytes unmanaged(const JobId& job) const;
  [[nodiscard]] Bytes total_unmanaged() const noexcept;
  [[nodiscard]] Bytes outside() const noexcept { return outside_; }
  /// What nobody is charged with.
  [[nodiscard]] Bytes free() const noexcept;

 private:
  struct Told {
    Revision revision;
    Bytes limit;
  };
  struct Lease {
    Bytes floor;
    Bytes beyond;            // of what it is charged with, granted beyond the capacity
    Bytes excess;            // held above every limit when last confirmed; never grows
    std::vector<Told> told;  // [0] is the confirmed one, the rest may still be on its way
  };
  [[nodiscard]] const Lease& at(const LeaseKey& key) const;
  [[nodiscard]] static Bytes charged(const Lease& lease) noexcept;
  /// What others than `key` are charged with; what their floors still lack is as good as taken.
  [[nodiscard]] Bytes taken_by_others(const LeaseKey& key) const noexcept;
  /// `reachable` within the capacity.
  [[nodiscard]] Bytes within_budget(const LeaseKey& key, Bytes target) const;
  /// Forgets what is not beyond the capacity any more.
  void settle_beyond() noexcept;

  Bytes capacity_;
  ConfirmShrinks confirm_;
  std::map<LeaseKey, Lease> leases_;
  std::map<JobId, Bytes> unmanaged_;
  Bytes outside_;
  Bytes physical_;
};

}  // namespace commensal::node
