// SPDX-License-Identifier: Apache-2.0
// Leases that grow longer for jobs that come back.
#include "coordinator/node/memory_lease.h"

#include <algorithm>

namespace commensal::node {

void LeaseKeeper::note(TimePoint now, Bytes wanted) {
  while (!recent_.empty() && recent_.front().first < now - terms_.first) recent_.pop_front();
  // What is smaller and older than the newest can never be the largest again.
  while (!recent_.empty() && recent_.back().second <= wanted) recent_.pop_back();
  recent_.emplace_back(now, wanted);

  lengthen_if_taken_back(now, wanted);
  if (wanted >= lease_.bytes) {
    lease_.bytes = wanted;
    lease_.ends = now + lease_.term;
  } else if (now >= lease_.ends) {
    ran_out(now);
  }
}

void LeaseKeeper::ran_out(TimePoint now) {
  const auto [peak_at, peak] = recent_.front();
  if (lease_.bytes - peak > Bytes{lease_.bytes.count() / 16}) {  // less moves nothing
    let_go_from_ = lease_.bytes;
    let_go_to_ = peak;
    let_go_at_ = now;
    let_go_ = true;
  }
  lease_.bytes = peak;
  lease_.ends = std::max(peak_at + lease_.term, now + Duration{1});
}

void LeaseKeeper::lengthen_if_taken_back(TimePoint now, Bytes wanted) {
  const bool comes_back =
      let_go_ && wanted >= let_go_to_ + Bytes{(let_go_from_ - let_go_to_).count() / 2};
  if (comes_back) {
    let_go_ = false;
    if (now - let_go_at_ > 4 * lease_.term) return;
    lease_.term = std::min(2 * lease_.term, terms_.longest);
    calm_since_ = now;
  } else if (lease_.term > terms_.first && now - calm_since_ >= 32 * lease_.term) {
    lease_.term = std::max(lease_.term / 2, terms_.first);
    calm_since_ = now;
  }
}

}  // namespace commensal::node
