// SPDX-License-Identifier: Apache-2.0
// Layout of the shared-memory pages through which processes see each other without a daemon in
// the path. A job writes only its own page, the coordinator only the device page.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "coordinator/wire/gaps.h"
#include "coordinator/wire/laws.h"

namespace commensal::wire {

inline constexpr std::uint64_t kJobPageMagic = 0x314A'4C53'4E4D'4F43ULL;     // "COMNSLJ1"
inline constexpr std::uint64_t kDevicePageMagic = 0x3144'4C53'4E4D'4F43ULL;  // "COMNSLD1"
inline constexpr std::uint32_t kPageVersion = 1;
inline constexpr char kJobPageName[] = "commensal-job";  ///< of a job page's memfd
inline constexpr std::size_t kPageSize = 16384;
inline constexpr std::size_t kMaxDeviceEntries = 64;
inline constexpr std::size_t kIdSize = 64;  ///< with the terminating zero

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

/// Both pages start with this. Written before the page is handed over, never changed.
struct PageHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t size;       ///< of the page, in bytes
  std::uint64_t owner_pid;  ///< as its owner sees itself; for people only
  std::uint64_t made_ns;    ///< of a device page: when it was made, which names it; else 0
};
static_assert(sizeof(PageHeader) == 32);

/// What a guaranteed job is doing, as far as it shows without cost.
enum class Activity : std::uint64_t {
  kUnknown = 0,  ///< before the first signal: treat as busy
  kBusy = 1,     ///< between a batch's arrival and the next wait
  kWaiting = 2,  ///< in a gap, see `wait_phase`
  kPaused = 3,   ///< its gate is closed
};

/// What a job's steps are.
enum class StepKind : std::uint64_t {
  kTraining = 0,  ///< mini-batches, from end to end
  kRequests = 1   ///< requests that it serves, from the first sign of work to the end
};

/// A job process's page ("rank page"). Times: CLOCK_MONOTONIC nanoseconds. Writer: that process.
/// Readers tolerate torn pairs: each word is valid alone.
struct JobPage {
  PageHeader header;
  char job_id[kIdSize];     ///< zero-terminated; fixed before hand-over
  std::uint32_t job_class;  ///< JobClass at its start
  std::uint32_t rank;
  std::uint64_t reserved0[3];

  // Life and activity (the fast loop reads these)
  Word heartbeat_ns;          ///< at least every 500 ms while the process lives
  Word activity;              ///< Activity
  Word activity_since_ns;     ///< when `activity` last changed
  Word last_touch_ns;         ///< newest sign of work: allocation, range, optimizer hook
  Word wait_expected_end_ns;  ///< earliest likely end of the present wait; 0: not known
  Word wait_typical_ns;       ///< low quantile of recent waits; 0: not known
  Word waits_total;
  Word wait_ns_total;
  // Steps
  Word step_number;
  Word step_last_ns;
  Word step_median_ns;
  Word step_confidence_ppm;  ///< 0..1,000,000
  // Memory
  Word memory_limit;
  Word memory_device;
  Word memory_host;
  Word memory_parked;
  Word memory_live;
  Word memory_cached;
  Word memory_moved_total;
  Word memory_wanted;  ///< device bytes it would use without a limit
  // Gate
  Word gate_closed_ns_total;
  Word gate_ops_total;  ///< ops that waited
  Word gate_open;       ///< 1: open now
  Word gate_law;        ///< LawId
  // Added without a new version: zero in the page of an older writer
  Word step_end_ns;            ///< when step `step_number` ended
  Word gate_busy_ns_total;     ///< time that its ops ran, summed over threads; 0 without a callback
  Word gate_burst_ns;          ///< longest run of ops of late (law token_window); 0: not known
  Word step_kind;              ///< StepKind
  Word wait_phase;             ///< GapPhase of the present wait, or of the last
  Word gate_hand_overs_total;  ///< gaps of others that it entered (law gap)
  // Gang: docs/design/018-gangs.md
  Word collectives_begun;  ///< collectives that began in this process; never falls
  Word collectives_ended;
  Word gang_epoch;  ///< newest epoch of the device entry that its gate acted on
  Word gang_stand;  ///< in it: collectives begun when its gate closed, plus 1; 0: not closed
  /// After so long without a sign of work the job waits for a request, though nobody says so: see
  /// `present_wait`; 0: its waits are told.
  Word quiet_ns;
  // Where a device has queues, it works on after the job has begun to wait
  Word queue_issued;  ///< number of the newest wait's mark in its queue; 0: there are no marks
  Word queue_done;    ///< newest mark that the device has passed; written by the device
  // Memory of the device that it used first, shown before it is taken: docs/design/010
  Word memory_taken;  ///< bytes that it holds, or is about to take
  /// `made_ns` of the device page that it looks at (`memory_recalled`) after it has shown in
  /// `memory_taken` what it is about to take, and before it takes it; 0: it looks at none.
  Word memory_page;
  std::uint64_t reserved1[9];
};
static_assert(std::is_standard_layout_v<JobPage>);
static_assert(offsetof(JobPage, job_id) == 32);
static_assert(offsetof(JobPage, job_class) == 96);
static_assert(offsetof(JobPage, heartbeat_ns) == 128);
static_assert(offsetof(JobPage, step_number) == 192);
static_assert(offsetof(JobPage, memory_limit) == 224);
static_assert(offsetof(JobPage, gate_closed_ns_total) == 288);
static_assert(sizeof(JobPage) == 512 && sizeof(JobPage) <= kGapTableOffset);
static_assert(kGapTableOffset + sizeof(GapTable) <= kPageSize);

/// Returns the table behind a job's page. @param page  of which `kPageSize` bytes are mapped.
[[nodiscard]] inline const GapTable& gap_table(const JobPage& page) noexcept {
  return *reinterpret_cast<const GapTable*>(reinterpret_cast<const char*>(&page) + kGapTableOffset);
}
[[nodiscard]] inline GapTable& gap_table(JobPage& page) noexcept {
  return *reinterpret_cast<GapTable*>(reinterpret_cast<char*>(&page) + kGapTableOffset);
}

/// The wait in which a process is.
struct PresentWait {
  bool waits = false;
  std::uint64_t since_ns = 0;
  GapPhase phase = GapPhase::kUnknown;
};

/// Whether the device still works on what a process gave it before it began to wait.
[[nodiscard]] inline bool queue_works(const JobPage& page) noexcept {
  const std::uint64_t issued = page.queue_issued.load(std::memory_order_relaxed);
  return issued != 0 && page.queue_done.load(std::memory_order_relaxed) != issued;
}

/// Reads it off a page, told or concluded from silence. @param now_ns  CLOCK_MONOTONIC.
[[nodiscard]] inline PresentWait present_wait(const JobPage& page, std::uint64_t now_ns) noexcept {
  const auto activity = static_cast<Activity>(page.activity.load(std::memory_order_acquire));
  if (activity == Activity::kWaiting) {
    if (queue_works(page)) return {};
    return {true, page.activity_since_ns.load(std::memory_order_relaxed),
            static_cast<GapPhase>(page.wait_phase.load(std::memory_order_relaxed))};
  }
  const std::uint64_t quiet = page.quiet_ns.load(std::memory_order_relaxed);
  const std::uint64_t touched = page.last_touch_ns.load(std::memory_order_relaxed);
  if (activity == Activity::kPaused || quiet == 0 || touched == 0 || touched >= now_ns ||
      now_ns - touched < quiet) {
    return {};
  }
  return {true, touched, GapPhase::kRequests};
}

/// Whether a wait is one whose end is told, of a process whose device has said that it is done.
/// Between two looks at a pause, and at silence, work may have begun that nobody told of.
[[nodiscard]] inline bool is_sure(const JobPage& page, const PresentWait& wait) noexcept {
  const bool told = (phase_bit(wait.phase) & (kPauses | phase_bit(GapPhase::kUnknown) |
                                              phase_bit(GapPhase::kRequests))) == 0;
  return wait.waits && told && page.queue_issued.load(std::memory_order_relaxed) != 0;
}

/// What the coordinator tells one job's processes between two messages.
struct DeviceEntry {
  Word sequence;         ///< odd while the coordinator writes this entry
  char job_id[kIdSize];  ///< empty: entry not in use
  Word job_class;
  Word law;             ///< LawId
  Word share_min_ppm;   ///< trickle: this much it may always use
  Word share_max_ppm;   ///< 0: paused
  Word paused;          ///< 1: gate closed by `commensal pause`
  Word lease_until_ns;  ///< a guaranteed entry counts as alive until then
  Word memory_grant;    ///< bytes
  Word slo_ppm;         ///< allowed slowdown of the guaranteed side
  Word turn_until_ns;   ///< law token_window: end of its newest turn; 0: no turns are given
  Word gap_rules;       ///< PackedGapRules::gaps; 0: not known
  Word flight_rules;    ///< PackedGapRules::flight
  Word gang_epoch;      ///< number of its gang's newest switch; 0: each process is gated by itself
  /// Newest revision at which its limit was taken back while it did not answer: a process that has
  /// not applied this one or a newer one takes no more memory of the device; 0: never.
  Word memory_recalled;
  Word change_rules;  ///< PackedGapRules::change
  std::uint64_t reserved[1];
};
static_assert(std::is_standard_layout_v<DeviceEntry>);
static_assert(sizeof(DeviceEntry) == 192);

inline constexpr std::size_t kCoreWords = 4;

/// The CPUs that a job's threads should keep to, one bit each; all zero: those that it has.
struct CoreWords {
  Word cpus[kCoreWords];
};

/// One device's page. Writer: the node coordinator.
struct DevicePage {
  PageHeader header;
  char device_id[kIdSize];
  Word heartbeat_ns;     ///< at least every 500 ms while the coordinator lives
  Word revision;         ///< grows with every change of any entry
  Word memory_capacity;  ///< bytes
  Word cores;
  Word guaranteed_alive;  ///< entries of guaranteed jobs with a live lease
  Word trickle_ppm;       ///< share of an opportunistic job while the coordinator is silent
  std::uint64_t reserved[6];
  DeviceEntry entries[kMaxDeviceEntries];
  // Added without a new version: zero in the page of an older writer
  CoreWords core_sets[kMaxDeviceEntries];  ///< of the entry of that index, under its `sequence`
};
static_assert(std::is_standard_layout_v<DevicePage>);
static_assert(offsetof(DevicePage, heartbeat_ns) == 96);
static_assert(offsetof(DevicePage, entries) == 192);
static_assert(offsetof(DevicePage, core_sets) == 192 + kMaxDeviceEntries * sizeof(DeviceEntry));
static_assert(sizeof(DevicePage) <= kPageSize);

/// Says what is wrong with a mapped page; empty: it can be used. Checks magic, version and size.
/// @param mapped  bytes that are mapped behind `page`.
[[nodiscard]] const char* check_page(const void* page, std::size_t mapped,
                                     std::uint64_t magic) noexcept;

}  // namespace commensal::wire
