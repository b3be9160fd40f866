// SPDX-License-Identifier: Apache-2.0
// Starts and ends the one session of a process, and keeps forked children out of it.
#include "torch_ext/runtime/session.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <utility>

#include "allocator/host/file_system.h"
#include "allocator/host/host_memory_source.h"
#include "allocator/host/own_descriptors.h"
#include "allocator/host/thread_stopper.h"
#include "torch_ext/runtime/idle_class.h"
#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

constexpr std::size_t kMostNotes = 16;
constexpr Duration kFirstStop = std::chrono::milliseconds{100};
constexpr std::chrono::milliseconds kLongestAskWait = std::chrono::hours{1};
constexpr std::chrono::milliseconds kShortestParkIdle = std::chrono::seconds{1};
constexpr std::chrono::milliseconds kLongestParkIdle = std::chrono::hours{24 * 365};

constexpr Bytes kDeviceAlignment = 512_B;  // what PyTorch's CUDA code relies on

std::atomic<Session*> g_session{nullptr};
Mutex g_start_mutex;
std::atomic<Session*> g_fork_parent{nullptr};  // never forgotten: the child must find it

std::string first_law(const SessionConfig& config) {
  if (!config.terms.law.empty()) return config.terms.law;
  if (config.job_class == JobClass::kOpportunistic) return "gap";
  return config.terms.share.max < 1.0 ? "duty_cycle" : "open";  // "open" cannot hold a share
}

std::unique_ptr<MemorySource> make_host_source(const SessionConfig& config, bool (*between_ops)()) {
  HostMemorySource::Options options;
  options.between_ops = between_ops;
  if (!config.spill_dir.empty()) options.spill_folder = config.spill_dir.string();
  if (config.host_cap) options.host_cap = *config.host_cap;
  return std::make_unique<HostMemorySource>(options);
}

// What sessions may manage, by the name of the device.
class OfferedMemory {
 public:
  static OfferedMemory& all() {
    static OfferedMemory& offered = *new OfferedMemory;
    return offered;
  }
  struct Offer {
    MakeSource make = nullptr;
    WorkClock* work = nullptr;
  };
  void add(std::string_view device, Offer offer) {
    const MutexLock lock(mutex_);
    (void)offers_.emplace(device, offer);
  }
  [[nodiscard]] MakeSource of(const std::string& device) {
    const MutexLock lock(mutex_);
    if (const auto at = offers_.find(device); at != offers_.end()) return at->second.make;
    std::string known;
    for (const auto& [name, offer] : offers_) known += (known.empty() ? "" : ", ") + name;
    throw std::invalid_argument("no memory of a device '" + device + "' (there is: " + known + ")");
  }
  [[nodiscard]] WorkClock* work_of(const std::string& device) {
    const MutexLock lock(mutex_);
    const auto at = offers_.find(device);
    return at == offers_.end() ? nullptr : at->second.work;
  }

 private:
  Mutex mutex_;
  std::map<std::string, Offer> offers_ COMMENSAL_GUARDED_BY(mutex_){
      {std::string(kHostMemory), {&make_host_source, nullptr}}};
};

DeviceTime device_time(const SessionConfig& config) {
  if (config.device != kHostMemory) {
    return {.threads = nullptr, .work = OfferedMemory::all().work_of(config.device)};
  }
  DeviceTime time = DeviceTime::of_cpu(SteadyClock::instance());
  time.later = OfferedMemory::all().work_of(config.later_device);
  return time;
}

// What the job asks for is for the GPU that it is about to use, if it asks for anything.
bool awaits_gpu(const SessionConfig& config) {
  return !config.later_device.empty() &&
         (config.terms.memory.max || !config.terms.memory.min.is_zero());
}

// Whether its first device is a GPU that is not known yet.
bool is_gpu_to_come(const SessionConfig& config) {
  return config.device != kHostMemory || awaits_gpu(config);
}

ElasticAllocatorOptions allocator_options(const SessionConfig& config) {
  ElasticAllocatorOptions options;
  if (config.device != kHostMemory) options.alignment = kDeviceAlignment;
  // What a helper uses is not the job's to divide: see `become_rank`.
  if (config.terms.memory.max && config.role != MemberRole::kHelper && !awaits_gpu(config)) {
    options.limit = *config.terms.memory.max;
  }
  if (config.host_cap) options.host_cap = *config.host_cap;
  if (config.memory_policy == MemoryPolicy::kAntman) {
    options.move_live = false;
    options.by_lifetime = false;  // its allocator has one arena
  }
  return options;
}

CoreKeeper make_keeper(const std::string& inherited) {
  ThreadCores& kernel = kernel_thread_cores();
  const wire::CoreSet mine = kernel.get(::getpid()).value_or(wire::CoreSet{});
  const int parent = parent_of(inherited);
  const auto parents = parent != 0 ? kernel.get(parent) : std::nullopt;
  return {kernel, own_cores(mine, inherited, parents), mine};
}

SessionConfig completed(SessionConfig config) {
  check_config(config);
  if (config.job_id.empty()) config.job_id = JobId{"job-" + std::to_string(::getpid())};
  if (config.name.empty()) config.name = config.job_id.str();
  return config;
}

}  // namespace

void check_config(const SessionConfig& config) {
  if (const std::string wrong = wire::problem_with(config.terms, config.job_class);
      !wrong.empty()) {
    throw std::invalid_argument(wrong);
  }
  check_rank(config.rank, config.world_size);
  if (config.job_id.str().size() >= wire::kIdSize) {
    throw std::invalid_argument("job id longer than " + std::to_string(wire::kIdSize - 1) +
                                " bytes: '" + config.job_id.str() + "'");
  }
  if (config.ask_wait < std::chrono::milliseconds::zero() || config.ask_wait > kLongestAskWait) {
    throw std::invalid_argument("wait for memory outside 0 to 3600000 ms: " +
                                std::to_string(config.ask_wait.count()) + " ms");
  }
  if (!config.park_idle) return;
  if (*config.park_idle < kShortestParkIdle || *config.park_idle > kLongestParkIdle) {
    throw std::invalid_argument(
        "park-idle outside 1 s to 365 d: " + std::to_string(config.park_idle->count()) + " ms");
  }
  if (config.memory_policy == MemoryPolicy::kAntman) {
    throw std::invalid_argument(
        "park-idle moves live memory, which the memory policy antman does not");
  }
}

std::string_view to_string(MemoryPolicy policy) noexcept {
  return policy == MemoryPolicy::kAntman ? "antman" : "elastic";
}

MemoryPolicy to_memory_policy(std::string_view text) {
  for (const MemoryPolicy policy : {MemoryPolicy::kElastic, MemoryPolicy::kAntman}) {
    if (text == to_string(policy)) return policy;
  }
  throw std::invalid_argument("not a memory policy (elastic, antman): '" + std::string(text) + "'");
}

void check_rank(int rank, int world_size) {
  if (world_size >= 1 && rank >= 0 && rank < world_size) return;
  throw std::invalid_argument("rank outside the world: " + std::to_string(rank) + " of " +
                              std::to_string(world_size));
}

Session::Impl::Impl(SessionConfig given, std::unique_ptr<MemorySource> memory_source)
    : config(std::move(given)),
      role(config.role),
      rank(config.rank),
      world_size(config.world_size),
      awaits_device(awaits_gpu(config)),
      source(std::move(memory_source)),
      allocator(*source, allocator_options(config)),
      own_page(config.job_id, config.job_class, config.rank),
      observer(config.job_id, &page),
      gate(make_pacing_law(first_law(config)), observer, SteadyClock::instance(), {},
           device_time(config)),
      steps(clock),
      activity(page, clock),
      sample_windows(clock.now()),
      devices(allocator, is_gpu_to_come(config) ? std::string() : std::string(kHostMemory),
              awaits_device ? std::nullopt : config.terms.memory.max),
      returns(gate, clock),
      known_role(config.role),
      job_class(config.job_class),
      asked_class(config.job_class),
      terms(config.terms),
      started_in_idle_class(config.terms.idle_class &&
                            config.job_class == JobClass::kOpportunistic && is_in_idle_class()),
      keeper(make_keeper(config.inherited_cpus)),
      cores_wanted(keeper.now()),
      mover(allocator,
            {.rate = config.background_rate.value_or(Bytes{}),
             .step = [this] { return steps.state().median; },
             .batch = {},
             .around = [this](const auto& batch) { move_between_steps(batch); }},
            [this] { moved_ahead(); }),
      client(ClientOptions{.runtime_dir = config.runtime_dir,
                           .instance = config.instance,
                           .page_fd = own_page.fd(),
                           .connect_timeout = config.connect_timeout},
             *this) {
  first_device.placed = false;
  page.heartbeat_ns.store(to_page_time(clock.now()));
  if (config.role == MemberRole::kHelper) {
    // A helper does not train: it must not look like a burst that never ends.
    page.activity_since_ns.store(to_page_time(clock.now()));
    page.activity.store(static_cast<std::uint64_t>(wire::Activity::kWaiting));
  } else if (config.job_class == JobClass::kGuaranteed) {
    activity.find_requests();
  }
}

Session::Impl::~Impl() {
  client.stop();
  mover.stop();
}

void Session::Impl::begin() {
  gate.set_share(config.terms.share.min, config.terms.share.max);
  // Beside elastic memory of a GPU others in the process take some: there it claims nothing.
  if (on_host()) allocator.claim_with(&claims);
  allocator.on_pressure([this](Bytes needed) { return ask_for_memory(first_device, needed); });
  // On a host memory comes back at no other job's cost that its idle class does not bear.
  if (!on_host()) allocator.pace_returns(&returns);
  // The gate of a guaranteed job does not hold back all that it gives another device to do.
  const bool moves = on_host() || config.job_class == JobClass::kOpportunistic;
  if (moves && config.background_rate && config.memory_policy == MemoryPolicy::kElastic) {
    if (const std::string why = mover.start(); !why.empty()) {
      note("memory moves at safe points only: " + why);
    }
    choose_who_brings_back();
  }
  gate.on_needed([this] {
    op_came.store(true);
    client.wake();
  });
  client.start();  // before threads enter the idle class: a new thread inherits it
  note_doubtful_values();
  // Now nothing computes; later a thread without an alternate stack may be found in a kernel.
  if (ThreadStopper* const stopper = ThreadStopper::existing()) {
    (void)stopper->give_stacks(kFirstStop);
  }
  tell_obstacle(true);
  follow_class();
}

std::string Session::Impl::above_device(const char* what, Bytes limit) const {
  const Bytes device = first_device.memory().capacity();
  if (limit <= device || awaits_device.load() || device.is_zero()) return {};
  return std::string(what) + " above the device: " + to_string(limit) + " > " + to_string(device);
}

// Values that are taken as they are, and that somebody may not have meant.
void Session::Impl::note_doubtful_values() {
  const std::string folder = config.spill_dir.empty() ? HostMemorySource::Options{}.spill_folder
                                                      : config.spill_dir.string();
  const FolderFacts facts = on_host() ? file_system_of(folder) : FolderFacts{};
  for (const std::string& doubt :
       {above_device("memory minimum", config.terms.memory.min),
        above_device("memory limit", config.terms.memory.max.value_or(Bytes{})),
        facts.kind == FolderKind::kNetwork ? spill_folder_warning(folder, facts) : std::string()}) {
    if (!doubt.empty()) note(doubt);
  }
}

void Session::Impl::tell_obstacle(bool at_start) {
  ThreadStopper* const stopper = ThreadStopper::existing();
  if (stopper == nullptr || !on_host()) return;
  const std::string why = stopper->lasting_obstacle();
  {
    const MutexLock lock(mutex);
    if (why.empty() || why == told_obstacle) return;
    told_obstacle = why;
  }
  const std::string line = "memory in use stays where it is: " + why;
  note(line);
  // Notes that are there at the start are said by who starts the session, unless the job is quiet.
  if (!at_start || config.quiet) print(line);
}

void Session::Impl::choose_who_brings_back() {
  // On a GPU a guaranteed job's memory does not move, which it gains nothing by.
  if (!has_host_memory()) {
    const bool keeps = class_now() == JobClass::kGuaranteed;
    for (const auto& device : devices.all()) device->memory().keep_live(keeps);
  }
  const MutexLock lock(mutex);
  // On another device than the host the mover may have to wait for long: it only helps.
  allocator.expect_work_ahead(has_host_memory() && mover.running() &&
                              job_class == JobClass::kOpportunistic);
}

void Session::Impl::follow_class() {
  const MutexLock one_walk(class_mutex);
  bool idle = false;
  {
    const MutexLock lock(mutex);
    idle = terms.idle_class && job_class == JobClass::kOpportunistic;
    // Who was started in the idle class, and is guaranteed before it knows of that, leaves it, too.
    const bool was_started_in_it = std::exchange(started_in_idle_class, false);
    if (idle == in_idle_class && (idle || !was_started_in_it)) return;
  }
  const IdleClassResult result = idle ? enter_idle_class() : leave_idle_class();
  const MutexLock lock(mutex);
  in_idle_class = idle == (result.failed == 0);
  idle_class_reason = result.reason;
}

void Session::Impl::become_rank(int new_rank, int new_world_size) {
  check_rank(new_rank, new_world_size);
  if (const MemberRole now = role.load(); now != MemberRole::kHelper) {
    throw SessionError("only a helper can become a rank, this process is a " +
                       std::string(to_string(now)));
  }
  rank.store(new_rank);
  world_size.store(new_world_size);
  role.store(MemberRole::kRank);
  // Memory that it holds by now is moved at its next safe point.
  if (const auto max = first_device.limits.own_max()) {
    (void)first_device.limits.set_own(*max, false);
  }
  // As at the start of any process that trains: busy until it shows otherwise.
  page.activity_since_ns.store(to_page_time(clock.now()));
  page.activity.store(static_cast<std::uint64_t>(wire::Activity::kUnknown));
  follow_activity();
  client.register_again();
  if (!client.connected()) return;
  // What is allocated from here on should find the limit of a rank.
  const auto until = std::chrono::steady_clock::now() + config.connect_timeout;
  const MutexLock lock(ask_mutex);
  while (known_role != MemberRole::kRank && client.connected()) {
    if (ask_answered.wait_until(ask_mutex, until) == std::cv_status::timeout) return;
  }
}

void Session::Impl::use_device(std::string id) {
  {
    const MutexLock lock(ask_mutex);
    if (!first_device.set_id(std::move(id))) return;
    first_device.known = false;
  }
  client.register_again();
  // What is allocated from here on should find the limit on that device.
  (void)wait_until_known(first_device);
}

void Session::Impl::take_device(DeviceMemory& memory, std::string id, const std::string& why) {
  const bool was_on_host = on_host();
  // What was bounded on the host, or not yet bounded at all, is bounded there from now on.
  LimitKeeper& limits = first_device.limits;
  limits.move_to(memory,
                 awaits_device.exchange(false) ? config.terms.memory.max : limits.own_max());
  say("this job is on " + id + ", with native GPU memory: PyTorch's own, bound by the limit" +
      (why.empty() ? std::string() : " (" + why + ")"));
  if (!why.empty()) note("GPU memory is native, not elastic: " + why);
  if (config.park_idle) note("nothing is parked while idle: GPU memory is native");
  if (was_on_host) {
    left_host.store(true);
    gate.go_by_work();
    (void)allocator.post_limit(kNoLimit);
    allocator.claim_with(nullptr);
    page.memory_taken.store(0);
    page.memory_page.store(0);
    mover.wake();
  }
  use_device(std::move(id));
  for (const std::string& doubt :
       {above_device("memory minimum", memory_minimum()),
        above_device("memory limit", limits.own_max().value_or(Bytes{}))}) {
    if (!doubt.empty()) note(doubt);
  }
}

void Session::Impl::stay_on_host() {
  if (config.later_device.empty() || !on_host() || role.load() == MemberRole::kHelper ||
      told_host.exchange(true)) {
    return;
  }
  say("this job uses no GPU: its device is the host, where its memory and its time count");
  if (!awaits_device.exchange(false)) return;
  (void)first_device.set_id(std::string(kHostMemory));
  if (config.terms.memory.max) {
    (void)first_device.limits.set_own(*config.terms.memory.max, false);
  }
  client.register_again();
}

void Session::Impl::note(const std::string& line) {
  const MutexLock lock(mutex);
  if (!notes.empty() && notes.back() == line) return;
  if (notes.size() >= kMostNotes) notes.erase(notes.begin());
  notes.push_back(line);
}

std::string Session::Impl::active_line() const {
  const StatisticsView now = view();
  std::string line{now.job.job_class};
  line += ", ";
  Bytes limit = now.memory.limit;
  if (awaits_device.load()) limit = config.terms.memory.max.value_or(limit);
  line += limit.count() == UINT64_MAX ? "no memory limit" : to_string(limit);
  if (limit.is_zero()) line += " so far";  // others are still giving it back
  line += ", gate " + now.gate.law;
  if (config.memory_policy != MemoryPolicy::kElastic) {
    line += ", memory policy ";
    line += to_string(config.memory_policy);
  }
  if (!config.later_device.empty()) line += ", GPU memory native";
  if (config.device != kHostMemory) line += ", GPU memory elastic";
  if (now.job.coordinator_pid != 0) {
    return line + ", coordinator " + std::to_string(now.job.coordinator_pid);
  }
  return line + ", no coordinator: " + now.job.reason;
}

void Session::Impl::shutdown() noexcept {
  if (in_child.load() || ended.exchange(true)) return;
  try {
    stay_on_host();
    publish(clock.now());
    client.stop();
    end_sampling();
    mover.stop();
    allocator.expect_work_ahead(false);
    bring_away_back();
    gate.wake();  // nobody would bring memory back for an op that waited
    if (config.summary_file.empty()) return;
    const std::string target = config.summary_file.string();
    const std::string temporary = target + ".tmp." + std::to_string(::getpid());
    const std::string summary = to_json(view()).dump(2);
    const bool written = own_descriptors::run([&] {
      std::ofstream file(temporary);
      file << summary << '\n';
      file.close();
      return file && std::rename(temporary.c_str(), target.c_str()) == 0;
    });
    if (!written) {
      (void)std::remove(temporary.c_str());
      own_descriptors::write_line("commensal: cannot write the summary " + target);
    }
  } catch (const std::exception& error) {
    own_descriptors::write_line(std::string("commensal: ending the session failed: ") +
                                error.what());
  }
}

Session::Session(SessionConfig config, MakeSource make)
    : impl_([&config, make] {
        SessionConfig full = completed(std::move(config));
        const MakeSource maker = make != nullptr ? make : OfferedMemory::all().of(full.device);
        auto source = maker(full, &Impl::between_ops);
        return std::make_unique<Impl>(std::move(full), std::move(source));
      }()) {}

Session::~Session() = default;

Session& Session::start(SessionConfig config, MakeSource make_source) {
  const MutexLock lock(g_start_mutex);
  if (const Session* active = g_session.load()) {
    throw SessionError("commensal is active already in this process: job '" +
                       active->config().job_id.str() + "'");
  }
  if (g_fork_parent.load() != nullptr) {
    throw SessionError("commensal cannot start in a forked child of an active process");
  }
  std::unique_ptr<Session, void (*)(Session*)> session(new Session(std::move(config), make_source),
                                                       [](Session* failed) { delete failed; });
  session->impl_->begin();
  Session* const active = session.release();  // from here on it lives for ever
  active->impl_->allocator.install_fork_handlers();
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] {
    Session* const parents = g_fork_parent.load();
    if (parents == nullptr) return;
    parents->impl_->in_child.store(true);
    parents->impl_->gate.disarm_in_child();
    g_session.store(nullptr);
  });
  g_fork_parent.store(active);
  g_session.store(active);
  if (registered != 0) active->impl_->note("pthread_atfork failed: forked children are not inert");
  return *active;
}

void Session::offer_memory(std::string_view device, MakeSource make, WorkClock* work) {
  OfferedMemory::all().add(device, {make, work});
}

void Session::follow_queue(
    const std::function<std::unique_ptr<DeviceQueue>(std::atomic<std::uint64_t>& done)>& make) {
  // The device may write to the page as long as the process lives.
  impl_->activity.follow_queue(*make(impl_->page.queue_done).release());
}

void Session::follow_multiprocessors(std::unique_ptr<MultiprocessorDial> dial) {
  impl_->sm_dial.store(dial.release(), std::memory_order_release);  // a step may be about to use it
}

void Session::note(const std::string& line) { impl_->note(line); }
void Session::warn(const std::string& line) {
  impl_->note(line);
  Impl::print(line);
}
bool Session::between_ops() noexcept { return Impl::between_ops(); }
void Session::take_device(DeviceMemory& memory, std::string id, const std::string& why) {
  impl_->take_device(memory, std::move(id), why);
}
void Session::add_device(DeviceMemory& memory, const std::string& id) {
  impl_->add_device(memory, id);
}
std::string Session::ask_for_memory(const std::string& id, Bytes needed) {
  SessionDevice* const device = id.empty() ? &impl_->first_device : impl_->devices.find(id);
  return device == nullptr ? id + " is not used yet" : impl_->ask_for_memory(*device, needed);
}
void Session::before_moves(std::function<void()> give_back) {
  impl_->before_moves(std::move(give_back));
}
bool Session::trains() const noexcept {
  return impl_->role.load(std::memory_order_relaxed) != MemberRole::kHelper;
}

void Session::use_device(std::string id) { impl_->use_device(std::move(id)); }

Session* Session::current() noexcept { return g_session.load(); }

const SessionConfig& Session::config() const noexcept { return impl_->config; }
ElasticAllocator& Session::allocator() noexcept { return impl_->allocator; }
Gate& Session::gate() noexcept { return impl_->gate; }

void Session::on_callback_switch(void (*enable)(bool on)) {
  if (!impl_->in_child.load()) impl_->gate.on_callback_switch(enable);
}

void Session::on_sampling_switch(void (*enable)(bool on)) {
  impl_->switch_sampling.store(enable, std::memory_order_release);
  impl_->client.wake();
}

void Session::op_sampled(const OpSample& sample) noexcept { impl_->samples.note(sample); }

void Session::on_wait(void* (*release)(), void (*restore)(void*)) {
  impl_->restore_gil.store(restore, std::memory_order_release);
  impl_->release_gil.store(release, std::memory_order_release);
}

void Session::on_move(void* (*take)(), void (*give)(void*)) {
  impl_->give_gil.store(give, std::memory_order_release);
  impl_->take_gil.store(take, std::memory_order_release);
}

void Session::on_region(TagId (*tag)() noexcept) {
  impl_->region_tag.store(tag, std::memory_order_release);
}

TagId Session::current_tag() const noexcept {
  auto* const tag = impl_->region_tag.load(std::memory_order_acquire);
  return tag == nullptr ? 0 : tag();
}

void Session::on_thread_count(int (*get)(), void (*set)(int)) {
  impl_->set_thread_count.store(set, std::memory_order_release);
  impl_->get_thread_count.store(get, std::memory_order_release);
}

void Session::range_begin(std::string_view name) noexcept {
  if (!impl_->in_child.load(std::memory_order_relaxed)) impl_->range_begin(name);
}

void Session::range_end(std::string_view name) noexcept {
  if (!impl_->in_child.load(std::memory_order_relaxed)) impl_->range_end(name);
}

void Session::collective_begin() noexcept {
  if (impl_->in_child.load(std::memory_order_relaxed)) return;
  impl_->page.collectives_begun.fetch_add(1, std::memory_order_release);
}

void Session::collective_end() noexcept {
  if (impl_->in_child.load(std::memory_order_relaxed)) return;
  impl_->page.collectives_ended.fetch_add(1, std::memory_order_release);
}

// What has ended is read first: what begins meanwhile shows as outstanding.
bool Session::collective_outstanding() const noexcept {
  const std::uint64_t ended = impl_->page.collectives_ended.load(std::memory_order_acquire);
  return impl_->page.collectives_begun.load(std::memory_order_acquire) != ended;
}

void Session::optimizer_step_begin() noexcept {
  if (impl_->in_child.load(std::memory_order_relaxed)) return;
  impl_->in_optimizer.store(true, std::memory_order_relaxed);
  impl_->activity.worked();
  (void)impl_->steps.hook_begin();
}

void Session::optimizer_step_end() noexcept {
  if (impl_->in_child.load(std::memory_order_relaxed)) return;
  impl_->in_optimizer.store(false, std::memory_order_relaxed);
  if (impl_->steps.hook_end()) impl_->step_ended();
  impl_->optimizer_ended();
}

void Session::batch_awaited() noexcept {
  if (!impl_->in_child.load(std::memory_order_relaxed)) impl_->batch_awaited();
}

void Session::batch_arrived() noexcept {
  if (!impl_->in_child.load(std::memory_order_relaxed)) impl_->batch_arrived();
}

void Session::batch_handed_over() noexcept {
  if (!impl_->in_child.load(std::memory_order_relaxed)) impl_->activity.batch_handed_over();
}

bool Session::checkpoint_begin() noexcept {
  return !impl_->in_child.load(std::memory_order_relaxed) && impl_->checkpoint_begin();
}

void Session::checkpoint_end() noexcept {
  if (!impl_->in_child.load(std::memory_order_relaxed)) impl_->activity.wait_end();
}

void Session::synchronised() noexcept {
  if (!impl_->in_child.load(std::memory_order_relaxed)) impl_->synchronised();
}

bool Session::in_optimizer() const noexcept {
  return impl_->in_optimizer.load(std::memory_order_relaxed);
}

void Session::touch() noexcept {
  if (!impl_->in_child.load(std::memory_order_relaxed)) impl_->touched();
}

void Session::touch_host() noexcept {
  if (impl_->on_host()) touch();
}

void Session::on_pressure(PressureHandler help) {
  auto shared = std::make_shared<const PressureHandler>(std::move(help));
  impl_->allocator.on_pressure([impl = impl_.get(), shared](Bytes needed) {
    const std::string helped = (*shared)(needed);
    return helped + "; " + impl->ask_for_memory(impl->first_device, needed);
  });
  const MutexLock lock(impl_->mutex);
  impl_->helper.swap(shared);
}

void Session::step() noexcept {
  if (impl_->in_child.load(std::memory_order_relaxed)) return;
  impl_->user_step();
}

void Session::become_rank(int rank, int world_size) { impl_->become_rank(rank, world_size); }
LimitTicket Session::set_memory_limit(Bytes max) { return impl_->set_memory_limit(max); }
void Session::set_compute_share(double max) { impl_->set_compute_share(max); }
void Session::pause() { impl_->gate.pause(); }
void Session::resume() { impl_->gate.resume(); }

std::string Session::stats_json() const { return to_json(impl_->view()).dump(); }
std::string Session::active_line() const { return impl_->active_line(); }
void Session::shutdown() noexcept { impl_->shutdown(); }

}  // namespace commensal
