// SPDX-License-Identifier: Apache-2.0
// The daemon's loop.
#include "coordinator/node/daemon.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "coordinator/node/background.h"
#include "coordinator/node/cluster_link.h"
#include "coordinator/node/device_page.h"
#include "coordinator/node/gpu_monitor.h"
#include "coordinator/node/group_weight.h"
#include "coordinator/node/instance_place.h"
#include "coordinator/node/node_coordinator.h"
#include "coordinator/node/page_server.h"
#include "coordinator/node/process_use.h"
#include "coordinator/node/service.h"
#include "coordinator/node/stopped_processes.h"
#include "coordinator/wire/paths.h"
#include "coordinator/wire/router_socket.h"

namespace commensal::node {
namespace {

using namespace std::chrono_literals;

constexpr Duration kBeat = 100ms;
constexpr Duration kHeartbeat = 2 * kBeat;
constexpr Duration kRecovery = 1500ms;
constexpr Duration kMeasuring = 10 * kBeat;  // between two looks at what a job's processes hold
constexpr int kMessagesAtOnce = 256;
// Who asks for orders of the cluster. No peer of a socket has such a name: where ZeroMQ gives one
// that begins with a zero, it has five bytes, and nobody may take one.
constexpr std::string_view kOrderPeer{"\0order ", 7};

Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

std::filesystem::path log_file(const DaemonOptions& options) {
  if (!options.log_file.empty()) return options.log_file;
  if (options.foreground) return {};
  return wire::log_path(options.runtime_dir, options.instance);
}

CoordinatorConfig coordinator_config(const DaemonOptions& options, const InstancePlace& place) {
  CoordinatorConfig config;
  config.instance = options.instance;
  config.version = options.version;
  config.socket = wire::control_socket_path(place.folder(), options.instance).native();
  config.law = options.law;
  config.memory.headroom = options.headroom;
  config.charge_unmanaged = options.covers_all.value_or(!options.memory_budget.bytes);
  config.resort.may_end = options.may_end;
  config.compute.slo = options.slo;
  config.compute.trickle = options.trickle;
  config.compute.period = from_seconds(options.control_period_seconds);
  if (place.after_crash()) config.recovery = kRecovery;
  return config;
}

class Daemon {
 public:
  Daemon(const DaemonOptions& options, InstancePlace& place, std::shared_ptr<spdlog::logger> log)
      : log_(std::move(log)),
        place_(place),
        options_(options),
        idle_exit_(from_seconds(options.idle_exit_seconds)),
        silence_(from_seconds(options.silence_seconds)),
        control_path_(wire::control_socket_path(place.folder(), options.instance)),
        pages_path_(wire::pages_socket_path(place.folder(), options.instance)),
        signals_(block_signals()),
        coordinator_(coordinator_config(options, place),
                     make_host_device(read_host_facts(), options.memory_budget, options.cores),
                     getpid(), read_start_ticks(getpid()), clock_.now(), read_topology(),
                     [this](const std::string& id) { return find_device(id); }),
        trickle_(options.trickle),
        gpu_budget_(options.gpu_budget),
        pages_(pages_path_.native(),
               [this](const std::string& device) { return shown_.at(device).page.reader(); }),
        control_(wire::ipc_endpoint(control_path_)),
        stopped_(options.runtime_dir / (options.instance + ".stopped")) {
    if (!options.cluster.empty()) {
      link_.emplace(ClusterLink::Options{options.cluster, options.keys_dir, options.key}, log_,
                    clock_.now());
    }
    const Device& device = coordinator_.host().device();
    log_->info("commensald {} '{}' began: pid {}, {} cores, {} ({})", options.version,
               options.instance, getpid(), device.cores, to_string(device.capacity), device.reason);
    publish(clock_.now());
    follow_handovers();
    place_.note({control_path_, pages_path_});
    if (place_.descriptor() >= 0) add_other(place_.descriptor());
    if (const std::string warning = place_.warning(); !warning.empty()) log_->warn("{}", warning);
  }

  void run() {
    while (!leaving_) {
      wait();
      const TimePoint now = clock_.now();
      serve_control(now);
      keep_time(now);
      flush(now);
    }
  }

  /// Removes the sockets. @return true if no job is left behind.
  bool leave() {
    std::error_code ignored;
    if (place_.is_whole()) {
      std::filesystem::remove(control_path_, ignored);
      std::filesystem::remove(pages_path_, ignored);
    }
    return !coordinator_.has_jobs();
  }

 private:
  using ProcessKey = PageServer::ProcessKey;

  void wait() {
    std::array<zmq::pollitem_t, 3> items{{{control_.handle(), 0, ZMQ_POLLIN, 0},
                                          {nullptr, signals_.get(), ZMQ_POLLIN, 0},
                                          {nullptr, others_.get(), ZMQ_POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_wake() - clock_.now());
    try {
      zmq::poll(items, std::max(left, 0ms));
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
      return;
    }
    if (items[1].revents != 0) take_signal();
    if (items[2].revents != 0) serve_others();
  }

  /// Waits for this one, too. One that is closed is no longer waited for.
  void add_other(int descriptor) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    if (epoll_ctl(others_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0 || errno == EEXIST) return;
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }

  /// Takes what has arrived at the hand-over socket and its connections, and the ends of processes.
  void serve_others() {
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(others_.get(), events.data(), events.size(), 0);
    for (int i = 0; i < count; ++i) {
      const int descriptor = events.at(static_cast<std::size_t>(i)).data.fd;
      const auto watch = std::find_if(watches_.begin(), watches_.end(), [&](const auto& entry) {
        return entry.second.get() == descriptor;
      });
      if (descriptor == place_.descriptor()) {
        // Without a free descriptor nobody can be answered: it is waited for again at a heartbeat.
        if (!place_.tell()) epoll_ctl(others_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
      } else if (watch != watches_.end()) {
        process_gone(ProcessKey{watch->first}, Departure::kExited);
      } else if (const std::string refusal = pages_.serve(descriptor); !refusal.empty()) {
        log_->warn("refused a hand-over: {}", refusal);
      }
    }
    follow_handovers();
  }

  void follow_handovers() {
    for (const int descriptor : pages_.descriptors()) add_other(descriptor);
  }

  [[nodiscard]] TimePoint next_wake() const {
    if (!coordinator_.wants_sampling()) return next_beat_;
    return std::min({next_beat_, next_sample_, coordinator_.next_sample()});
  }

  void take_signal() {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) != sizeof info) return;
    log_->info("leaves: signal {}", info.ssi_signo);
    leaving_ = true;
  }

  void serve_control(TimePoint now) {
    PeerId peer;
    std::vector<std::string> frames;
    for (int i = 0; i < kMessagesAtOnce && control_.receive(peer, frames); ++i) {
      try {
        if (frames.size() != 1) {
          throw wire::BadMessage("malformed",
                                 "a message is one frame, not " + std::to_string(frames.size()));
        }
        const wire::Message message = wire::decode(frames.front());
        if (const auto* answer = std::get_if<wire::Answer>(&message)) {
          // What it says is compared with what is so: both of this moment, or what it holds beside
          // would look smaller than it is for as long as that is remembered.
          coordinator_.observe_held(JobId{answer->job_id}, answer->pid, Bytes{answer->held_bytes},
                                    answer->device);
          measure(JobId{answer->job_id}, now);
        }
        coordinator_.receive(peer, message, now);
        if (const auto* hello = std::get_if<wire::Register>(&message)) watch(*hello);
      } catch (const wire::BadMessage& problem) {
        log_->warn("malformed frame ({}): {}", problem.code(), problem.what());
        coordinator_.receive_malformed(peer, problem);
      }
    }
  }

  /// Begins to watch a process if its pid means the same process here. Otherwise the pidfd that
  /// comes with its page is watched; without one too, it counts as gone when it falls silent.
  void watch(const wire::Register& hello) {
    const ProcessKey key{JobId{hello.job_id}, hello.pid};
    watches_.erase(key);
    if (hello.start_ticks == 0) return;
    try {
      wire::UniqueFd pidfd = wire::open_pidfd(hello.pid);
      if (read_start_ticks(hello.pid) != hello.start_ticks) return;
      add_other(pidfd.get());
      watches_.emplace(key, std::move(pidfd));
    } catch (const std::system_error& error) {
      log_->debug("process {} lives as long as it says something: {}", hello.pid, error.what());
    }
  }

  /// Finds a GPU that a process names; all that there are become known with the first.
  FoundDevice find_device(const std::string& id) {
    const std::vector<GpuFacts> gpus = gpus_->all();
    const auto found = find_gpu(gpus, id);
    if (found) return {make_gpu_device(*found, gpu_budget_), ""};
    std::string known;
    for (const GpuFacts& gpu : gpus) known += (known.empty() ? "" : ", ") + gpu.id;
    return {std::nullopt, known.empty() ? gpus_->problem() : "there are " + known};
  }

  /// Shows the coordinator what a job's processes hold, of those whose pid means the same here: of
  /// the machine's memory by the kernel's word, of a GPU's by its driver's.
  void measure(const JobId& id, TimePoint now) {
    std::map<const DeviceCoordinator*, std::set<std::int64_t>> members;
    std::set<std::int64_t> known;
    for (const auto& device : coordinator_.devices()) {
      for (const Job& job : device->table().jobs()) {
        for (const Member& member : job.members) {
          if (!watches_.contains({job.id, member.pid})) continue;
          known.insert(member.pid);
          if (job.id == id) members[device.get()].insert(member.pid);
        }
      }
    }
    for (const auto& [device, pids] : members) {
      const Device& on = device->device();
      JobUse use = measure_job(pids, known);
      if (on.kind == DeviceKind::kGpu) use = on_gpu(on.id, std::move(use), pids, now);
      coordinator_.observe_use(DeviceId{on.id}, id, std::move(use), now);
    }
  }

  /// What the same processes hold of a GPU now: what one says that it gave back must show at once.
  JobUse on_gpu(const std::string& id, JobUse use, const std::set<std::int64_t>& pids,
                TimePoint now) {
    use.resident.clear();
    use.group.reset();
    use.by.clear();
    const auto told = read_gpu(id, now);
    std::map<std::int64_t, Bytes> holders;
    if (told) holders = told->processes;
    const auto held = [&](std::int64_t pid) {
      const auto found = holders.find(pid);
      return found == holders.end() ? Bytes{} : found->second;
    };
    for (const std::int64_t pid : pids) {
      // One that is not in the list has another number there: in a container.
      if (!held(pid).is_zero()) use.resident[pid] = held(pid);
    }
    for (ChildUse& child : use.children) child.bytes = held(child.pid);
    if (told) use.by = "nvml";
    return use;
  }

  /// Reads a GPU's memory and shows it to the coordinator.
  std::optional<GpuUse> read_gpu(const std::string& id, TimePoint now) {
    auto use = gpus_->use(id);
    if (use) {
      coordinator_.observe_available(DeviceId{id}, use->free, now, use->processes);
      if (use->busy) coordinator_.observe_busy(DeviceId{id}, *use->busy, now);
    } else {
      log_->warn("cannot read what is free of {}: {}", id, gpus_->problem());
    }
    return use;
  }

  /// At each beat some jobs, in a second all: a look at all of them at once would delay answers.
  void measure_in_turn(TimePoint now) {
    if (to_measure_.empty() && now >= next_round_) begin_round(now);
    for (std::size_t i = 0; i < measured_a_beat_ && !to_measure_.empty(); ++i) {
      const JobId id = to_measure_.back();
      to_measure_.pop_back();
      measure_all_of(id, now);
    }
  }

  void measure_all_of(const JobId& id, TimePoint now) {
    measure(id, now);
    ThreadTimes threads;
    for (const auto& [key, pidfd] : watches_) {
      if (key.first == id) threads.merge(time_process(id, key.second, now));
    }
    for (const auto& device : coordinator_.devices()) {
      const Job* const job = device->table().find(id);
      if (job == nullptr || job->job_class != JobClass::kOpportunistic) continue;
      for (const Member& member : job->members) {
        const ProcessKey key{id, member.pid};
        device->observe_standstill(job->key(member), standstill(key), is_reachable(key));
      }
    }
    measure_need(id, threads, now);
    follow_weight(id);
  }

  /// Why a process stands still; empty: it runs, or cannot be looked at from here.
  std::string standstill(const ProcessKey& key) {
    const auto watched = watches_.find(key);
    if (watched == watches_.end()) return "";
    std::string why = read_standstill(key.second);
    pollfd end{watched->second.get(), POLLIN, 0};
    return poll(&end, 1, 0) == 0 ? why : "";  // else what was read was perhaps another process
  }

  [[nodiscard]] bool is_reachable(const ProcessKey& key) const {
    const auto watched = watches_.find(key);
    return watched != watches_.end() && send_signal(watched->second.get(), 0).empty();
  }

  /// Charges processes that stand still with what they hold, where they look at their page before
  /// they take more: the order is written first, then what they have is read.
  void recall_from_stopped(TimePoint now) {
    for (const auto& device : coordinator_.devices()) {
      for (const LeaseKey& process : device->outdated()) {
        const ProcessKey key{process.job, process.pid};
        const std::string why = standstill(key);
        device->observe_standstill(process, why, is_reachable(key));
        const auto shown = shown_.find(device->device().id);
        if (why.empty() || shown == shown_.end()) continue;
        const std::uint64_t page = shown->second.page.made();
        if (!pages_.taken(key, page)) continue;
        measure(process.job, now);
        device->recall(process, now);
        publish(now);
        if (const auto taken = pages_.taken(key, page)) device->settle_recall(process, *taken, now);
      }
    }
  }

  /// Stops processes, lets them go on and ends them, as the devices' coordinators have decided.
  void carry_out_signals() {
    for (const auto& device : coordinator_.devices()) {
      for (const SignalOrder& order : device->take_signals()) {
        const auto watched = watches_.find({order.process.job, order.process.pid});
        if (watched == watches_.end()) continue;
        const int pidfd = watched->second.get();
        std::string problem;
        switch (order.signal) {
          case ProcessSignal::kStop: problem = stopped_.stop(order.process.pid, pidfd); break;
          case ProcessSignal::kGoOn: problem = stopped_.go_on(order.process.pid, pidfd); break;
          case ProcessSignal::kEnd: problem = send_signal(pidfd, SIGTERM); break;
          case ProcessSignal::kKill: problem = send_signal(pidfd, SIGKILL); break;
        }
        if (problem.empty()) continue;
        log_->warn("job {}: no signal to process {}: {}", order.process.job.str(),
                   order.process.pid, problem);
      }
    }
  }

  /// Looks at the machine, and lists the jobs to look at within the next second.
  void begin_round(TimePoint now) {
    next_round_ = now + kMeasuring;
    for (const Job* job : coordinator_.jobs()) {
      if (std::find(to_measure_.begin(), to_measure_.end(), job->id) == to_measure_.end()) {
        to_measure_.push_back(job->id);
      }
    }
    constexpr std::size_t kBeats = kMeasuring / kBeat;
    measured_a_beat_ = (to_measure_.size() + kBeats - 1) / kBeats;
    for (const JobId& id : weights_.known()) {
      if (!coordinator_.has_job(id)) weights_.restore(id);
    }
    try {
      coordinator_.observe_available(DeviceId{kHostId}, read_available(), now);
    } catch (const std::runtime_error& problem) {
      log_->warn("cannot read what is available: {}", problem.what());
    }
    for (const auto& device : coordinator_.devices()) {
      if (device->device().kind == DeviceKind::kGpu) (void)read_gpu(device->device().id, now);
    }
  }

  /// Shows the coordinator a process's time on cores, where its pid means the same here, and
  /// returns its threads' clocks.
  ThreadTimes time_process(const JobId& job, std::int64_t pid, TimePoint now) {
    if (!watches_.contains({job, pid})) return {};
    auto threads = read_thread_times(pid);
    if (!threads) return {};
    coordinator_.observe_cpu(job, pid, *threads, read_io_stalled(), now);
    return std::move(*threads);
  }

  /// Shows the coordinator how many cores a guaranteed job may be on at once: its processes'
  /// threads are given, those of its forked children are read here.
  void measure_need(const JobId& id, ThreadTimes& threads, TimePoint now) {
    wire::CoreSet allowed;
    for (const Job* const job : parts_of(id)) {
      if (job->job_class != JobClass::kGuaranteed) return;
      for (const Member& member : job->members) {
        if (!watches_.contains({id, member.pid})) return;  // what cannot be seen may need any core
        allowed = allowed | read_allowed(member.pid).value_or(wire::CoreSet{});
      }
      for (const ChildUse& child : job->use.children) {
        if (auto times = read_thread_times(child.pid)) threads.merge(*times);
      }
    }
    coordinator_.observe_need(id, threads, allowed, now);
  }

  /// Puts an opportunistic job's control group behind others, unless its user wants no such help.
  void follow_weight(const JobId& id) {
    const std::vector<const Job*> parts = parts_of(id);
    if (parts.empty()) return;
    if (parts.front()->job_class != JobClass::kOpportunistic) {
      if (!parts.front()->group.low) return;
      weights_.restore(id);  // it was opportunistic until now
      coordinator_.observe_group(id, {});
      return;
    }
    const Job& first = *parts.front();
    if (const Member* speaker = first.speaker(); speaker == nullptr || speaker->stats.is_null()) {
      return;  // what it wants is not known yet
    }
    if (!first.wants_idle_class()) {
      weights_.restore(id);
      coordinator_.observe_group(id, {false, {}, "kept out of the idle class by its user"});
      return;
    }
    std::set<std::int64_t> processes;
    bool idle_class = true;
    for (const Job* const job : parts) {
      idle_class = idle_class && job->in_idle_class();
      for (const Member& member : job->members) {
        if (!watches_.contains({id, member.pid})) {
          coordinator_.observe_group(id, {false, {}, "its pids mean nothing here"});
          return;
        }
        processes.insert(member.pid);
      }
      for (const ChildUse& child : job->use.children) processes.insert(child.pid);
    }
    const GroupOutcome before = first.group;
    const GroupOutcome& outcome = weights_.lower(id, processes, idle_class);
    if (outcome == before) return;
    coordinator_.observe_group(id, outcome);
    log_->info("job {}: {}", id.str(), outcome.reason);
  }

  /// A job's parts, one a device.
  [[nodiscard]] std::vector<const Job*> parts_of(const JobId& id) const {
    std::vector<const Job*> parts = coordinator_.jobs();
    std::erase_if(parts, [&](const Job* job) { return job->id != id; });
    return parts;
  }

  void process_gone(const ProcessKey& key, Departure departure) {
    log_->info("job {}: process {} is gone", key.first.str(), key.second);
    watches_.erase(key);
    stopped_.forget(key.second);
    pages_.forget(key);
    coordinator_.member_gone(key.first, key.second, departure, clock_.now());
  }

  void keep_time(TimePoint now) {
    read_pages(now);
    if (coordinator_.wants_sampling() && now >= next_wake()) {
      coordinator_.sample(now);
      next_sample_ = now + coordinator_.sampling_period(now);
    }
    for (const LeaseKey& key : coordinator_.take_timed()) {
      (void)time_process(key.job, key.pid, now);
    }
    if (now < next_beat_) return;
    next_beat_ = now + kBeat;
    measure_in_turn(now);
    recall_from_stopped(now);
    if (link_) {
      link_->beat(
          [&] {
            nlohmann::json report = node_report(coordinator_.status("", now));
            report["time_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(
                                    std::chrono::system_clock::now().time_since_epoch())
                                    .count();
            return report;
          },
          now);
      carry_out_orders(now);
      take_placements(now);
    }
    if (now < next_heartbeat_) return;
    look_at_place();
    find_silent(now);
    coordinator_.tick(now);
    carry_out_signals();
    const bool idle = !coordinator_.has_jobs() && now - coordinator_.idle_since() >= idle_exit_;
    if (idle && idle_exit_ > Duration::zero()) {
      log_->info("leaves: no job for {} s", std::chrono::duration<double>(idle_exit_).count());
      leaving_ = true;
    }
  }

  /// Makes lock and sockets again if something has removed them: jobs and commands find no other
  /// coordinator then, and each would have one of its own for the same devices.
  void look_at_place() {
    if (place_.descriptor() >= 0) add_other(place_.descriptor());
    if (place_.is_whole()) return;
    const std::filesystem::path before = place_.folder();
    const std::string problem =
        place_.move([this](const std::filesystem::path& folder) { listen_in(folder); });
    if (problem.empty()) {
      log_->warn("lock or sockets in {} were removed: they are in {} again", before.native(),
                 place_.folder().native());
    } else if (!coordinator_.has_jobs()) {
      log_->warn("leaves: lock or sockets in {} were removed, and it has no job: {}",
                 before.native(), problem);
      leaving_ = true;
    } else if (problem != place_problem_) {
      log_->error("lock or sockets in {} were removed; jobs go on, commands do not reach them: {}",
                  before.native(), problem);
    }
    place_problem_ = problem;
  }

  void listen_in(const std::filesystem::path& folder) {
    const auto control = wire::control_socket_path(folder, options_.instance);
    const auto pages = wire::pages_socket_path(folder, options_.instance);
    std::error_code ignored;
    std::filesystem::remove(pages, ignored);  // who has the lock, or had it: this one
    pages_.listen(pages.native());
    control_.bind(wire::ipc_endpoint(control));
    control_path_ = control;
    pages_path_ = pages;
    place_.note({control_path_, pages_path_});
    coordinator_.listens_on(control_path_.native());
    follow_handovers();
    if (options_.log_file.empty()) move_log(*log_, wire::log_path(folder, options_.instance));
  }

  /// Asks for what the cluster's coordinator wants, as the command line would: its answers come out
  /// by `flush`.
  void carry_out_orders(TimePoint now) {
    for (const wire::NodeOrder& order : link_->orders().to_carry_out()) {
      log_->info("job {}: {} by the cluster's order {}", order.job,
                 commensal::to_string(order.job_class), order.number);
      if (!coordinator_.has_job(JobId{order.job})) {  // not one whose name is the same
        link_->orders().heard(order.number, wire::Outcome::kRefused,
                              fmt::format("no job {} runs here", order.job));
        continue;
      }
      wire::SetRequest request;
      request.job = order.job;
      request.job_class = order.job_class;
      coordinator_.receive(std::string{kOrderPeer} + std::to_string(order.number), request, now);
    }
  }

  void take_placements(TimePoint now) {
    if (link_->heard() > heard_) {
      heard_ = link_->heard();
      coordinator_.heard_of_cluster(heard_);
    }
    if (link_->take_new_placements()) {
      const ClusterPlacements& placed = link_->placements();
      coordinator_.take_placements(placed.list(), now);
      log_->info("the cluster's list {}: {} placed here", placed.number(),
                 placed.list().size() + placed.left_out());
    }
    for (const std::string& line : coordinator_.take_news()) log_->info("{}", line);
  }

  /// Whether a message answers an order, and so goes to nobody's socket.
  bool answers_order(const Outgoing& out) {
    if (!link_ || !out.peer.starts_with(kOrderPeer)) return false;
    const std::uint64_t number = std::stoull(out.peer.substr(kOrderPeer.size()));
    if (const auto* reply = std::get_if<wire::SetReply>(&out.message)) {
      link_->orders().heard(number, reply->outcome, reply->reason);
      log_->info("the cluster's order {}: {}: {}", number, to_string(reply->outcome),
                 reply->reason);
    } else if (const auto* error = std::get_if<wire::Error>(&out.message)) {
      link_->orders().heard(number, wire::Outcome::kRefused, error->what);
    }
    return true;
  }

  void read_pages(TimePoint now) {
    for (const Job* const job : coordinator_.jobs()) {
      for (const Member& member : job->members) {
        if (!member.first) continue;  // it is read for all its devices
        const auto reading = pages_.read({job->id, member.pid}, now);
        if (reading) coordinator_.observe_page(job->id, member.pid, *reading, now);
      }
    }
  }

  /// Finds those whose pidfd, sent with the page, tells of their end, and those that are silent. A
  /// process that is only stopped keeps its line open; one that became another program does not.
  void find_silent(TimePoint now) {
    std::vector<std::pair<ProcessKey, Departure>> gone;
    for (const Job* const job : coordinator_.jobs()) {
      for (const Member& member : job->members) {
        if (!member.first) continue;
        const ProcessKey key{job->id, member.pid};
        pollfd end{pages_.pidfd(key), POLLIN, 0};
        const bool watched = watches_.contains(key) || end.fd >= 0;
        if (!watches_.contains(key) && end.fd >= 0 && poll(&end, 1, 0) > 0) {
          gone.emplace_back(key, Departure::kExited);
        } else if (now - member.last_heard > silence_ && !(watched && pages_.connected(key))) {
          gone.emplace_back(key, Departure::kSilent);
        }
      }
    }
    for (const auto& [key, departure] : gone) process_gone(key, departure);
  }

  void flush(TimePoint now) {
    for (const Outgoing& out : coordinator_.take_outgoing()) {
      describe(out.message);
      if (answers_order(out)) continue;
      if (!control_.send(out.peer, wire::encode(out.message))) {
        log_->debug("a peer is gone or does not read: its message is lost");
      }
    }
    if (publish(now) && now >= next_heartbeat_) next_heartbeat_ = now + kHeartbeat;
    pages_.sync(coordinator_);
  }

  /// Writes the device pages. @return false if nothing was due.
  bool publish(TimePoint now) {
    bool any = false;
    for (const auto& device : coordinator_.devices()) {
      const Device& facts = device->device();
      auto at = shown_.find(facts.id);
      const bool is_new = at == shown_.end();
      if (is_new) at = shown_.try_emplace(facts.id, facts, trickle_, getpid()).first;
      Shown& shown = at->second;
      std::vector<PageEntry> entries = device->page_entries(now);
      const bool same = std::equal(entries.begin(), entries.end(), shown.published.begin(),
                                   shown.published.end(), [](PageEntry a, PageEntry b) {
                                     a.lease_until = b.lease_until = TimePoint{};
                                     return a == b;
                                   });
      if (same && !is_new && now < next_heartbeat_) continue;
      shown.page.publish(entries, facts, now);
      shown.published = std::move(entries);
      any = true;
      if (is_new && facts.kind == DeviceKind::kGpu) {
        log_->info("device {}: {}, {} ({})", facts.id, facts.name, to_string(facts.capacity),
                   facts.reason);
      }
    }
    return any;
  }

  static std::string what_changes(const wire::Change& change) {
    std::string text;
    const auto add = [&text](const std::string& part) {
      text += std::string{text.empty() ? "" : ", "} + part;
    };
    if (change.limit_bytes) add("limit " + to_string(Bytes{*change.limit_bytes}));
    if (change.job_class) add(std::string{commensal::to_string(*change.job_class)});
    if (change.paused) add(*change.paused ? "paused" : "resumed");
    if (!wire::is_empty(change.terms)) add(wire::describe(change.terms));
    return text;
  }

  void describe(const wire::Message& message) {
    if (const auto* change = std::get_if<wire::Change>(&message); change != nullptr) {
      log_->info("job {}{}: {} as revision {}: {}", change->job_id,
                 change->device == kHostId ? "" : " on " + change->device, what_changes(*change),
                 change->revision, change->reason);
    } else if (const auto* reply = std::get_if<wire::Registered>(&message); reply != nullptr) {
      log_->info("job {}: registered, {}, limit {}{}{}", reply->job_id,
                 commensal::to_string(reply->job_class), to_string(Bytes{reply->limit_bytes}),
                 reply->reason.empty() ? "" : ": ", reply->reason);
    } else if (const auto* error = std::get_if<wire::Error>(&message); error != nullptr) {
      log_->info("answers {}: {}", error->code, error->what);
    }
  }

  std::shared_ptr<spdlog::logger> log_;
  InstancePlace& place_;
  const DaemonOptions& options_;
  std::string place_problem_;  // why it cannot be found at the moment
  SteadyClock clock_;
  Duration idle_exit_;
  Duration silence_;
  std::filesystem::path control_path_;
  std::filesystem::path pages_path_;
  wire::UniqueFd signals_;
  wire::UniqueFd others_{epoll_create1(EPOLL_CLOEXEC)};
  std::unique_ptr<GpuMonitor> gpus_ = nvml_monitor();
  NodeCoordinator coordinator_;
  double trickle_;
  MemoryBudget gpu_budget_;
  struct Shown {
    Shown(const Device& device, double trickle, std::int64_t pid) : page(device, trickle, pid) {}
    DevicePageWriter page;
    std::vector<PageEntry> published;
  };
  std::map<std::string, Shown> shown_;  // by device
  PageServer pages_;
  wire::RouterSocket control_;
  std::optional<ClusterLink> link_;  // to the cluster's coordinator
  TimePoint heard_{};                // of it
  GroupWeights weights_{HostRoots{}, kernel_group_files()};
  std::map<ProcessKey, wire::UniqueFd> watches_;
  StoppedProcesses stopped_;
  std::vector<JobId> to_measure_;  // in this round
  std::size_t measured_a_beat_ = 0;
  TimePoint next_round_;
  TimePoint next_beat_;
  TimePoint next_heartbeat_;
  TimePoint next_sample_;
  bool leaving_ = false;
};

}  // namespace

ExitCode run_daemon(const DaemonOptions& options,
                    const std::function<void(const StartReport&)>& started) {
  bool reported = false;
  const auto report = [&](ExitCode code, const std::string& text) {
    if (!reported) started({code, text});
    reported = true;
    return code;
  };
  std::shared_ptr<spdlog::logger> log;
  try {
    umask(077);
    wire::prepare_runtime_dir(options.runtime_dir);
    InstancePlace place{options.runtime_dir, options.instance};
    if (!place.held()) return report(ExitCode::kAlreadyRunning, place.obstacle());
    log = make_log("commensald", log_file(options), options.foreground, options.log_level);
    std::optional<Daemon> daemon;
    try {
      daemon.emplace(options, place, log);
    } catch (const std::exception& error) {
      place.leave_clean();
      log->error("cannot start: {}", error.what());
      return report(ExitCode::kNoSockets, error.what());
    }
    report(ExitCode::kOk, std::to_string(getpid()));
    daemon->run();
    if (daemon->leave()) place.leave_clean();
    return ExitCode::kOk;
  } catch (const wire::BadPath& problem) {
    return report(ExitCode::kNoSockets, problem.what());
  } catch (const spdlog::spdlog_ex& error) {
    return report(ExitCode::kNoSockets, std::string{"cannot write the log: "} + error.what());
  } catch (const std::exception& error) {
    if (log) log->critical("gives up: {}", error.what());
    report(ExitCode::kInternal, error.what());
    return ExitCode::kInternal;
  }
}

}  // namespace commensal::node
