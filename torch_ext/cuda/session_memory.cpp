// SPDX-License-Identifier: Apache-2.0
// The memory of a GPU as that of a session.
#include "torch_ext/cuda/session_memory.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "allocator/cuda/cuda_memory_source.h"
#include "allocator/deferred_source.h"
#include "torch_ext/cuda/cuda_work_clock.h"
#include "torch_ext/cuda/elastic_install.h"
#include "torch_ext/cuda/page_queue.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/phase.h"
#include "torch_ext/runtime/session.h"

#define COMMENSAL_EXPORT __attribute__((visibility("default")))

namespace commensal {
namespace {

constexpr const char* kDevice = "cuda";
constexpr Bytes kChunk = 2_MiB;  // the granularity of every GPU so far; checked when CUDA starts
constexpr int kNone = -1;
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

std::unique_ptr<MemorySource> make_source(const SessionConfig& config, bool (*between_ops)()) {
  CudaMemorySource::Options options;
  if (config.host_cap) options.host_cap = *config.host_cap;
  options.capturing = &cuda_capturing;
  static SessionGate& gate = *new SessionGate;
  options.gate = &gate;
  const auto make = [options] {
    CudaMemorySource::Options chosen = options;
    chosen.device = g_device.load();
    return std::make_unique<CudaMemorySource>(chosen);
  };
  const auto risk = [between_ops] {
    if (!between_ops()) {
      return MoveRisk{false, "memory of a GPU moves at the ends of steps of the training thread"};
    }
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

class SessionMemory final : public DeviceMemory {
 public:
  explicit SessionMemory(Session& session) : session_(session) {}

  ElasticAllocator* of(int device) override {
    int first = kNone;
    (void)g_device.compare_exchange_strong(first, device);
    if (g_device.load() != device) return nullptr;
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
    work_clock().watch(device);
    session_.gate().pass_while(&cuda_capturing);
    follow_queue(device);
    started_ = true;
    return &session_.allocator();
  }

  std::string reason(int device) override {
    const int first = g_device.load();
    if (first != device) {
      return "the memory of one GPU is managed in a process, and that is GPU " +
             std::to_string(first);
    }
    const MutexLock lock(mutex_);
    return reason_;
  }

  AllocationContext context() noexcept override {
    return {phase_now(session_), session_.current_tag()};
  }
  void delegated(int device, Bytes held) noexcept override {
    if (g_device.load() == device) session_.allocator().count_outside(held);
  }
  void served() noexcept override { session_.touch(); }
  void on_pressure(int /*device*/, std::function<std::string(Bytes)> helper) override {
    session_.on_pressure(std::move(helper));
  }

 private:
  void follow_queue(int device) {
    try {
      session_.follow_queue([device](std::atomic<std::uint64_t>& done) {
        return std::make_unique<PageQueue>(device, done, runtime_cuda_calls(), &cuda_capturing);
      });
    } catch (const SourceError& error) {
      session_.note(std::string("waits are told before the GPU is idle: ") + error.what());
    }
  }

  Session& session_;
  Mutex mutex_;
  bool started_ COMMENSAL_GUARDED_BY(mutex_) = false;
  std::string reason_ COMMENSAL_GUARDED_BY(mutex_);
};

std::string install_session() {
  Session* const session = Session::current();
  if (session == nullptr) return "commensal has no active session in this process";
  if (session->config().device != kDevice) {
    return "the session manages memory of '" + session->config().device + "'";
  }
  return install_elastic_cuda_allocator(*new SessionMemory(*session));
}

}  // namespace
}  // namespace commensal

COMMENSAL_EXPORT void commensal_torch_cuda_offer() {
  commensal::Session::offer_memory(commensal::kDevice, &commensal::make_source,
                                   &commensal::work_clock());
}

COMMENSAL_EXPORT const char* commensal_torch_cuda_install_session() {
  static thread_local std::string kept;
  try {
    kept = commensal::install_session();
  } catch (const std::exception& error) {
    kept = error.what();
  }
  return kept.empty() ? nullptr : kept.c_str();
}
