// SPDX-License-Identifier: Apache-2.0
// Turns the words of the shared pages into one observation.
#include "torch_ext/runtime/peer_observer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "allocator/base/relaxed.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal {
namespace {

constexpr double kPerMillion = 1e-6;
constexpr std::uint64_t kLongestWait = 3'600'000'000'000;  // an hour: pages may hold anything

// Pages may hold anything: a sign of life from the future is none, and shares are fractions.
bool fresh(std::uint64_t heartbeat, TimePoint now) noexcept {
  const Duration age = now - from_page_time(heartbeat);
  return heartbeat != 0 && age < PeerObserver::kSilence && age > -PeerObserver::kSilence;
}

bool lease_runs(std::uint64_t until, TimePoint now) noexcept {
  const Duration left = from_page_time(until) - now;
  return left > Duration::zero() && left < PeerObserver::kLongestLease;
}

double fraction(const wire::Word& ppm) noexcept {
  return std::min(1.0, static_cast<double>(ppm.load(kRelaxed)) * kPerMillion);
}

bool in_use(const wire::DeviceEntry& entry) noexcept { return entry.job_id[0] != '\0'; }

bool is_guaranteed(const wire::DeviceEntry& entry) noexcept {
  return entry.job_class.load(kRelaxed) == static_cast<std::uint64_t>(JobClass::kGuaranteed);
}

/// When the present wait of a process is likely to end at the earliest; zero: not known.
TimePoint expected_end(const wire::JobPage& page, wire::GapPhase phase, TimePoint since,
                       TimePoint now) noexcept {
  const auto index = static_cast<std::size_t>(phase);
  const std::uint64_t first = page.wait_expected_end_ns.load(kRelaxed);
  const bool has_table = page.header.size >= wire::kGapTableOffset + sizeof(wire::GapTable);
  if (phase == wire::GapPhase::kUnknown || index >= wire::kGapPhases || !has_table) {
    return first == 0 ? TimePoint{} : from_page_time(first);
  }
  // Given that it has lasted so long already: the more unusual it is, the longer it may last.
  const Duration waited = std::max(Duration::zero(), now - since);
  const auto& table = wire::gap_table(page).expected_ns[index];
  const std::uint64_t length =
      table[wire::gap_bucket(static_cast<std::uint64_t>(waited.count()))].load(kRelaxed);
  if (length == 0) return TimePoint{};
  return from_page_time(to_page_time(since) + std::min<std::uint64_t>(length, kLongestWait));
}

/// Adds a wait of a process to what is seen: the first of several to end counts.
void observe_wait(const wire::JobPage& page, const wire::PresentWait& wait,
                  DeviceObservation& seen) noexcept {
  const wire::GapPhase phase = wait.phase;
  if (phase != wire::GapPhase::kUnknown) seen.gap_phases |= wire::phase_bit(phase);
  const TimePoint expected = expected_end(page, phase, from_page_time(wait.since_ns), seen.now);
  if (expected == TimePoint{}) return;
  const bool first = seen.idle_expected_end == TimePoint{};
  seen.idle_expected_end = first ? expected : std::min(seen.idle_expected_end, expected);
}

/// Adds what another device asks for.
void tighten(DeviceObservation& seen, const DeviceObservation& other) noexcept {
  seen.paused = seen.paused || other.paused;
  seen.share_max = std::min(seen.share_max, other.share_max);
  if (other.turn_until != TimePoint{}) {
    const bool first = seen.turn_until == TimePoint{};
    seen.turn_until = first ? other.turn_until : std::min(seen.turn_until, other.turn_until);
  }
  if (!other.guaranteed_present) return;  // rules are about guaranteed jobs
  const bool first = !seen.guaranteed_present;
  seen.slo = first ? other.slo : std::min(seen.slo, other.slo);
  seen.trickle = first ? other.trickle : std::min(seen.trickle, other.trickle);
  seen.least_trickle = std::min(seen.least_trickle, other.least_trickle);
  seen.gap_rules = first ? other.gap_rules : wire::both(seen.gap_rules, other.gap_rules);
  seen.guaranteed_present = true;
}

}  // namespace

struct PeerObserver::Pages {
  std::vector<wire::MappedPage> kept;
};

PeerObserver::PeerObserver(JobId job, wire::JobPage* own)
    : job_(std::move(job)), own_page_(own), pages_(std::make_unique<Pages>()) {}
PeerObserver::~PeerObserver() = default;

void PeerObserver::use(Device& device, wire::MappedPage page) {
  const auto* found = page.as<wire::DevicePage>();
  const char* wrong = wire::check_page(found, wire::kPageSize, wire::kDevicePageMagic);
  if (*wrong != '\0') throw std::runtime_error(std::string("device page: ") + wrong);
  pages_->kept.push_back(std::move(page));
  device.own_entry.store(UINT64_MAX, kRelaxed);
  device.page.store(found, std::memory_order_seq_cst);  // see `recalled`
}

void PeerObserver::set_device_page(wire::MappedPage page) { use(devices_[0], std::move(page)); }

void PeerObserver::add_device_page(wire::MappedPage page) {
  const auto id = [](const wire::DevicePage* of) {
    return std::string_view(of->device_id, ::strnlen(of->device_id, wire::kIdSize));
  };
  const std::size_t end = devices_end_.load(kRelaxed);
  std::size_t at = 1;
  while (at < end && id(devices_[at].page.load(kRelaxed)) != id(page.as<wire::DevicePage>())) ++at;
  if (at == devices_.size()) {
    throw std::runtime_error("too many devices to watch: " + std::to_string(kMaxDevices));
  }
  use(devices_[at], std::move(page));
  devices_end_.store(std::max(end, at + 1), std::memory_order_release);
}

void PeerObserver::add_peer(std::int64_t pid, wire::MappedPage page) {
  const auto* job = page.as<wire::JobPage>();
  const char* wrong = wire::check_page(job, wire::kPageSize, wire::kJobPageMagic);
  if (*wrong != '\0') throw std::runtime_error(std::string("page of a peer: ") + wrong);
  const bool own =
      job_.str() == std::string_view(job->job_id, ::strnlen(job->job_id, wire::kIdSize));
  remove_peer(pid);
  pages_->kept.push_back(std::move(page));
  if ((own ? ranks_ : guaranteed_).add(pid, job)) return;
  pages_->kept.pop_back();
  throw std::runtime_error(std::string("too many ") + (own ? "ranks" : "guaranteed processes") +
                           " to watch: " + std::to_string(kMaxPeers));
}

void PeerObserver::remove_peer(std::int64_t pid) noexcept {
  guaranteed_.remove(pid);
  ranks_.remove(pid);
}

bool PeerObserver::PeerList::add(std::int64_t pid, const wire::JobPage* page) noexcept {
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (peers[i].page.load(kRelaxed) != nullptr) continue;
    peers[i].pid = pid;
    peers[i].page.store(page, std::memory_order_release);
    end.store(std::max(end.load(kRelaxed), i + 1), std::memory_order_release);
    return true;
  }
  return false;
}

void PeerObserver::PeerList::remove(std::int64_t pid) noexcept {
  for (Peer& peer : peers) {
    if (peer.pid == pid) peer.page.store(nullptr, std::memory_order_release);
  }
}

std::size_t PeerObserver::PeerList::count() const noexcept {
  return static_cast<std::size_t>(std::count_if(peers.begin(), peers.end(), [](const Peer& peer) {
    return peer.page.load(kRelaxed) != nullptr;
  }));
}

DeviceObservation PeerObserver::observe(TimePoint now) const noexcept {
  DeviceObservation seen;
  seen.now = now;
  seen.paused = paused_.load(kRelaxed);
  observe_page(devices_[0], seen);
  const std::size_t end = devices_end_.load(std::memory_order_acquire);
  for (std::size_t i = 1; i < end; ++i) {
    DeviceObservation other;
    other.now = now;
    observe_page(devices_[i], other);
    tighten(seen, other);
  }
  observe_peers(seen);
  return seen;
}

std::optional<PeerObserver::CoreWord> PeerObserver::cores_left(TimePoint now) const noexcept {
  constexpr int kAttempts = 4;
  const DeviceObservation seen = observe(now);
  CoreWord word{seen.coordinator_alive, seen.guaranteed_present, {}};
  const wire::DevicePage* page = devices_[0].page.load(std::memory_order_acquire);
  const wire::DeviceEntry* own = page != nullptr ? own_entry(devices_[0], *page) : nullptr;
  if (own == nullptr) return word;
  const wire::CoreWords& cores = page->core_sets[own - &page->entries[0]];
  for (int i = 0; i < kAttempts; ++i) {
    const std::uint64_t sequence = own->sequence.load(std::memory_order_acquire);
    wire::CoreSet::Words words{};
    for (std::size_t w = 0; w < words.size(); ++w) {
      words[w] = cores.cpus[w].load(std::memory_order_acquire);
    }
    if (sequence % 2 != 0 || own->sequence.load(kRelaxed) != sequence) continue;
    word.left = wire::CoreSet{words};
    return word;
  }
  return std::nullopt;
}

// Of the total order of DeviceClaim: neither may be read before what the caller wrote.
std::uint64_t PeerObserver::recalled() const noexcept {
  const wire::DevicePage* const page = devices_[0].page.load(std::memory_order_seq_cst);
  const wire::DeviceEntry* const own = page != nullptr ? own_entry(devices_[0], *page) : nullptr;
  return own != nullptr ? own->memory_recalled.load(std::memory_order_seq_cst) : 0;
}

std::uint64_t PeerObserver::watched_page() const noexcept {
  const wire::DevicePage* const page = devices_[0].page.load(std::memory_order_seq_cst);
  const bool listed = page != nullptr && own_entry(devices_[0], *page) != nullptr;
  return listed ? page->header.made_ns : 0;
}

const wire::DeviceEntry* PeerObserver::own_entry(const Device& device,
                                                 const wire::DevicePage& page) const noexcept {
  constexpr std::uint64_t kIndexBits = 8;
  const std::uint64_t revision = page.revision.load(std::memory_order_acquire);
  const std::uint64_t cached = device.own_entry.load(kRelaxed);
  if (cached != UINT64_MAX && (cached >> kIndexBits) == revision) {
    const std::uint64_t index = cached & ((1U << kIndexBits) - 1);
    return index == 0 ? nullptr : &page.entries[index - 1];
  }
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < wire::kMaxDeviceEntries && found == 0; ++i) {
    const wire::DeviceEntry& entry = page.entries[i];
    const std::string_view id(entry.job_id, ::strnlen(entry.job_id, wire::kIdSize));
    if (!id.empty() && id == job_.str()) found = i + 1;
  }
  device.own_entry.store((revision << kIndexBits) | found, kRelaxed);
  return found == 0 ? nullptr : &page.entries[found - 1];
}

void PeerObserver::observe_page(const Device& device, DeviceObservation& seen) const noexcept {
  const wire::DevicePage* const at = device.page.load(std::memory_order_acquire);
  if (at == nullptr) return;
  const wire::DevicePage& page = *at;
  seen.coordinator_alive = fresh(page.heartbeat_ns.load(kRelaxed), seen.now);
  seen.trickle = seen.least_trickle = fraction(page.trickle_ppm);
  const wire::DeviceEntry* own = own_entry(device, page);
  if (own != nullptr) {
    seen.paused = seen.paused || own->paused.load(kRelaxed) != 0;
    // Of 0 while a guaranteed job is measured alone: who can no longer open again closes nothing. A
    // share of 0 that was asked for is told in a message, too.
    const double share = fraction(own->share_max_ppm);
    if (seen.coordinator_alive || share > 0.0) seen.share_max = std::min(seen.share_max, share);
    if (const double slo = fraction(own->slo_ppm); slo > 0.0) seen.slo = slo;
    const std::uint64_t turn = own->turn_until_ns.load(kRelaxed);
    if (turn != 0) seen.turn_until = from_page_time(turn);
    seen.gap_rules = wire::unpack({own->gap_rules.load(kRelaxed), own->flight_rules.load(kRelaxed),
                                   own->change_rules.load(kRelaxed)});
  }
  if (seen.coordinator_alive) {
    if (own != nullptr) observe_gang(own->gang_epoch.load(kRelaxed), seen);
    if (own != nullptr) seen.trickle = fraction(own->share_min_ppm);
    const std::uint64_t itself = own != nullptr && is_guaranteed(*own) ? 1 : 0;
    seen.guaranteed_present = page.guaranteed_alive.load(kRelaxed) > itself;
    return;
  }
  // Nobody counts any more: leases on the page run out by themselves.
  for (const wire::DeviceEntry& entry : page.entries) {
    if (&entry == own || !in_use(entry) || !is_guaranteed(entry)) continue;
    if (lease_runs(entry.lease_until_ns.load(kRelaxed), seen.now)) seen.guaranteed_present = true;
  }
}

void PeerObserver::observe_gang(std::uint64_t epoch, DeviceObservation& seen) const noexcept {
  if (epoch == 0 || own_page_ == nullptr) return;
  seen.gang.epoch = epoch;
  // The own count first: what the others begin meanwhile can only make this rank look behind.
  seen.gang.begun = own_page_->collectives_begun.load(std::memory_order_acquire);
  seen.gang.front = seen.gang.begun;
  ranks_.each([&](const wire::JobPage& rank) {
    // Nobody waits for a rank that is stopped or dead, as far as can be told.
    if (!fresh(rank.heartbeat_ns.load(kRelaxed), seen.now)) return;
    const std::uint64_t begun = rank.collectives_begun.load(std::memory_order_acquire);
    seen.gang.front = std::max(seen.gang.front, begun);
  });
}

void PeerObserver::show_gang(std::uint64_t epoch, std::uint64_t stand) const noexcept {
  if (own_page_ == nullptr) return;
  wire::JobPage& own = *own_page_;
  if (own.gang_epoch.load(kRelaxed) != epoch) {
    own.gang_stand.store(0, kRelaxed);  // who reads the new epoch shall not read an old stand
    own.gang_epoch.store(epoch, std::memory_order_release);
  }
  own.gang_stand.store(stand, std::memory_order_release);
}

void PeerObserver::observe_peers(DeviceObservation& seen) const noexcept {
  bool any = false;
  bool all = true;
  bool draining = true;
  bool sure = true;
  TimePoint busy_since = TimePoint::max();
  guaranteed_.each([&](const wire::JobPage& peer) {
    const wire::JobPage* const page = &peer;
    any = true;
    ++seen.processes;
    // The number first: a step that ends between the two loads makes it one too small, not the end
    // too old.
    seen.steps += page->step_number.load(std::memory_order_acquire);
    seen.step_end = std::max(seen.step_end, from_page_time(page->step_end_ns.load(kRelaxed)));
    const auto activity =
        static_cast<wire::Activity>(page->activity.load(std::memory_order_acquire));
    const wire::PresentWait wait = wire::present_wait(*page, to_page_time(seen.now));
    const TimePoint since =
        from_page_time(wait.waits ? wait.since_ns : page->activity_since_ns.load(kRelaxed));
    seen.last_touch = std::max(seen.last_touch, from_page_time(page->last_touch_ns.load(kRelaxed)));
    if (!wait.waits && activity != wire::Activity::kPaused) {
      all = false;
      busy_since = std::min(busy_since, since);
      // Who waits while its device works has rung already, and the device cannot; nor can a process
      // whose waits are concluded from silence.
      const bool waits_for_device = activity == wire::Activity::kWaiting;
      draining = draining && waits_for_device;
      if (!seen.bell && !waits_for_device && page->quiet_ns.load(kRelaxed) == 0) {
        seen.bell = {&page->activity, static_cast<std::uint32_t>(activity)};
      }
    } else {
      seen.idle_since = std::max(seen.idle_since, since);
      if (wait.waits) observe_wait(*page, wait, seen);
      sure = sure && wait.waits && wire::is_sure(*page, wait);
    }
    // A job that goes on after its coordinator died must not be disturbed either.
    if (!seen.coordinator_alive && fresh(page->heartbeat_ns.load(kRelaxed), seen.now)) {
      seen.guaranteed_present = true;
    }
  });
  seen.all_waiting = any && all;
  seen.draining = any && !all && draining;
  seen.surely_idle = any && all && sure;
  if (busy_since != TimePoint::max()) seen.busy_since = busy_since;
}

}  // namespace commensal
