// SPDX-License-Identifier: Apache-2.0
// Pinned host memory for parked chunks.
#include "allocator/cuda/pinned_arena.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "allocator/host/own_threads.h"
#include "allocator/memory_source.h"

namespace commensal {
namespace {

constexpr Bytes kLargestSlab = 64_MiB;
constexpr auto kAfterACapture = std::chrono::milliseconds{50};

}  // namespace

PinnedArena::PinnedArena(const DeviceContext& context, const Options& options)
    : context_(context), options_(options) {}

PinnedArena::~PinnedArena() {
  std::unique_ptr<std::thread> thread;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread != nullptr) thread->join();
  const MutexLock lock(mutex_);  // nobody else can be here: held only for the analysis
  for (const auto& slab : slabs_) {
    for (int i = 0; i < 3 && !unpin(slab->begin); ++i) continue;
  }
}

// --- slabs ---------------------------------------------------------------------------------

std::byte* PinnedArena::pin(Bytes size) const {
  const DeviceContext::Scope scope(context_);
  scope.check();
  void* begin = nullptr;
  check_cuda(context_.driver().cuMemHostAlloc(&begin, size.count(), CU_MEMHOSTALLOC_DEVICEMAP),
             "cuMemHostAlloc of " + to_string(size));
  return static_cast<std::byte*>(begin);
}

bool PinnedArena::unpin(std::byte* begin) const noexcept {
  const DeviceContext::Scope scope(context_);
  return scope.result() == CUDA_SUCCESS && context_.driver().cuMemFreeHost(begin) == CUDA_SUCCESS;
}

Bytes PinnedArena::idle_bytes() const {
  Bytes idle;
  for (const auto& slab : slabs_) {
    if (slab->idle()) idle += slab->size;
  }
  return idle;
}

bool PinnedArena::has_slot(Bytes size) const {
  return std::any_of(slabs_.begin(), slabs_.end(), [size](const auto& slab) {
    return slab->slot == size && !slab->leaving && !slab->free.empty();
  });
}

std::byte* PinnedArena::find_slot(Bytes size) {
  for (const auto& slab : slabs_) {
    if (slab->slot != size || slab->leaving || slab->free.empty()) continue;
    std::byte* const slot = slab->free.back();
    slab->free.pop_back();
    return slot;
  }
  return nullptr;
}

// Pins one more slab, without the lock meanwhile. @throws OutOfMemory, SourceError.
void PinnedArena::add_slab(Bytes slot) {
  const Bytes room = saturating_sub(options_.most, pinned_);
  const Bytes wanted = std::max(slot, std::min(kLargestSlab, pinned_));
  const Bytes size{std::min(wanted, room).count() / slot.count() * slot.count()};
  if (size.is_zero()) {
    throw OutOfMemory("above the cap of pinned memory: " + to_string(pinned_) + " + " +
                      to_string(slot) + " > " + to_string(options_.most));
  }
  auto slab = std::make_unique<Slab>();
  slab->size = size;
  slab->slot = slot;
  slab->free.reserve(size.count() / slot.count());
  slabs_.reserve(slabs_.size() + 1);
  pinned_ += size;
  mutex_.unlock();
  std::exception_ptr refused;
  try {
    slab->begin = pin(size);
  } catch (const std::exception&) {
    refused = std::current_exception();
  }
  mutex_.lock();
  if (refused != nullptr) {
    pinned_ -= size;
    std::rethrow_exception(refused);
  }
  for (Bytes at; at < size; at += slot) slab->free.push_back(slab->begin + at.count());
  slabs_.push_back(std::move(slab));
}

// Unpins one slab of which no slot is in use, without the lock meanwhile. False: there is none, or
// the driver refuses.
bool PinnedArena::give_back_one() noexcept {
  const auto idle =
      std::find_if(slabs_.rbegin(), slabs_.rend(), [](const auto& slab) { return slab->idle(); });
  if (idle == slabs_.rend()) return false;
  Slab* const slab = idle->get();
  slab->leaving = true;
  mutex_.unlock();
  const bool gone = unpin(slab->begin);
  mutex_.lock();
  slab->leaving = false;
  refused_ = !gone;
  if (!gone) return false;
  pinned_ -= slab->size;
  std::erase_if(slabs_, [slab](const auto& one) { return one.get() == slab; });
  return true;
}

void PinnedArena::trim() noexcept {
  while (idle_bytes() > options_.keep && give_back_one()) continue;
}

// --- slots ---------------------------------------------------------------------------------

std::byte* PinnedArena::take(Bytes size) {
  const MutexLock lock(mutex_);
  refused_ = false;
  std::byte* slot = find_slot(size);
  while (slot == nullptr) {
    if (building_) {  // perhaps of that size, and it has taken room
      changed_.wait(mutex_);
    } else {
      try {
        add_slab(size);
      } catch (const OutOfMemory&) {
        if (!give_back_one()) throw;  // of another size: it may be what is missing
      }
    }
    slot = find_slot(size);
  }
  if (options_.in_background && !has_slot(size)) {
    wanted_ = size;
    start_thread();
    changed_.notify_all();
  }
  return slot;
}

void PinnedArena::give(std::byte* slot) noexcept {
  const MutexLock lock(mutex_);
  refused_ = false;
  for (const auto& slab : slabs_) {
    if (slot < slab->begin || slot >= slab->begin + slab->size.count()) continue;
    slab->free.push_back(slot);  // `add_slab` made room
    break;
  }
  if (thread_ == nullptr) {
    trim();
  } else {
    changed_.notify_all();
  }
}

Bytes PinnedArena::pinned() const noexcept {
  const MutexLock lock(mutex_);
  return pinned_;
}

Bytes PinnedArena::unused() const noexcept {
  const MutexLock lock(mutex_);
  return idle_bytes();
}

// --- in the background ---------------------------------------------------------------------

// Without a thread `take` and `give` do it all.
void PinnedArena::start_thread() noexcept {
  if (thread_ != nullptr) return;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  if (::pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return;
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
    ::pthread_setname_np(thread_->native_handle(), "commensal-pin");
  } catch (const std::exception&) {
    wanted_ = Bytes{};
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool PinnedArena::work_is_due() const {
  return !wanted_.is_zero() || (!refused_ && idle_bytes() > options_.keep);
}

// Makes the slab that is wanted. If that fails, whoever needs it tries again and says why not.
void PinnedArena::build() noexcept {
  building_ = true;
  try {
    add_slab(std::exchange(wanted_, Bytes{}));
  } catch (const std::exception&) {
    wanted_ = Bytes{};
  }
  building_ = false;
  changed_.notify_all();
}

void PinnedArena::run() noexcept {
  const OwnThread own;
  const MutexLock lock(mutex_);
  while (!stopping_) {
    if (!work_is_due()) {
      changed_.wait(mutex_);
    } else if (options_.capturing != nullptr && options_.capturing()) {
      (void)changed_.wait_for(mutex_, kAfterACapture);
    } else if (!wanted_.is_zero()) {
      build();
    } else {
      (void)give_back_one();
    }
  }
}

}  // namespace commensal
