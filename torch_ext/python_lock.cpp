// SPDX-License-Identifier: Apache-2.0
// Lets go of Python's global lock while a thread waits, without linking Python.
#include "torch_ext/python_lock.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace commensal {
namespace {

template <typename Function>
Function* find(const char* name) noexcept {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}
template <typename Function>
Function* find(const char* name, const char* older_name) noexcept {
  auto* function = find<Function>(name);
  return function != nullptr ? function : find<Function>(older_name);
}

// The interpreter's functions, found once in the process; null in one without Python.
struct Python {
  int (*is_initialized)() = find<int()>("Py_IsInitialized");
  int (*is_finalizing)() = find<int()>("Py_IsFinalizing", "_Py_IsFinalizing");
  void* (*this_thread)() = find<void*()>("PyGILState_GetThisThreadState");
  void* (*running)() = find<void*()>("PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet");
  void* (*save_thread)() = find<void*()>("PyEval_SaveThread");
  void (*restore_thread)(void*) = find<void(void*)>("PyEval_RestoreThread");

  [[nodiscard]] bool complete() const noexcept {
    return is_initialized != nullptr && is_finalizing != nullptr && this_thread != nullptr &&
           running != nullptr && save_thread != nullptr && restore_thread != nullptr;
  }
  // The comparison that PyGILState_Check makes, which answers 1 without looking once there is a
  // second interpreter.
  [[nodiscard]] bool holds_lock() const noexcept {
    void* const mine = this_thread();
    return mine != nullptr && mine == running();
  }
};

const Python& python() noexcept {
  static const Python functions;
  return functions;
}

}  // namespace

void* release_python_lock() noexcept {
  const Python& py = python();
  if (!py.complete() || py.is_initialized() == 0 || !py.holds_lock()) return nullptr;
  return py.save_thread();
}

void take_python_lock_back(void* token) noexcept {
  if (token == nullptr) return;
  const Python& py = python();
  // Until Python 3.14 the call below ends the thread by unwinding it, which a callback that may
  // not throw cannot survive.
  const bool is_main = ::getpid() == static_cast<pid_t>(::syscall(SYS_gettid));
  while (py.is_finalizing() != 0 && !is_main) ::pause();
  py.restore_thread(token);
}

}  // namespace commensal
