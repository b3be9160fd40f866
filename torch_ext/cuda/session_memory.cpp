// SPDX-License-Identifier: Apache-2.0
// The memory of a GPU as that of a session.
#include "torch_ext/cuda/session_memory.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "allocator/cuda/cuda_memory_source.h"
#include "allocator/deferred_source.h"
#include "torch_ext/cuda/cap_only.h"
#include "torch_ext/cuda/cuda_work_clock.h"
#include "torch_ext/cuda/elastic_install.h"
#include "torch_ext/cuda/green_dial.h"
#include "torch_ext/cuda/page_queue.h"
#include "torch_ext/cuda/synchronising_ops.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/phase.h"
#include "torch_ext/runtime/limited_memory.h"
#include "torch_ext/runtime/session.h"

#define COMMENSAL_EXPORT __attribute__((visibility("default")))

namespace commensal {
namespace {

constexpr const char* kDevice = "cuda";
constexpr Bytes kChunk = 2_MiB;  // the granularity of every GPU so far; checked when CUDA starts
constexpr int kNone = -1;
constexpr const char* kElsewhere =
    "memory of a GPU moves at the ends of steps of the training thread";
constexpr const char* kCollective = "a collective is outstanding";

std::atomic<int> g_device{kNone};    // whose memory it is: the one that is used first
DeferredSource* g_source = nullptr;  // of the session

CudaWorkClock& work_clock() {
  static CudaWorkClock& clock = *new CudaWorkClock(runtime_cuda_calls(), &cuda_capturing);
  return clock;
}

// Where ops pass the session's gate, none begins while chunks change places. Where they do not, it
// is the Python lock that keeps the program's threads from giving the device work: a safe point
// holds it, and lies between two steps.
//
// Collectives pass the gate, and their own threads give the device work without any lock of the
// program (Gloo copies what it received): none may be outstanding.
class SessionGate final : public WorkGate {
 public:
  bool close(Duration deadline) noexcept override {
    const TimePoint until = std::chrono::steady_clock::now() + deadline;
    Session* const session = Session::current();
    closed_ = session != nullptr && session->gate().wants_callback();
    reason_ = WorkGate::reason();
    if (closed_ && !session->gate().hold(deadline)) return false;
    while (session != nullptr && session->collective_outstanding()) {
      if (std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(kPause);
        continue;
      }
      open();
      reason_ = kCollective;
      return false;
    }
    return true;
  }
  void open() noexcept override {
    if (closed_) Session::current()->gate().release();
  }
  const char* reason() const noexcept override { return reason_; }

 private:
  static constexpr Duration kPause = std::chrono::microseconds{50};
  bool closed_ = false;  // by the thread that moves memory: one at a time
  const char* reason_ = "";
};

bool (*g_between_ops)() = nullptr;

bool between_ops() { return g_between_ops != nullptr && g_between_ops(); }

CudaMemorySource::Options source_options(const SessionConfig& config) {
  CudaMemorySource::Options options;
  if (config.host_cap) options.host_cap = *config.host_cap;
  options.capturing = &cuda_capturing;
  static SessionGate& gate = *new SessionGate;
  options.gate = &gate;
  return options;
}

std::unique_ptr<MemorySource> make_source(const SessionConfig& config, bool (*at_border)()) {
  g_between_ops = at_border;
  const auto make = [options = source_options(config)] {
    CudaMemorySource::Options chosen = options;
    chosen.device = g_device.load();
    return std::make_unique<CudaMemorySource>(chosen);
  };
  const auto risk = [] {
    if (!between_ops()) return MoveRisk{false, kElsewhere};
    // Not copied in vain: the fence would wait for the other ranks.
    const Session* const session = Session::current();
    if (session != nullptr && session->collective_outstanding()) {
      return MoveRisk{false, kCollective};
    }
    return MoveRisk{};
  };
  auto source = std::make_unique<DeferredSource>(make, kChunk, risk);
  g_source = source.get();
  return source;
}

CudaDeviceMemory::Options more_options(const SessionConfig& config) {
  CudaDeviceMemory::Options options;
  options.source = source_options(config);
  if (config.host_cap) options.allocator.host_cap = *config.host_cap;
  if (config.memory_policy == MemoryPolicy::kAntman) {
    options.allocator.move_live = false;
    options.allocator.by_lifetime = false;
  }
  return options;
}

// Elastic memory of a further GPU, which moves where that of the first does.
class FurtherGpu final : public LimitedMemory {
 public:
  FurtherGpu(ElasticAllocator& memory, Bytes slower) : memory_(memory), slower_(slower) {}

  LimitTicket post_limit(Bytes limit) override {
    LimitTicket ticket = memory_.post_limit(limit);
    const AllocatorStats now = memory_.stats();
    ticket.deferred = saturating_sub(now.device + now.host_touched, limit);
    if (!ticket.deferred.is_zero()) ticket.reason = kElsewhere;
    return ticket;
  }
  LimitTicket safe_point() override { return between_ops() ? memory_.safe_point() : LimitTicket{}; }
  void step_ended() noexcept override { memory_.step_ended(); }
  [[nodiscard]] bool work_pending() const noexcept override { return memory_.work_pending(); }
  [[nodiscard]] AllocatorStats stats() const override { return memory_.stats(); }
  [[nodiscard]] Bytes slower_capacity() const override { return slower_; }

 private:
  ElasticAllocator& memory_;
  const Bytes slower_;
};

// Has the gate go by the time of a GPU, and waits of the job count once that is idle. Returns the
// queue, which lives for ever; null: waits cannot be told so.
PageQueue* follow_device(Session& session, int device) {
  work_clock().watch(device);
  session.gate().pass_while(&cuda_capturing);
  PageQueue* queue = nullptr;
  try {
    session.follow_queue([device, &queue](std::atomic<std::uint64_t>& done) {
      auto made = std::make_unique<PageQueue>(device, done, &cuda_capturing);
      queue = made.get();
      return made;
    });
  } catch (const SourceError& error) {
    session.note(std::string("waits are told before the GPU is idle: ") + error.what());
  }
  return queue;
}

// The GPU that is used first is the session's. Each further one has elastic memory of its own,
// which the coordinator divides, too.
class SessionMemory final : public DeviceMemory {
 public:
  explicit SessionMemory(Session& session)
      : session_(session), further_(more_options(session.config())) {}

  bool begun() noexcept override { return session_.trains(); }

  ElasticAllocator* of(int device) override {
    int first = kNone;
    (void)g_device.compare_exchange_strong(first, device);
    return g_device.load() == device ? of_session(device) : of_further(device);
  }

  std::string reason(int device) override {
    if (g_device.load() != device) return further_.reason(device);
    const MutexLock lock(mutex_);
    return reason_;
  }

  void let_in(int device, int user) override {
    if (g_device.load() != device) {
      further_.let_in(device, user);
      return;
    }
    session_.allocator().with_source(
        [&] { static_cast<CudaMemorySource*>(g_source->made())->let_in(user); });
  }

  AllocationContext context() noexcept override {
    return {phase_now(session_), session_.current_tag()};
  }
  void delegated(int device, Bytes held) noexcept override {
    if (g_device.load() == device) {
      session_.allocator().count_outside(held);
    } else {
      further_.delegated(device, held);
    }
  }
  void served() noexcept override { session_.touch(); }
  void on_pressure(int device, std::function<std::string(Bytes)> helper) override {
    if (g_device.load() == device) {
      session_.on_pressure(std::move(helper));
    } else {
      further_.on_pressure(device, [this, device, help = std::move(helper)](Bytes needed) {
        const std::string helped = help(needed);
        return helped + "; " + session_.ask_for_memory(further_.id(device), needed);
      });
    }
  }

 private:
  ElasticAllocator* of_session(int device) {
    const MutexLock lock(mutex_);
    if (!reason_.empty()) return nullptr;
    if (started_) return &session_.allocator();
    try {
      g_source->start();
      session_.use_device(static_cast<CudaMemorySource*>(g_source->made())->device_id());
    } catch (const std::exception& error) {
      reason_ = error.what();
      return nullptr;
    }
    queue_ = follow_device(session_, device);
    session_.follow_multiprocessors(
        std::make_unique<GreenDial>(device, torch_current_stream(), &cuda_capturing));
    started_ = true;
    return &session_.allocator();
  }

  ElasticAllocator* of_further(int device) {
    ElasticAllocator* const memory = further_.of(device);
    if (memory == nullptr) return nullptr;
    {
      const MutexLock lock(mutex_);
      if (!added_.insert(device).second) return memory;
      follow_further(device);
    }
    // Not under the lock: it waits, with the GIL released.
    session_.add_device(*new FurtherGpu(*memory, further_.slower_capacity(device)),
                        further_.id(device));  // never destroyed
    return memory;
  }

  // The gate goes by its time, too, and waits count once it is idle as well.
  void follow_further(int device) COMMENSAL_REQUIRES(mutex_) {
    work_clock().watch(device);
    if (queue_ == nullptr) return;
    try {
      queue_->add(device);
    } catch (const std::exception& error) {
      session_.note("waits are told before " + further_.id(device) + " is idle: " + error.what());
    }
  }

  Session& session_;
  CudaDeviceMemory further_;
  Mutex mutex_;
  PageQueue* queue_ COMMENSAL_GUARDED_BY(mutex_) = nullptr;
  bool started_ COMMENSAL_GUARDED_BY(mutex_) = false;
  std::string reason_ COMMENSAL_GUARDED_BY(mutex_);
  std::set<int> added_ COMMENSAL_GUARDED_BY(mutex_);
};

Session& session_of_gpu() {
  Session* const session = Session::current();
  if (session == nullptr) throw SessionError("commensal has no active session in this process");
  if (session->config().device != kDevice) {
    throw SessionError("the session manages memory of '" + session->config().device + "'");
  }
  return *session;
}

// The host's waits of a guaranteed job; another one's ops pass its gate.
void show_waits(const Session& session) {
  if (session.config().job_class == JobClass::kGuaranteed) show_synchronising_ops();
}

std::string install_session() {
  Session& session = session_of_gpu();
  static SessionMemory& memory = *new SessionMemory(session);  // never destroyed
  std::string complaint = install_elastic_cuda_allocator(memory);
  if (complaint.empty()) {
    session.before_moves(&give_back_delegates_cache);
    show_waits(session);
  }
  return complaint;
}

// For the GPU that is current: CUDA has started.
void begin_cap_only(const std::string& why) {
  Session& session = session_of_gpu();
  const int device = runtime_cuda_calls().current_device();
  int first = kNone;
  if (!g_device.compare_exchange_strong(first, device)) return;  // has begun
  CapOnly::Options options;
  options.device = device;
  options.may_act = &between_ops;
  const std::string blind = watch_captures();
  if (blind.empty()) options.capturing = &cuda_capturing;
  auto& allocator = *c10::cuda::CUDACachingAllocator::allocator.load();
  // Throws where PyTorch's allocator knows no fraction.
  auto& memory = *new CapOnly(allocator, runtime_cuda_calls(), options);  // never destroyed
  session.cap_only(memory);
  session.note("cap only: " + why);
  if (blind.empty()) {
    (void)follow_device(session, device);
    show_waits(session);
  }
  session.use_device(DeviceContext(device).id());
  (void)memory.safe_point();
}

}  // namespace
}  // namespace commensal

COMMENSAL_EXPORT void commensal_torch_cuda_offer() {
  commensal::Session::offer_memory(commensal::kDevice, &commensal::make_source,
                                   &commensal::work_clock());
}

namespace {

// Runs `work` and returns null, or what it complains of until the thread's next call.
template <typename Work>
const char* complaint_of(Work work) {
  static thread_local std::string complaint;
  try {
    complaint = work();
  } catch (const std::exception& error) {
    complaint = error.what();
    complaint = complaint.substr(0, complaint.find('\n'));  // PyTorch's errors go on with a trace
  }
  return complaint.empty() ? nullptr : complaint.c_str();
}

}  // namespace

COMMENSAL_EXPORT const char* commensal_torch_cuda_install_session() {
  return complaint_of([] { return commensal::install_session(); });
}

COMMENSAL_EXPORT const char* commensal_torch_cuda_cap_only(const char* why) {
  const char* const complaint = complaint_of([why] {
    commensal::begin_cap_only(why);
    return std::string();
  });
  commensal::Session* const session = commensal::Session::current();
  if (complaint != nullptr && session != nullptr) {
    session->note(std::string("the limit of GPU memory is not enforced: ") + complaint);
  }
  return complaint;
}
