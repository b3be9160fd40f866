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
#include "allocator/device_memory.h"
#include "torch_ext/cuda/elastic_install.h"
#include "torch_ext/cuda/session_gpu.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/phase.h"
#include "torch_ext/runtime/session.h"

#define COMMENSAL_EXPORT __attribute__((visibility("default")))

namespace commensal {
namespace {

constexpr Bytes kChunk = 2_MiB;  // the granularity of every GPU so far; checked when CUDA starts
constexpr int kNone = -1;
constexpr const char* kElsewhere =
    "memory of a GPU moves at the ends of steps of the training thread";
constexpr const char* kCollective = "a collective is outstanding";

std::atomic<int> g_device{kNone};    // whose memory it is: the one that is used first
DeferredSource* g_source = nullptr;  // of the session

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

CudaMemoryProvider::Options more_options(const SessionConfig& config) {
  CudaMemoryProvider::Options options;
  options.source = source_options(config);
  if (config.host_cap) options.allocator.host_cap = *config.host_cap;
  if (config.memory_policy == MemoryPolicy::kAntman) {
    options.allocator.move_live = false;
    options.allocator.by_lifetime = false;
  }
  return options;
}

// Elastic memory of another GPU than the first, which moves where that of the first does.
class OtherGpu final : public DeviceMemory {
 public:
  OtherGpu(ElasticAllocator& memory, Bytes slower) : memory_(memory), slower_(slower) {}

  LimitTicket post_limit(Bytes limit) override {
    LimitTicket ticket = memory_.post_limit(limit);
    const AllocatorStats now = memory_.stats();
    ticket.deferred = saturating_sub(now.device + now.host_touched, limit);
    if (!ticket.deferred.is_zero()) ticket.reason = kElsewhere;
    return ticket;
  }
  LimitTicket safe_point() override { return between_ops() ? memory_.safe_point() : LimitTicket{}; }
  LimitTicket park() override { return between_ops() ? memory_.park() : LimitTicket{}; }
  void step_ended() noexcept override { memory_.step_ended(); }
  void keep_live(bool keeps) noexcept override { memory_.keep_live(keeps); }
  [[nodiscard]] bool work_pending() const noexcept override { return memory_.work_pending(); }
  [[nodiscard]] AllocatorStats stats() const override { return memory_.stats(); }
  [[nodiscard]] Bytes slower_capacity() const override { return slower_; }

 private:
  ElasticAllocator& memory_;
  const Bytes slower_;
};

// The GPU that is used first is the session's. Each other one has elastic memory of its own,
// which the coordinator divides, too.
class SessionMemory final : public MemoryProvider {
 public:
  explicit SessionMemory(Session& session)
      : session_(session), others_(more_options(session.config())), gpus_(session) {}

  bool begun() noexcept override { return session_.trains(); }

  ElasticAllocator* of(int device) override {
    int first = kNone;
    (void)g_device.compare_exchange_strong(first, device);
    return g_device.load() == device ? of_session(device) : of_other(device);
  }

  std::string reason(int device) override {
    if (g_device.load() != device) return others_.reason(device);
    const MutexLock lock(mutex_);
    return reason_;
  }

  void let_in(int device, int user) override {
    if (g_device.load() != device) {
      others_.let_in(device, user);
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
      others_.delegated(device, held);
    }
  }
  void served() noexcept override { session_.touch(); }
  void on_pressure(int device, std::function<std::string(Bytes)> helper) override {
    if (g_device.load() == device) {
      session_.on_pressure(std::move(helper));
    } else {
      others_.on_pressure(device, [this, device, help = std::move(helper)](Bytes needed) {
        const std::string helped = help(needed);
        return helped + "; " + session_.ask_for_memory(others_.id(device), needed);
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
      fall_back_to_native(session_, device, reason_);
      return nullptr;
    }
    gpus_.follow_first(device);
    started_ = true;
    return &session_.allocator();
  }

  ElasticAllocator* of_other(int device) {
    ElasticAllocator* const memory = others_.of(device);
    if (memory == nullptr) return nullptr;
    {
      const MutexLock lock(mutex_);
      if (!added_.insert(device).second) return memory;
      gpus_.follow_other(device, others_.id(device));
    }
    // Not under the lock: it waits, with the GIL released.
    session_.add_device(*new OtherGpu(*memory, others_.slower_capacity(device)),
                        others_.id(device));  // never destroyed
    return memory;
  }

  Session& session_;
  CudaMemoryProvider others_;
  Mutex mutex_;
  SessionGpus gpus_ COMMENSAL_GUARDED_BY(mutex_);
  bool started_ COMMENSAL_GUARDED_BY(mutex_) = false;
  std::string reason_ COMMENSAL_GUARDED_BY(mutex_);
  std::set<int> added_ COMMENSAL_GUARDED_BY(mutex_);
};

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

}  // namespace
}  // namespace commensal

COMMENSAL_EXPORT void commensal_torch_cuda_offer() {
  commensal::Session::offer_memory(commensal::kGpu, &commensal::make_source,
                                   &commensal::work_clock());
}

COMMENSAL_EXPORT const char* commensal_torch_cuda_install_session() {
  return commensal::told([] { return commensal::install_session(); });
}
