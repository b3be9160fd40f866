// SPDX-License-Identifier: Apache-2.0
// A guaranteed job and opportunistic ones on a card in virtual time: scripted loops through the
// real recorder, observer, gate and laws.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/torch_ext/gate/virtual_card.h"
#include "tests/torch_ext/gate/virtual_time.h"
#include "tests/torch_ext/runtime/page_file.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/peer_observer.h"

namespace commensal::testing {

/// What a training loop does in each step: gives the card work, then waits.
struct GuaranteedScript {
  enum class Pause : std::uint8_t {
    kLoader,          ///< for a batch, in the loader
    kBoundary,        ///< after the optimizer: it logs, or works on the CPU
    kSynchronisation  ///< it waits for the card (`loss.item()`), then works on the CPU
  };
  Duration busy{};    ///< the host gives work for so long
  Duration wait{};    ///< from the begin of the pause to its end
  Duration drains{};  ///< of that, the card still works on what it was given
  Pause pause = Pause::kLoader;
  double jitter = 0.0;  ///< of the wait: evenly between 1 - jitter and 1 + jitter times
  Duration arrives{};   ///< after the others
  Duration leaves{};    ///< zero: at the end
  double longer = 1.0;  ///< times the work of a step from the middle of the run on
};

struct OpportunisticScript {
  Duration op = std::chrono::microseconds{60};  ///< of one kernel
  std::size_t ops = 330;                        ///< in a step
  Duration
      host{};  ///< that the host takes for an op besides the launch; host-bound if more than op
  Duration hesitates{};  ///< and besides at each op of `kHesitates`: garbage is collected
  bool graph = false;    ///< each op is a graph of kernels
  static constexpr std::size_t kHesitates = 16;
  /// Of an op, in the mean.
  [[nodiscard]] Duration host_time() const { return host + hesitates / kHesitates; }
};

struct Setting {
  std::string law = "gap";
  double share_max = 1.0;  ///< the coordinator's bound
  Duration turn{};         ///< law token_window: of its turns, which leave as much between them as
  Duration between{};      ///< this; zero: none are given
  Duration in_flight = std::chrono::microseconds{500};
  double trickle = 0.01;
  double slo = 0.01;
  Duration lasts = std::chrono::seconds{6};
};

/// What came of it.
struct Outcome {
  double used = 0.0;  ///< part of the time in which kernels of opportunistic jobs ran
  double busy = 0.0;  ///< in which the guaranteed job's did
  bool operator==(const Outcome&) const = default;
  /// Of the guaranteed job: when each ended on the card, and how long after the one before.
  struct Step {
    Duration end{};
    Duration took{};
    bool operator==(const Step&) const = default;
  };
  std::vector<Step> steps;
  std::vector<Duration> openings;  ///< from the card running dry to the first op in that gap
  std::uint64_t hand_overs = 0;
  std::vector<std::pair<std::string, Duration>> closed_by;
};

/// Runs such a pair once.
class VirtualPair {
 public:
  VirtualPair(const CardTimes& times, const GuaranteedScript& guaranteed,
              std::vector<OpportunisticScript> opportunistic, Setting setting)
      : times_(times),
        script_(guaranteed),
        opportunistic_(std::move(opportunistic)),
        setting_(std::move(setting)) {
    time_.on_advance([this](TimePoint to) { card_.advance(to); });
    card_.watch(process_);
    end_ = time_.now() + setting_.lasts;
    begin_ = time_.now();
    device_.header = {wire::kDevicePageMagic, wire::kPageVersion,
                      static_cast<std::uint32_t>(wire::kPageSize), 1, 1};
    put(0, "guaranteed", JobClass::kGuaranteed);
    for (std::size_t i = 0; i < opportunistic_.size(); ++i) {
      put(i + 1, ("opportunistic-" + std::to_string(i)).c_str(), JobClass::kOpportunistic);
    }
  }

  Outcome run() {
    std::vector<std::function<void()>> actors{[this] { coordinate(); }, [this] { train(); }};
    for (std::size_t i = 0; i < opportunistic_.size(); ++i) {
      jobs_.push_back(std::make_unique<Job>(*this, i));
      actors.emplace_back([this, i] { jobs_[i]->work(); });
    }
    time_.run(actors);
    const double all = seconds(end_ - begin_);
    Outcome outcome;
    outcome.openings = card_.openings();
    outcome.busy = seconds(card_.ran(process_)) / all;
    for (const auto& job : jobs_) {
      outcome.used += seconds(card_.ran(job->process)) / all;
      outcome.hand_overs += job->stats.hand_overs;
      outcome.closed_by.insert(outcome.closed_by.end(), job->stats.closed_by.begin(),
                               job->stats.closed_by.end());
    }
    for (std::size_t i = 1; i < step_ends_.size(); ++i) {
      const auto from = card_.reached(step_ends_[i - 1]);
      const auto to = card_.reached(step_ends_[i]);
      if (from && to && *to <= end_) outcome.steps.push_back({*to - begin_, *to - *from});
    }
    return outcome;
  }

 private:
  static double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

  /// The card, as the job's page knows it.
  class Queue final : public DeviceQueue {
   public:
    explicit Queue(VirtualPair& pair) : pair_(pair) {}
    [[nodiscard]] bool mark(std::uint64_t number) noexcept override {
      pair_.card_.write(pair_.process_, pair_.page_.page().queue_done, number);
      return true;
    }

   private:
    VirtualPair& pair_;
  };

  /// Counts how often the pages are looked at.
  class Looks final : public DeviceObserver {
   public:
    explicit Looks(const DeviceObserver& inner) : inner_(inner) {}
    [[nodiscard]] DeviceObservation observe(TimePoint now) const noexcept override {
      looks.fetch_add(1);
      return inner_.observe(now);
    }
    mutable std::atomic<std::uint64_t> looks{0};

   private:
    const DeviceObserver& inner_;
  };

  struct Job {
    Job(VirtualPair& of, std::size_t number)
        : pair(of),
          script(of.opportunistic_[number]),
          process(of.card_.add_process()),
          observer(JobId{"opportunistic-" + std::to_string(number)}),
          looks(observer),
          clock(
              of.card_, process, [&of](Duration time) { of.time_.sleep_for(time); },
              of.times_.mark),
          gate(
              make_pacing_law(of.setting_.law), looks, of.time_,
              [this](Duration time, const Doorbell& bell) { sleep(time, bell); },
              DeviceTime{nullptr, &clock}),
          anywhere(script.ops) {
      observer.set_device_page(wire::MappedPage(of.device_fd_.get(), wire::kPageSize, false));
      observer.add_peer(1, wire::MappedPage(file_of(of.page_).get(), wire::kPageSize, false));
    }

    void sleep(Duration time, const Doorbell& bell) {
      spend_looks();
      pair.time_.sleep_at(bell, pair.time_.now() + time + pair.times_.wake_by_timer,
                          pair.times_.wake_by_bell);
    }
    void spend_looks() {
      const std::uint64_t seen = looks.looks.load();
      const auto count = static_cast<Duration::rep>(seen - std::exchange(spent, seen));
      if (count > 0) pair.time_.sleep_for(count * pair.times_.look);
    }
    void work() {
      gate.refresh();
      std::size_t issued = 0;
      for (std::size_t at = 0; pair.time_.now() < pair.end_; at = (at + 1) % script.ops) {
        if (at == 0) gate.begin_part(StepPart::kStep);
        const OpEstimate known{anywhere[at]};
        const OpEstimate op = script.graph ? known.as_graph() : known;
        const bool gated = gate.wants_callback();
        if (gated && !gate.try_enter_op(op)) gate.wait_op(op);
        spend_looks();
        pair.launch(process, script.op);
        if (gated) gate.leave_op(op);
        if (script.host > Duration::zero()) pair.time_.sleep_for(script.host);
        const bool hesitates = ++issued % OpportunisticScript::kHesitates == 0;
        if (hesitates && script.hesitates > Duration::zero()) {
          pair.time_.sleep_for(script.hesitates);
        }
      }
    }

    VirtualPair& pair;
    const OpportunisticScript script;
    const VirtualCard::Process process;
    PeerObserver observer;
    const Looks looks;
    VirtualWorkClock clock;
    Gate gate;
    std::vector<OpDuration> anywhere;
    std::uint64_t spent = 0;
    GateStats stats;  // at the end
  };

  void put(std::size_t index, const char* id, JobClass job_class) {
    wire::DeviceEntry& entry = device_.entries[index];
    std::strncpy(entry.job_id, id, wire::kIdSize - 1);
    entry.job_class.store(static_cast<std::uint64_t>(job_class));
    entry.slo_ppm.store(static_cast<std::uint64_t>(setting_.slo * 1e6));
    entry.share_min_ppm.store(static_cast<std::uint64_t>(setting_.trickle * 1e6));
    entry.share_max_ppm.store(static_cast<std::uint64_t>(setting_.share_max * 1e6));
    const auto jobs = static_cast<Duration::rep>(std::max<std::size_t>(1, opportunistic_.size()));
    wire::GapRules rules;
    rules.known = true;
    rules.in_flight = setting_.in_flight / jobs;
    rules.change = 2 * times_.change;
    const wire::PackedGapRules packed = wire::pack(rules);
    entry.gap_rules.store(packed.gaps);
    entry.flight_rules.store(packed.flight);
    entry.change_rules.store(packed.change);
    device_.revision.fetch_add(1);
  }

  /// The node coordinator: heartbeats, who is there, turns.
  void coordinate() {
    constexpr Duration kPeriod = std::chrono::milliseconds{5};
    device_.trickle_ppm.store(static_cast<std::uint64_t>(setting_.trickle * 1e6));
    TimePoint turn = begin_;
    while (time_.now() < end_) {
      const TimePoint now = time_.now();
      device_.heartbeat_ns.store(to_page_time(now));
      page_.page().heartbeat_ns.store(to_page_time(now));
      device_.guaranteed_alive.store(is_there(now) ? 1 : 0);
      device_.entries[0].lease_until_ns.store(is_there(now) ? to_page_time(now) + 1'000'000'000
                                                            : 0);
      if (setting_.turn > Duration::zero() && now >= turn) {
        for (std::size_t i = 1; i <= opportunistic_.size(); ++i) {
          device_.entries[i].turn_until_ns.store(to_page_time(now + setting_.turn));
        }
        turn = now + setting_.turn + setting_.between;
      }
      for (const auto& job : jobs_) job->gate.refresh();
      time_.sleep_for(std::min<Duration>(kPeriod, turn > now ? turn - now : kPeriod));
    }
    for (const auto& job : jobs_) {
      job->stats = job->gate.stats();
      job->gate.disarm_in_child();  // nobody waits at it any more
    }
  }
  [[nodiscard]] bool is_there(TimePoint now) const {
    return now - begin_ >= script_.arrives &&
           (script_.leaves == Duration::zero() || now - begin_ < script_.leaves);
  }

  /// Launches a kernel; waits while the process has given as many as it may.
  void launch(VirtualCard::Process process, Duration takes) {
    while (card_.queued(process) >= times_.launch_queue && time_.now() < end_) {
      time_.sleep_until(card_.next_change());
    }
    time_.sleep_for(times_.launch);
    card_.kernel(process, takes);
  }
  void wait_for(VirtualCard::Event event) {
    while (!card_.reached(event) && time_.now() < end_) time_.sleep_until(card_.next_change());
  }

  /// The guaranteed job's loop.
  void train() {
    ActivityRecorder recorder(page_.page(), time_, &read_thread_use, &VirtualTime::ring);
    recorder.follow_queue(queue_);
    time_.sleep_for(script_.arrives);
    const TimePoint leaves =
        script_.leaves == Duration::zero() ? end_ : std::min(end_, begin_ + script_.leaves);
    recorder.worked();
    while (time_.now() < leaves) {
      step(recorder);
    }
    page_.page().activity.store(static_cast<std::uint64_t>(wire::Activity::kUnknown));
  }
  void step(ActivityRecorder& recorder) {
    constexpr Duration kKernel = std::chrono::milliseconds{1};
    const double longer = time_.now() - begin_ > setting_.lasts / 2 ? script_.longer : 1.0;
    const auto scaled = [longer](Duration time) {
      return Duration{static_cast<Duration::rep>(longer * static_cast<double>(time.count()))};
    };
    const Duration busy = scaled(script_.busy);
    const Duration works = busy + scaled(script_.drains);
    const TimePoint from = time_.now();
    const auto kernels = std::max<Duration::rep>(1, works / kKernel);
    for (Duration::rep i = 0; i < kernels; ++i) {
      card_.kernel(process_, works / kernels);
      time_.sleep_until(from + busy * (i + 1) / kernels);
    }
    recorder.trained();
    step_ends_.push_back(card_.record(process_));
    auto& page = page_.page();
    page.step_end_ns.store(to_page_time(time_.now()));
    page.step_number.fetch_add(1);
    const Duration wait{static_cast<Duration::rep>(static_cast<double>(script_.wait.count()) *
                                                   (1.0 + script_.jitter * next_random()))};
    time_.sleep_for(times_.mark);
    switch (script_.pause) {
      case GuaranteedScript::Pause::kLoader:
        recorder.fetch_begin();
        time_.sleep_for(wait);
        recorder.wait_end();
        break;
      case GuaranteedScript::Pause::kBoundary:
        recorder.boundary_begin();
        time_.sleep_for(wait);
        recorder.worked();
        break;
      case GuaranteedScript::Pause::kSynchronisation:
        wait_for(step_ends_.back());
        recorder.synchronised();
        time_.sleep_for(wait);
        recorder.worked();
        break;
    }
  }
  /// Between -1 and 1, the same numbers in each run.
  double next_random() {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(random_ >> 33U) / static_cast<double>(1U << 30U) - 1.0;
  }

  const CardTimes times_;
  const GuaranteedScript script_;
  const std::vector<OpportunisticScript> opportunistic_;
  const Setting setting_;
  VirtualTime time_;
  VirtualCard card_{times_};
  const VirtualCard::Process process_ = card_.add_process();
  TimePoint begin_;
  TimePoint end_;
  wire::UniqueFd device_fd_ = wire::make_page_memfd("virtual-card");
  wire::MappedPage device_map_{device_fd_.get(), wire::kPageSize, true};
  wire::DevicePage& device_ = *device_map_.as<wire::DevicePage>();
  OwnPage page_{JobId{"guaranteed"}, JobClass::kGuaranteed, 0};
  Queue queue_{*this};
  std::vector<VirtualCard::Event> step_ends_;
  std::uint64_t random_ = 1;
  std::vector<std::unique_ptr<Job>> jobs_;
};

}  // namespace commensal::testing
