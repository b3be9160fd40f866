// SPDX-License-Identifier: Apache-2.0
// Alternate signal stacks. Built without sanitizers, as thread_stopper.cpp is and for its reasons.
#include "allocator/host/signal_stacks.h"

#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

namespace commensal {
namespace {

// Touched only as far as it is used.
constexpr std::size_t kRoom = 64U << 10U;
constexpr std::size_t kGuard = 64U << 10U;  // a multiple of every page size
constexpr std::uint32_t kSpread = 2654435761U;

// Below the stack lies a guard: an overflow is a fault, not damage.
std::byte* map_stack() noexcept {
  const std::size_t whole = kGuard + SignalStacks::size();
  const long got = ::syscall(SYS_mmap, nullptr, whole, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
  if (got == -1) return nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const begin = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(got));
  if (::syscall(SYS_mprotect, begin + kGuard, SignalStacks::size(), PROT_READ | PROT_WRITE) != 0) {
    ::syscall(SYS_munmap, begin, whole);
    return nullptr;
  }
  return begin + kGuard;
}

}  // namespace

std::size_t SignalStacks::size() noexcept {
  const std::size_t frame = ::getauxval(AT_MINSIGSTKSZ);  // 0 on kernels that do not tell
  return kRoom + (frame + kGuard - 1) / kGuard * kGuard;
}

void SignalStacks::put_into_bucket(std::uint32_t index) noexcept {
  std::uint32_t at = static_cast<std::uint32_t>(owners_[index].tid) * kSpread % kBuckets;
  while (buckets_[at] != 0) at = (at + 1) % kBuckets;
  buckets_[at] = index + 1;
}

void SignalStacks::take_back(SignalStackOwner& owner) noexcept {
  if (owner.stack == nullptr) return;
  unused_[unused_count_++] = owner.stack;  // never more stacks than entries
  owner.stack = nullptr;
}

void SignalStacks::begin_look() noexcept {
  for (std::uint32_t i = 0; i < count_; ++i) owners_[i].seen = false;
}

SignalStackOwner* SignalStacks::meet(int tid, std::uint64_t started) noexcept {
  std::uint32_t at = static_cast<std::uint32_t>(tid) * kSpread % kBuckets;
  SignalStackOwner* owner = nullptr;
  for (; buckets_[at] != 0 && owner == nullptr; at = (at + 1) % kBuckets) {
    SignalStackOwner& here = owners_[buckets_[at] - 1];
    if (here.tid == tid) owner = &here;
  }
  if (owner == nullptr) {
    if (count_ == kMaxThreads) return nullptr;
    owner = &owners_[count_];
    *owner = SignalStackOwner{};
    owner->tid = tid;
    owner->started = started;
    put_into_bucket(count_++);
  } else if (owner->started != started) {
    // Another thread with the same number: the first one is gone, and its stack is free.
    owner->started = started;
    owner->ready = owner->given = false;
  }
  owner->seen = true;
  return owner;
}

void SignalStacks::end_look() noexcept {
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count_; ++i) {
    if (owners_[i].seen) {
      if (kept != i) owners_[kept] = owners_[i];
      ++kept;
    } else {
      take_back(owners_[i]);
    }
  }
  if (kept == count_) return;
  count_ = kept;
  for (std::uint32_t& bucket : buckets_) bucket = 0;
  for (std::uint32_t i = 0; i < count_; ++i) put_into_bucket(i);
}

bool SignalStacks::provide(SignalStackOwner& owner) noexcept {
  if (owner.stack != nullptr) return true;
  owner.stack = unused_count_ > 0 ? unused_[--unused_count_] : map_stack();
  return owner.stack != nullptr;
}

void SignalStacks::note_given(SignalStackOwner& owner) noexcept {
  owner.ready = owner.given = true;
}

void SignalStacks::note_own(SignalStackOwner& owner) noexcept {
  owner.ready = true;
  // One that it had may come back: who sets another often restores the first one at the end.
  if (!owner.given) take_back(owner);
}

void SignalStacks::forget_in_child() noexcept {
  count_ = 0;
  unused_count_ = 0;
  for (std::uint32_t& bucket : buckets_) bucket = 0;
}

}  // namespace commensal
