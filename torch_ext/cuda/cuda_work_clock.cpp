// SPDX-License-Identifier: Apache-2.0
// Timed events, used again and again.
#include "torch_ext/cuda/cuda_work_clock.h"

#include <algorithm>
#include <exception>
#include <map>

namespace commensal {
namespace {

// What cannot be measured has taken a moment: its op stays without a prediction worth the name.
constexpr Duration kMoment{1};

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> number{0};
  return number.fetch_add(1) + 1;
}

}  // namespace

/// Events that nobody waits for. It outlives the clock where a thread still has its last one.
struct CudaWorkClock::Pool {
  Mutex mutex;
  std::map<int, std::vector<cudaEvent_t>> free COMMENSAL_GUARDED_BY(mutex);  // by device
  std::size_t made COMMENSAL_GUARDED_BY(mutex) = 0;
  bool closed COMMENSAL_GUARDED_BY(mutex) = false;  // the clock is gone
};

struct CudaWorkClock::Event {
  Event(std::shared_ptr<Pool> from, cudaEvent_t made, int on)
      : pool(std::move(from)), handle(made), device(on) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    const MutexLock lock(pool->mutex);
    if (pool->closed) return;
    try {
      pool->free[device].push_back(handle);
    } catch (const std::exception&) {
      --pool->made;  // one event is lost
    }
  }
  std::shared_ptr<Pool> pool;
  cudaEvent_t handle;
  int device;
};

CudaWorkClock::CudaWorkClock(CudaCalls& calls, bool (*capturing)())
    : calls_(calls),
      capturing_(capturing),
      number_(next_number()),
      pool_(std::make_shared<Pool>()) {}

CudaWorkClock::~CudaWorkClock() {
  {
    const MutexLock lock(mutex_);
    marks_.clear();
  }
  const MutexLock lock(pool_->mutex);
  for (const auto& [device, events] : pool_->free) {
    for (cudaEvent_t event : events) calls_.forget(event);
  }
  pool_->free.clear();
  pool_->closed = true;
}

std::shared_ptr<CudaWorkClock::Event> CudaWorkClock::record(int device) {
  cudaEvent_t handle = nullptr;
  {
    const MutexLock lock(pool_->mutex);
    std::vector<cudaEvent_t>& free = pool_->free[device];
    if (!free.empty()) {
      handle = free.back();
      free.pop_back();
    }
  }
  const bool made = handle == nullptr;
  if (made) handle = calls_.make_timed(device);
  auto event = std::make_shared<Event>(pool_, handle, device);
  if (made) {
    const MutexLock lock(pool_->mutex);
    ++pool_->made;
  }
  calls_.record(handle, device, calls_.current_stream(device));
  return event;
}

CudaWorkClock::Mark CudaWorkClock::try_put() noexcept {
  try {
    return put();
  } catch (const std::exception&) {
    return {};  // the runtime's own callers will hear of it
  }
}

CudaWorkClock::Mark CudaWorkClock::put() {
  const std::uint64_t watched = devices_.load(std::memory_order_relaxed);
  if (watched == 0 || capturing_()) return {};
  const int device = calls_.current_device();
  if (device < 0 || device >= kMaxDevices || (watched >> device & 1U) == 0) return {};
  struct Last {
    std::uint64_t clock = 0;
    std::shared_ptr<Event> event;
  };
  static thread_local Last last;
  std::shared_ptr<Event> now = record(device);
  std::shared_ptr<Event> before = std::exchange(last.event, now);
  if (std::exchange(last.clock, number_) != number_) before = nullptr;
  if (before != nullptr && before->device != device) before = nullptr;
  return {std::move(before), std::move(now)};
}

// Where it fails, what comes is measured from the mark before.
void CudaWorkClock::begin() noexcept { (void)try_put(); }

WorkClock::Marker CudaWorkClock::mark() noexcept {
  Mark made = try_put();
  if (made.from == nullptr) return 0;
  const MutexLock lock(mutex_);
  try {
    marks_.emplace(last_ + 1, std::move(made));
  } catch (const std::exception&) {
    return 0;
  }
  return ++last_;
}

std::optional<Duration> CudaWorkClock::passed(Marker marker) noexcept {
  if (capturing_()) return std::nullopt;
  Mark mark;
  {
    const MutexLock lock(mutex_);
    const auto found = marks_.find(marker);
    if (found == marks_.end()) return kMoment;
    mark = found->second;
  }
  Duration took = kMoment;
  try {
    if (!calls_.reached(mark.to->handle)) return std::nullopt;
    took = std::max(took, calls_.between(mark.from->handle, mark.to->handle));
  } catch (const std::exception&) {
    took = kMoment;
  }
  const MutexLock lock(mutex_);
  marks_.erase(marker);
  return took;
}

std::size_t CudaWorkClock::events() const {
  const MutexLock lock(pool_->mutex);
  return pool_->made;
}

}  // namespace commensal
