// SPDX-License-Identifier: Apache-2.0
// Tells a wait for a request from a long op and from a neighbour.
#include "torch_ext/runtime/request_finder.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "allocator/host/own_descriptors.h"
#include "torch_ext/gate/device_time.h"

namespace commensal {
namespace {

constexpr Duration kLeastQuiet = std::chrono::milliseconds{2};
constexpr Duration kMostQuiet = std::chrono::seconds{1};
constexpr Duration::rep kForget = 64;  // requests, about, after which a long pause is forgotten

}  // namespace

ThreadUse read_thread_use() noexcept {
  ThreadUse use{CpuThreadTime::instance().total(), {}};
  char self[64];
  const ssize_t named = ::readlink("/proc/thread-self", self, sizeof self);  // PID/task/TID
  if (named <= 0) return use;
  char path[96];
  (void)std::snprintf(path, sizeof path, "/proc/%.*s/schedstat", static_cast<int>(named), self);
  const long file = own_descriptors::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return use;
  char text[96];
  const long length = own_descriptors::call(SYS_read, file, text, sizeof text);
  (void)own_descriptors::call(SYS_close, file);
  if (length <= 0) return use;
  // "RUN DELAYED SLICES", in nanoseconds; RUN is as old as the last tick.
  const char* const end = text + length;
  const char* const space = std::find(static_cast<const char*>(text), end, ' ');
  Duration::rep delayed = 0;
  if (space != end && std::from_chars(space + 1, end, delayed).ec == std::errc{}) {
    use.delayed = Duration{delayed};
  }
  return use;
}

std::optional<FoundRequest> RequestFinder::note(TimePoint last, TimePoint now, const void* thread,
                                                const ThreadUse& use) noexcept {
  const Duration pause = now - last;
  Duration blocked = pause;
  if (thread == thread_) {
    const Duration used = (use.ran - use_.ran) + (use.delayed - use_.delayed);
    // Before the pause it was hardly ever blocked, or that would have been a pause, too.
    blocked = std::clamp(now - asked_ - used, Duration::zero(), pause);
  }
  thread_ = thread;
  use_ = use;
  asked_ = now;
  if (blocked < kLeastPause || 2 * blocked < pause) {
    longest_ = std::max(longest_, pause);
    return std::nullopt;
  }
  longest_ -= longest_ / kForget;
  const TimePoint began = std::exchange(began_, now);
  if (began == TimePoint{}) return std::nullopt;
  ++found_;
  const TimePoint ended = now - blocked;
  return FoundRequest{ended - began, ended, blocked};
}

Duration RequestFinder::quiet() const noexcept {
  return found_ < kBefore ? Duration{} : std::clamp(2 * longest_, kLeastQuiet, kMostQuiet);
}

}  // namespace commensal
