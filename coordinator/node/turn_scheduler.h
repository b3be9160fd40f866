// SPDX-License-Identifier: Apache-2.0
// Gives jobs turns on the device, as Gemini does: for the law token_window.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"

namespace commensal::node {

/// Constants of Gemini's scheduler (NTHU-LSALAB/Gemini of March 2024).
struct TurnConstants {
  Duration window = std::chrono::seconds{10};       ///< over which use is counted
  Duration quota = std::chrono::milliseconds{250};  ///< of a turn, while bursts are not known
  Duration least_quota = std::chrono::milliseconds{100};
  double smoothing = 0.5;  ///< part of the newest burst in the next quota
};

/// One job that takes part.
struct TurnClient {
  JobId id;
  double request = 0.0;  ///< share of the window that it is given first
  double limit = 1.0;    ///< most of the window
  bool wants = true;     ///< has work for the device now
  bool asks = true;      ///< waits for its turn; a guaranteed job runs when it wants
  Duration burst{};      ///< its estimate; zero: not known
};

/// Whose turn it is.
struct Turn {
  JobId holder;  ///< empty: nobody's
  TimePoint until;
  std::string reason;
  bool operator==(const Turn&) const = default;
};

/// One token a device. Use is counted in a sliding window, times that several use at once are split
/// evenly. A turn ends with its quota, or when its holder wants nothing any more; then it goes
/// - to the first that wants and has not used the device within the window;
/// - else, of those below their limit, to the one that lacks most of its request: largest d/(d + u)
///   for a lack of d and a use of u;
/// - else to the one that used least.
///
/// A guaranteed job cannot be made to wait: it uses the device when it wants to, and its turn only
/// keeps others away. Deterministic: the same calls give the same turns. Not thread safe.
class TurnScheduler {
 public:
  explicit TurnScheduler(const TurnConstants& constants = {}) : constants_(constants) {}

  /// Takes who takes part now, in the order of their arrival. Called often: use is counted from one
  /// call to the next.
  const Turn& update(TimePoint now, const std::vector<TurnClient>& clients);
  [[nodiscard]] const Turn& turn() const noexcept { return turn_; }
  /// Time that the job used within the window that ends with the last update.
  [[nodiscard]] Duration used(const JobId& job) const;

 private:
  struct Use {
    TimePoint begin;
    TimePoint end;
    std::vector<JobId> users;
  };
  void count_use(TimePoint now);
  void give(TimePoint now, const std::vector<TurnClient>& clients);
  [[nodiscard]] Duration quota_for(const TurnClient& client);

  TurnConstants constants_;
  Turn turn_;
  TimePoint updated_;
  std::vector<JobId> busy_;  // since then
  std::deque<Use> uses_;     // newest last
  std::map<JobId, Duration> quotas_;
};

}  // namespace commensal::node
