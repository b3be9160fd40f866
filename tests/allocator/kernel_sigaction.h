// SPDX-License-Identifier: Apache-2.0
// Handlers of signals as the kernel knows them: sanitizers keep a table of their own.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace commensal::testing {

struct KernelSigaction {
  void (*handler)(int) = nullptr;
  unsigned long flags = 0;
  void (*restorer)() = nullptr;
  std::uint64_t mask = 0;
};

/// As sigaction(2). A handler that is to run needs what the C library adds: not for such.
inline long kernel_sigaction(int signal, const KernelSigaction* set, KernelSigaction* old) {
  return ::syscall(SYS_rt_sigaction, signal, set, old, sizeof(std::uint64_t));
}

}  // namespace commensal::testing
