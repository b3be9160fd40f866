// SPDX-License-Identifier: Apache-2.0
// Reads the device page, the guaranteed processes' pages and those of the own job's other ranks:
// what the gate decides on.
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
  static constexpr std::size_t kMaxDevices = 16;
  static constexpr Duration kSilence = std::chrono::seconds{2};  ///< without a heartbeat
  /// A lease on the page that runs for longer is not believed: the coordinator renews them often.
  static constexpr Duration kLongestLease = std::chrono::minutes{1};

  /// @param job  the own job, whose entry on the device page bounds the gate.
  /// @param own  the own page, which counts its collectives and takes what `show_gang` shows; null:
  ///             the process is never a part of a gang. Not owned.
  explicit PeerObserver(JobId job, wire::JobPage* own = nullptr);
  ~PeerObserver() override;
  PeerObserver(const PeerObserver&) = delete;
  PeerObserver& operator=(const PeerObserver&) = delete;

  [[nodiscard]] DeviceObservation observe(TimePoint now) const noexcept override;
  void show_gang(std::uint64_t epoch, std::uint64_t stand) const noexcept override;

  /// What a process goes by when it decides on which CPUs it keeps.
  struct CoreWord {
    bool coordinator_alive = false;
    bool guaranteed_present = false;
    wire::CoreSet left;  ///< for this job; empty: all
  };
  /// Reads the own entry's cores. Nothing while the coordinator changes them.
  [[nodiscard]] std::optional<CoreWord> cores_left(TimePoint now) const noexcept;

  /// Reads the own entry's `memory_recalled` on the page of the first device; 0 without one.
  [[nodiscard]] std::uint64_t recalled() const noexcept;
  /// Names that page (`PageHeader::made_ns`); 0: there is none, or the own job is not on it yet.
  [[nodiscard]] std::uint64_t watched_page() const noexcept;

  /// Uses a coordinator's device page from now on. @throws std::runtime_error if it is unusable.
  void set_device_page(wire::MappedPage page);
  /// Uses the page of another device besides, or instead of an older one of the same device: what
  /// any device asks for holds, and all guaranteed jobs count.
  /// @throws std::runtime_error if it is unusable or there are too many.
  void add_device_page(wire::MappedPage page);
  /// Watches a guaranteed process, or another rank of the own job. Replaces an older page of the
  /// same process.
  /// @throws std::runtime_error if the page is unusable or there are too many.
  void add_peer(std::int64_t pid, wire::MappedPage page);
  /// Forgets a process: it died, or its job is no longer guaranteed.
  void remove_peer(std::int64_t pid) noexcept;
  /// Guaranteed processes, and ranks of the own job beside this one, that are watched.
  [[nodiscard]] std::size_t peers() const noexcept { return guaranteed_.count(); }
  [[nodiscard]] std::size_t ranks() const noexcept { return ranks_.count(); }
  /// What a message said, besides the page.
  void set_paused(bool paused) noexcept { paused_.store(paused, std::memory_order_relaxed); }

 private:
  /// Pages that are read without a lock while one thread adds and removes.
  struct PeerList {
    struct Peer {
      std::atomic<const wire::JobPage*> page{nullptr};
      std::int64_t pid = 0;
    };
    std::array<Peer, kMaxPeers> peers;
    std::atomic<std::size_t> end{0};

    /// Returns false if it is full.
    bool add(std::int64_t pid, const wire::JobPage* page) noexcept;
    void remove(std::int64_t pid) noexcept;
    [[nodiscard]] std::size_t count() const noexcept;
    template <typename Visit>
    void each(Visit visit) const {
      const std::size_t until = end.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < until; ++i) {
        const wire::JobPage* page = peers[i].page.load(std::memory_order_acquire);
        if (page != nullptr) visit(*page);
      }
    }
  };
  struct Pages;  // every mapping that was ever in use

  struct Device {
    std::atomic<const wire::DevicePage*> page{nullptr};
    // Where the own entry is, as of a revision of the page: (revision << 8) | (index + 1, 0: none).
    mutable std::atomic<std::uint64_t> own_entry{UINT64_MAX};
  };

  void use(Device& device, wire::MappedPage page);
  void observe_page(const Device& device, DeviceObservation& seen) const noexcept;
  void observe_peers(DeviceObservation& seen) const noexcept;
  void observe_gang(std::uint64_t epoch, DeviceObservation& seen) const noexcept;
  [[nodiscard]] const wire::DeviceEntry* own_entry(const Device& device,
                                                   const wire::DevicePage& page) const noexcept;

  const JobId job_;
  std::array<Device, kMaxDevices> devices_;  // first the one that the process used first
  std::atomic<std::size_t> devices_end_{1};
  wire::JobPage* const own_page_;
  PeerList guaranteed_;
  PeerList ranks_;
  std::atomic<bool> paused_{false};
  std::unique_ptr<Pages> pages_;
};

}  // namespace commensal
