// SPDX-License-Identifier: Apache-2.0
// How long a job keeps memory that it wanted and does not want now.
#pragma once

#include <chrono>
#include <deque>
#include <utility>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "coordinator/policies/view.h"

namespace commensal::node {

struct LeaseTerms {
  Duration first = std::chrono::seconds(5);  ///< how long a peak is remembered at least
  Duration longest = std::chrono::minutes(5);
};

/// Keeps the lease of one job.
///
/// A peak of what it wants renews the lease; it runs out a term later, and then the largest wish
/// of the last `first` counts. If the job wants at least half of what it let go again within four
/// terms, its term doubles: two jobs do not trade the same bytes forever, each time moving them.
/// After 32 terms without that the term halves. Not thread safe.
class LeaseKeeper {
 public:
  explicit LeaseKeeper(LeaseTerms terms = {}) noexcept : terms_(terms) {
    lease_.term = terms.first;
  }

  /// Notes what the job wants now.
  void note(TimePoint now, Bytes wanted);
  [[nodiscard]] const policies::MemoryLease& lease() const noexcept { return lease_; }

 private:
  void ran_out(TimePoint now);
  void lengthen_if_taken_back(TimePoint now, Bytes wanted);

  LeaseTerms terms_;
  policies::MemoryLease lease_;
  std::deque<std::pair<TimePoint, Bytes>> recent_;  // falling wishes of the last `first`
  Bytes let_go_from_;                               // before the lease ran out last
  Bytes let_go_to_;
  TimePoint let_go_at_;
  TimePoint calm_since_;
  bool let_go_ = false;  // and not taken back yet
};

}  // namespace commensal::node
