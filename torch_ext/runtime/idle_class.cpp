// SPDX-License-Identifier: Apache-2.0
// Walks over the threads of the process and changes their scheduling class.
#include "torch_ext/runtime/idle_class.h"

#include <sched.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "allocator/host/own_descriptors.h"
#include "allocator/host/own_threads.h"
#include "allocator/host/thread_stopper.h"

namespace commensal {
namespace {

namespace fs = std::filesystem;

/// Calls `visit(tid, name)` for each thread of a process, again for those that appear meanwhile.
template <typename Visit>
void each_thread(const fs::path& process, Visit visit) {
  std::set<int> seen;
  bool found = true;
  while (found) {
    found = false;
    std::error_code gone;
    for (fs::directory_iterator it(process / "task", gone), end; !gone && it != end;
         it.increment(gone)) {
      const int tid = std::atoi(it->path().filename().c_str());
      if (tid <= 0 || !seen.insert(tid).second) continue;
      found = true;
      std::string name;
      std::ifstream comm(it->path() / "comm");
      std::getline(comm, name);
      visit(tid, name);
    }
  }
}

/// Adds the processes below one.
void add_children(const fs::path& process, std::set<int>& all) {
  each_thread(process, [&](int tid, const std::string& /*name*/) {
    std::ifstream list(process / "task" / std::to_string(tid) / "children");
    for (int child = 0; list >> child;) {
      if (all.insert(child).second) add_children("/proc/" + std::to_string(child), all);
    }
  });
}

// Those of our own threads that are another process's are known by their names alone.
void set_threads(const fs::path& process, int policy, IdleClassResult& result) {
  const bool here = process == "/proc/self";
  each_thread(process, [&](int tid, const std::string& name) {
    const bool ours = here ? is_own_thread(tid) : name.starts_with("commensal-");
    if (policy == SCHED_IDLE && ours) return;
    const int now = ::sched_getscheduler(tid);
    const bool apply =
        policy == SCHED_IDLE ? now == SCHED_OTHER || now == SCHED_BATCH : now == SCHED_IDLE;
    if (!apply) return;  // ended meanwhile, there already, or somebody chose another class for it
    const sched_param normal{};
    if (::sched_setscheduler(tid, policy, &normal) == 0) {
      ++result.changed;
    } else if (errno != ESRCH) {
      ++result.failed;
      if (result.reason.empty()) {
        result.reason = "sched_setscheduler of thread '" + name +
                        "': " + std::generic_category().message(errno);
      }
    }
  });
}

IdleClassResult set_all(int policy) {
  IdleClassResult result;
  const ThreadStopper::NoStops none;  // a stop changes classes too, and back
  own_descriptors::run([&] { set_threads("/proc/self", policy, result); });
  return result;
}

IdleClassResult set_children(int policy) {
  IdleClassResult result;
  own_descriptors::run([&] {
    std::set<int> children;
    add_children("/proc/self", children);
    for (const int child : children) set_threads("/proc/" + std::to_string(child), policy, result);
  });
  return result;
}

}  // namespace

bool is_in_idle_class() noexcept { return ::sched_getscheduler(0) == SCHED_IDLE; }

IdleClassResult enter_idle_class() { return set_all(SCHED_IDLE); }
IdleClassResult leave_idle_class() { return set_all(SCHED_OTHER); }
IdleClassResult children_enter_idle_class() { return set_children(SCHED_IDLE); }
IdleClassResult children_leave_idle_class() { return set_children(SCHED_OTHER); }

}  // namespace commensal
