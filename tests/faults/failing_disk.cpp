// SPDX-License-Identifier: Apache-2.0
// Stands in for two functions of the C library, in this program alone. Nothing here allocates or
// takes a lock: the spill file is also written while all threads are stopped.
#include "tests/faults/failing_disk.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>

namespace commensal::testing {
namespace {

struct Plan {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> fail_at{0};  // number of the call that fails; zero: none
  std::atomic<bool> for_ever{false};
  std::atomic<int> error{0};
};
std::array<Plan, 3> g_plans;
std::atomic<std::uint64_t> g_failures{0};

Plan& plan(DiskCall call) { return g_plans[static_cast<std::size_t>(call)]; }

/// True: this call fails, and errno is set; it is zero for a call that transfers nothing.
bool fails(DiskCall call) {
  Plan& p = plan(call);
  const std::uint64_t number = p.calls.fetch_add(1) + 1;
  const std::uint64_t fail_at = p.fail_at.load();
  if (fail_at == 0 || number < fail_at || (number > fail_at && !p.for_ever.load())) return false;
  g_failures.fetch_add(1);
  errno = p.error.load();
  return true;
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

void break_disk(DiskCall call, int error, std::uint64_t n, bool for_ever) {
  Plan& p = plan(call);
  p.error = error;
  p.for_ever = for_ever;
  p.fail_at = p.calls + n;
}
void heal_disk() {
  for (Plan& p : g_plans) p.fail_at = 0;
}
std::uint64_t disk_calls(DiskCall call) { return plan(call).calls; }
std::uint64_t disk_failures() { return g_failures; }

}  // namespace commensal::testing

extern "C" {

// Reads six arguments, as the real one does, also where fewer were given.
__attribute__((no_sanitize("address"))) long syscall(long number, ...) noexcept {
  using commensal::testing::DiskCall;
  using commensal::testing::fails;
  using commensal::testing::kShortTransfer;
  constexpr long kSector = 4096;  // direct I/O goes on there
  static const auto real = commensal::testing::next<long (*)(long, ...)>("syscall");
  std::va_list arguments;
  va_start(arguments, number);
  std::array<long, 6> a{};
  for (long& argument : a) argument = va_arg(arguments, long);
  va_end(arguments);
  if ((number == SYS_pwrite64 && fails(DiskCall::kWrite)) ||
      (number == SYS_pread64 && fails(DiskCall::kRead))) {
    if (errno != kShortTransfer) return errno == 0 ? 0 : -1;
    a[2] = std::min(a[2], std::max(a[2] / 2 / kSector, 1L) * kSector);  // bytes
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  static const auto real = commensal::testing::next<int (*)(int, int, off_t, off_t)>("fallocate");
  if (commensal::testing::fails(commensal::testing::DiskCall::kReserve)) return -1;
  return real(fd, mode, offset, size);
}

}  // extern "C"
