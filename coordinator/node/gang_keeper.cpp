// SPDX-License-Identifier: Apache-2.0
// Who is a gang, and what it did when it was told to close.
#include "coordinator/node/gang_keeper.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace commensal::node {
namespace {

std::string in_tenths(Duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

std::string name(const GangRank& rank) { return "rank " + std::to_string(rank.rank); }

bool same_ranks(const std::vector<GangRank>& a, const std::vector<GangRank>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const GangRank& x, const GangRank& y) { return x.pid == y.pid; });
}

/// Whether all stand at their closed gates, between the same two collectives.
bool stand_together(const std::vector<GangRank>& ranks, std::uint64_t epoch) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const GangRank& rank) {
    return rank.epoch == epoch && rank.stand != 0 && rank.stand == ranks.front().stand &&
           rank.begun + 1 == rank.stand;
  });
}

}  // namespace

std::string GangKeeper::uneven(const GangView& view) {
  const auto ahead =
      std::max_element(view.ranks.begin(), view.ranks.end(),
                       [](const GangRank& a, const GangRank& b) { return a.ended < b.ended; });
  for (const GangRank& rank : view.ranks) {
    // What has ended somewhere has begun everywhere, if it is the same collective.
    if (rank.begun >= ahead->ended) {
      lags_.erase(rank.pid);
      continue;
    }
    const auto [entry, is_new] = lags_.try_emplace(rank.pid, Lag{view.now, rank.begun, 0});
    Lag& lag = entry->second;
    ++lag.looks;
    if (lag.looks < kUnevenLooks || view.now - lag.since < kUnevenFor) continue;
    if (rank.begun < lag.begun + kUnevenCollectives) continue;
    return name(rank) + " has begun " + std::to_string(rank.begun) + " collectives where " +
           name(*ahead) + " has ended " + std::to_string(ahead->ended) +
           ": their counts do not correspond";
  }
  return "";
}

std::string GangKeeper::obstacle(const GangView& view) {
  const std::vector<GangRank>& ranks = view.ranks;
  const int size = std::max(1, view.world_size);
  if (static_cast<int>(ranks.size()) > size && size == 1) {
    return std::to_string(ranks.size()) + " processes train, each for itself";
  }
  if (static_cast<int>(ranks.size()) != size) {
    return std::to_string(ranks.size()) + " of its " + std::to_string(view.world_size) +
           " ranks are here";
  }
  if (ranks.size() < 2) return "one process trains";
  for (const GangRank& rank : ranks) {
    if (!rank.seen) return name(rank) + " shows no page here";
    const Duration silent = view.now - rank.heartbeat;
    if (silent > kSilence) {
      return name(rank) + " has shown no sign of life for " + in_tenths(silent);
    }
  }
  const auto begins = [](const GangRank& rank) { return rank.begun > 0; };
  if (std::none_of(ranks.begin(), ranks.end(), begins)) return "no collective has begun yet";
  if (view.now < not_before_) {
    return uneven_text_ + "; tried again in " + in_tenths(not_before_ - view.now);
  }
  uneven_text_ = uneven(view);
  if (uneven_text_.empty()) return "";
  lags_.clear();
  not_before_ = view.now + retry_;
  retry_ = std::min(2 * retry_, kLastRetry);
  return uneven_text_;
}

void GangKeeper::switch_over(bool closed) {
  if (closed_ && gated_ && stood_together_) ++together_;
  if (closed) ++closes_;
  ++epoch_;
  closed_ = closed;
  stood_together_ = false;
}

void GangKeeper::follow(const GangView& view) {
  if (!closed_) {
    reason_ = "open together";
    return;
  }
  if (stand_together(view.ranks, epoch_)) {
    stood_together_ = true;
    reason_ = "closed together after collective " + std::to_string(view.ranks.front().begun);
    return;
  }
  const auto [least, most] =
      std::minmax_element(view.ranks.begin(), view.ranks.end(),
                          [](const GangRank& a, const GangRank& b) { return a.begun < b.begun; });
  reason_ = "closes";
  if (least->begun < most->begun) {
    reason_ += ": " + name(*least) + " has begun " + std::to_string(least->begun) +
               " collectives, " + name(*most) + " " + std::to_string(most->begun);
  }
}

std::string GangKeeper::update(const GangView& view) {
  const bool others = !same_ranks(ranks_, view.ranks);
  if (others) lags_.clear();
  const std::string why_not = obstacle(view);
  const bool was_gated = gated_;
  ranks_ = view.ranks;
  several_ = ranks_.size() > 1 || view.world_size > 1;
  if (!why_not.empty()) {
    gated_ = false;
    closed_ = view.closed;
    reason_ = why_not;
    return was_gated ? "no gang any more: " + why_not : "";
  }
  if (!gated_ || others || closed_ != view.closed) switch_over(view.closed);
  gated_ = true;
  follow(view);
  if (was_gated) return "";
  return std::to_string(ranks_.size()) + " ranks are gated together";
}

nlohmann::json GangKeeper::status() const {
  using nlohmann::json;
  if (!several()) return nullptr;
  json collectives = json::array();
  for (const GangRank& rank : ranks_) {
    collectives.push_back({{"rank", rank.rank}, {"begun", rank.begun}, {"ended", rank.ended}});
  }
  return {{"gated", gated_},
          {"epoch", page_epoch()},
          {"ranks", ranks_.size()},
          {"closed", gated_ && closed_},
          {"closes_total", closes_},
          {"closes_together_total", together_},
          {"collectives", std::move(collectives)},
          {"reason", reason_}};
}

}  // namespace commensal::node
