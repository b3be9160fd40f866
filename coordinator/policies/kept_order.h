// SPDX-License-Identifier: Apache-2.0
// A sorted order of jobs that is kept from decision to decision, so that only what can have changed
// is sorted again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// Equal to a stable sort of the whole list at every decision, new jobs at its end, if the key of a
/// job that does not run never changes. `front` holds those that were offered something at the last
/// decision, and with them all that run; `back` the others, sorted.
template <typename Key>
class KeptOrder {
 public:
  KeptOrder(std::vector<JobIndex>& front, std::vector<JobIndex>& back) noexcept
      : front_(front), back_(back) {}

  /// Forgets jobs that have ended.
  void forget_ended(const ClusterView& view) {
    if (view.ended.empty()) return;
    std::erase_if(front_, [&](JobIndex job) { return view.jobs[job].phase == JobPhase::kEnded; });
  }

  /// Adds a job behind all that are equal to it.
  template <typename KeyOf>
  void append(JobIndex job, const KeyOf& key_of) {
    const Key key = key_of(job);
    const auto at =
        std::upper_bound(back_.begin(), back_.end(), key,
                         [&](const Key& k, JobIndex other) { return k < key_of(other); });
    back_.insert(at, job);
  }

  /// Takes a job out, wherever it is.
  void remove(JobIndex job) {
    if (std::erase(front_, job) == 0) std::erase(back_, job);
  }

  /// Calls `offer` for each job in order while it returns true. `behind(job)`: whether the job was
  /// put behind those of equal key that were not, since the last time.
  template <typename KeyOf, typename Behind, typename Offer>
  void walk(const KeyOf& key_of, const Behind& behind, const Offer& offer) {
    std::vector<Entry> front;
    front.reserve(front_.size());
    for (const JobIndex job : front_) insert_sorted(front, {{key_of(job), behind(job)}, job});
    std::vector<JobIndex> seen;
    std::size_t f = 0;
    std::size_t b = 0;
    bool more = true;
    Key back_key{};  // of back_[b]; a key may cost more than all else here
    if (!back_.empty()) back_key = key_of(back_.front());
    while (more && (f < front.size() || b < back_.size())) {
      const bool from_front =
          f < front.size() && (b == back_.size() || !(back_key < front[f].first.first));
      const JobIndex job = from_front ? front[f++].second : back_[b++];
      if (!from_front && b < back_.size()) back_key = key_of(back_[b]);
      seen.push_back(job);
      more = offer(job);
    }
    put_back(front, f, b, key_of);
    front_ = std::move(seen);
  }

 private:
  using Entry = std::pair<std::pair<Key, bool>, JobIndex>;

  static void insert_sorted(std::vector<Entry>& sorted, const Entry& entry) {
    std::size_t at = sorted.size();
    sorted.push_back(entry);
    for (; at > 0 && entry.first < sorted[at - 1].first; --at) sorted[at] = sorted[at - 1];
    sorted[at] = entry;
  }

  /// What was not reached does not run from now on.
  template <typename KeyOf>
  void put_back(const std::vector<Entry>& front, std::size_t f, std::size_t b,
                const KeyOf& key_of) {
    back_.erase(back_.begin(), back_.begin() + static_cast<std::ptrdiff_t>(b));
    if (f == front.size()) return;
    std::vector<JobIndex> merged;
    merged.reserve(front.size() - f + back_.size());
    std::size_t i = 0;
    while (f < front.size() || i < back_.size()) {
      const bool from_front =
          f < front.size() && (i == back_.size() || !(key_of(back_[i]) < front[f].first.first));
      merged.push_back(from_front ? front[f++].second : back_[i++]);
    }
    back_ = std::move(merged);
  }

  std::vector<JobIndex>& front_;
  std::vector<JobIndex>& back_;
};

}  // namespace commensal::policies
