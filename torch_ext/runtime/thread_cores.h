// SPDX-License-Identifier: Apache-2.0
// The CPUs that the threads of this process, and of its forked children, may run on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/wire/core_set.h"

namespace commensal {

/// Reads and sets what threads may run on. A fake stands in for the kernel in tests.
class ThreadCores {
 public:
  struct Thread {
    int tid = 0;
    bool own = false;  ///< this project's own (own_threads.h)
  };
  virtual ~ThreadCores() = default;

  /// The threads of this process and of children that it forked and that are still the same program
  /// (loader workers): what it starts as another program is left out.
  [[nodiscard]] virtual std::vector<Thread> threads() = 0;
  /// The CPUs that a thread may run on; nothing if it has ended, or has CPUs that no set can name.
  [[nodiscard]] virtual std::optional<wire::CoreSet> get(int tid) = 0;
  /// Lets a thread run on these only. @return why not; empty: done, or it has ended meanwhile.
  [[nodiscard]] virtual std::string set(int tid, const wire::CoreSet& cores) = 0;
};

/// The kernel's. Thread safe.
[[nodiscard]] ThreadCores& kernel_thread_cores();

/// The CPUs that a session counts as its process's own: those that it has, or, where it has
/// inherited a parent's confined ones, the parent's own. Pure.
/// @param inherited  "PID:LIST:THREADS" as a parent leaves it: that process's own; empty: none.
/// @param parents  what process PID has now; nothing: it is gone.
[[nodiscard]] wire::CoreSet own_cores(const wire::CoreSet& mine, const std::string& inherited,
                                      const std::optional<wire::CoreSet>& parents);
/// The PID of such a text; 0 if it is none.
[[nodiscard]] int parent_of(const std::string& inherited) noexcept;

}  // namespace commensal
