// SPDX-License-Identifier: Apache-2.0
// Decides whether the ranks of an opportunistic job are gated together, and numbers their switches.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "allocator/base/clock.h"

namespace commensal::node {

/// What one process that trains shows on its page.
struct GangRank {
  std::int64_t pid = 0;
  int rank = 0;
  bool seen = false;  ///< its page can be read here
  TimePoint heartbeat;
  std::uint64_t begun = 0;  ///< collectives
  std::uint64_t ended = 0;
  std::uint64_t epoch = 0;  ///< newest one that its gate acted on
  std::uint64_t stand = 0;  ///< in that epoch: collectives begun when its gate closed, plus 1
};

/// A job's ranks at one moment.
struct GangView {
  TimePoint now;
  int world_size = 1;   ///< ranks that the job says it has, on all machines
  bool closed = false;  ///< its gates are ordered to close: a pause, a window
  std::vector<GangRank> ranks;
};

/// Keeps one job's gang.
///
/// The gang rule itself is applied by the ranks, from each other's pages
/// (torch_ext/gate/gang_rule.h, docs/design/018-gangs.md). What is decided here is who belongs to
/// the gang, whether it can be one, and the epoch: a number that grows with every switch and every
/// change of the ranks, so that what a rank shows can be told from what it showed before. An epoch
/// of 0 frees the ranks: each is gated by itself. Deterministic, no clock of its own. Not thread
/// safe.
class GangKeeper {
 public:
  /// A rank without a sign of life for so long frees the others. As long as a lease.
  static constexpr Duration kSilence = std::chrono::seconds{2};
  /// Ranks whose counts differ for so long, in so many looks, while the one that lags goes through
  /// so many collectives, do not begin the same collectives.
  static constexpr Duration kUnevenFor = std::chrono::seconds{1};
  static constexpr int kUnevenLooks = 10;
  static constexpr std::uint64_t kUnevenCollectives = 4;
  /// Then they are tried again after this, twice as long after each further time.
  static constexpr Duration kFirstRetry = std::chrono::seconds{10};
  static constexpr Duration kLastRetry = std::chrono::minutes{5};

  /// Takes what the pages show. Called often; a look that comes late only makes it decide later.
  /// @return a line for the log if the ranks became a gang or ceased to be one; else empty.
  std::string update(const GangView& view);

  /// What the device page says: 0: each rank is gated by itself.
  [[nodiscard]] std::uint64_t page_epoch() const noexcept { return gated_ ? epoch_ : 0; }
  /// Whether this is a job of several ranks at all.
  [[nodiscard]] bool several() const noexcept { return several_; }
  [[nodiscard]] bool gated() const noexcept { return gated_; }
  /// Why it is not gated as a gang, or how it stands.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  [[nodiscard]] std::uint64_t closes() const noexcept { return closes_; }
  [[nodiscard]] std::uint64_t closes_together() const noexcept { return together_; }
  /// docs/stats.md, `jobs[].gang`; null for a job of one rank.
  [[nodiscard]] nlohmann::json status() const;

 private:
  struct Lag {
    TimePoint since;
    std::uint64_t begun = 0;
    int looks = 0;
  };
  [[nodiscard]] std::string obstacle(const GangView& view);
  [[nodiscard]] std::string uneven(const GangView& view);
  void follow(const GangView& view);
  void switch_over(bool closed);

  std::uint64_t epoch_ = 0;
  bool several_ = false;
  bool gated_ = false;
  bool closed_ = false;
  bool stood_together_ = false;  // in this epoch, at some time
  std::string reason_;
  std::vector<GangRank> ranks_;
  std::map<std::int64_t, Lag> lags_;
  TimePoint not_before_;
  Duration retry_ = kFirstRetry;
  std::string uneven_text_;
  std::uint64_t closes_ = 0;
  std::uint64_t together_ = 0;
};

}  // namespace commensal::node
