// SPDX-License-Identifier: Apache-2.0
// Reads the device page and the guaranteed processes' pages: what the gate decides on.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "coordinator/wire/core_set.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/pages.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {

/// Observes the device through shared pages.
///
/// Thread safety: `observe` from any thread, without locks; everything else from one thread (the
/// client's). A page that is no longer in use stays mapped until the observer ends, for a reader
/// that was preempted may still look at it: 4 KiB of memory for each process that ever was a peer.
class PeerObserver final : public DeviceObserver {
 public:
  static constexpr std::size_t kMaxPeers = 64;
  static constexpr Duration kSilence = std::chrono::seconds{2};  ///< without a heartbeat
  /// A lease on the page that runs for longer is not believed: the coordinator renews them often.
  static constexpr Duration kLongestLease = std::chrono::minutes{1};

  /// @param job  the own job, whose entry on the device page bounds the gate.
  explicit PeerObserver(JobId job);
  ~PeerObserver() override;
  PeerObserver(const PeerObserver&) = delete;
  PeerObserver& operator=(const PeerObserver&) = delete;

  [[nodiscard]] DeviceObservation observe(TimePoint now) const noexcept override;

  /// What a process goes by when it decides on which CPUs it keeps.
  struct CoreWord {
    bool coordinator_alive = false;
    bool guaranteed_present = false;
    wire::CoreSet left;  ///< for this job; empty: all
  };
  /// Reads the own entry's cores. Nothing while the coordinator changes them.
  [[nodiscard]] std::optional<CoreWord> cores_left(TimePoint now) const noexcept;

  /// Uses a coordinator's device page from now on. @throws std::runtime_error if it is unusable.
  void set_device_page(wire::MappedPage page);
  /// Watches a guaranteed process. Replaces an older page of the same process.
  /// @throws std::runtime_error if the page is unusable or there are too many.
  void add_peer(std::int64_t pid, wire::MappedPage page);
  /// Forgets a process: it died, or its job is no longer guaranteed.
  void remove_peer(std::int64_t pid) noexcept;
  [[nodiscard]] std::size_t peers() const noexcept;
  /// What a message said, besides the page.
  void set_paused(bool paused) noexcept { paused_.store(paused, std::memory_order_relaxed); }
  /// Share that the coordinator's messages allow at most; 1: no bound.
  void set_share_max(double share) noexcept { share_max_.store(share, std::memory_order_relaxed); }

 private:
  struct Peer {
    std::atomic<const wire::JobPage*> page{nullptr};
    std::int64_t pid = 0;
  };
  struct Pages;  // every mapping that was ever in use

  void observe_page(const wire::DevicePage& page, DeviceObservation& seen) const noexcept;
  void observe_peers(DeviceObservation& seen) const noexcept;
  [[nodiscard]] const wire::DeviceEntry* own_entry(const wire::DevicePage& page) const noexcept;

  const JobId job_;
  std::atomic<const wire::DevicePage*> device_{nullptr};
  // Where the own entry is, as of a revision of the page: (revision << 8) | (index + 1, 0: none).
  mutable std::atomic<std::uint64_t> own_entry_{UINT64_MAX};
  std::array<Peer, kMaxPeers> peers_;
  std::atomic<std::size_t> peers_end_{0};
  std::atomic<bool> paused_{false};
  std::atomic<double> share_max_{1.0};
  std::unique_ptr<Pages> pages_;
};

}  // namespace commensal
