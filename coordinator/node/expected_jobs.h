// SPDX-License-Identifier: Apache-2.0
// Jobs that the cluster has placed on this node: which of them are still to come, what is kept free
// for them meanwhile, and as what they run once they are here.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/placements.h"

namespace commensal::node {

/// A registration as the cluster's placement lets it count.
struct Held {
  wire::Register message;
  std::string reason;  ///< what differed; empty: nothing
};

/// Holds a process that registers to what its job was placed as: class, and those bounds that the
/// cluster has decided. Nothing is held of one that is only reserved, and no class while the job is
/// being upgraded. Pure.
[[nodiscard]] Held hold_to(const wire::Placement& placement, const wire::Register& message);

/// What is made of one placement at one moment.
struct Expectation {
  bool expected = false;  ///< none of its processes has registered, and it may still come
  bool claims = false;    ///< its minimum of memory is kept free for it
  std::string reason;
};

/// How long things wait.
inline constexpr Duration kClaimed = std::chrono::seconds{60};   ///< memory is kept free
inline constexpr Duration kExpected = std::chrono::minutes{10};  ///< a job is shown as to come

/// Whether processes of a job have registered.
enum class Presence : std::uint8_t {
  kNotYet,
  kHere,  ///< some have, though perhaps none on the devices that were meant
  kGone   ///< it was here
};

/// Says what to make of a placement. A claim is made for a guaranteed job with a minimum of memory
/// that was told to start; where the job is by now, its floor counts in its place
/// (DeviceCoordinator::set_claims). Pure.
/// @param age  since it was told as it is, reserved or not.
/// @param silence  since the cluster's coordinator was heard.
[[nodiscard]] Expectation expect(const wire::Placement& placement, Presence presence, Duration age,
                                 Duration silence);

/// Keeps the cluster's newest list for this node.
///
/// Without a new list nothing changes but that time passes: jobs that never come are dropped. Has
/// no clock: time is an argument, and does not go back. Thread safety: none.
class ExpectedJobs {
 public:
  using IsHere = std::function<bool(const JobId&)>;

  /// Replaces the list. Jobs that it had keep their time.
  void take(const std::vector<wire::Placement>& list, TimePoint now);
  /// Notes that the cluster's coordinator has answered.
  void heard(TimePoint now) noexcept { heard_ = now; }
  /// Notes which jobs have come, and what time has changed. Call a few times a second.
  void update(const IsHere& is_here, TimePoint now);

  /// The placement under whose id a job registers; null: there is none.
  [[nodiscard]] const wire::Placement* find(const JobId& id) const;
  /// Bytes that are kept free on a device, as of the last `update`.
  [[nodiscard]] std::map<JobId, Bytes> claims_on(const std::string& device) const;
  /// docs/stats.md, `expected`: those that are to come. @param job  id or name; empty: all.
  [[nodiscard]] nlohmann::json status(const std::string& job, TimePoint now) const;
  /// Lines for the log: claims that begin and end, jobs that are not expected any more.
  [[nodiscard]] std::vector<std::string> take_news() { return std::exchange(news_, {}); }

 private:
  struct Entry {
    wire::Placement placement;
    TimePoint since;  // told as it is
    Presence presence = Presence::kNotYet;
    Expectation now;  // as of the last update
  };
  void note(const Entry& entry, const Expectation& next);

  std::map<JobId, Entry> entries_;
  TimePoint heard_{};
  std::vector<std::string> news_;
};

}  // namespace commensal::node
