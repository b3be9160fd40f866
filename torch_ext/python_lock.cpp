// SPDX-License-Identifier: Apache-2.0
// What a waiting thread owes to Python, without linking it: its global lock, and its signals.
#include "torch_ext/python_lock.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <utility>

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
  int (*ensure)() = find<int()>("PyGILState_Ensure");
  void (*release)(int) = find<void(int)>("PyGILState_Release");
  int (*check_signals)() = find<int()>("PyErr_CheckSignals");
  void (*fetch_error)(void**, void**, void**) = find<void(void**, void**, void**)>("PyErr_Fetch");
  void (*restore_error)(void*, void*, void*) = find<void(void*, void*, void*)>("PyErr_Restore");
  int (*add_pending_call)(int (*)(void*),
                          void*) = find<int(int (*)(void*), void*)>("Py_AddPendingCall");

  [[nodiscard]] bool complete() const noexcept {
    return is_initialized != nullptr && is_finalizing != nullptr && this_thread != nullptr &&
           running != nullptr && save_thread != nullptr && restore_thread != nullptr &&
           ensure != nullptr && release != nullptr;
  }
  [[nodiscard]] bool has_signals() const noexcept {
    return complete() && check_signals != nullptr && fetch_error != nullptr &&
           restore_error != nullptr && add_pending_call != nullptr;
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

[[nodiscard]] bool is_main_thread() noexcept {
  return ::getpid() == static_cast<pid_t>(::syscall(SYS_gettid));
}

// What a signal handler raised while the main thread waited in C++. Used by that thread alone.
struct RaisedError {
  void* type = nullptr;
  void* value = nullptr;
  void* traceback = nullptr;
  bool announced = false;  // the interpreter will raise it
};
RaisedError g_raised;

// Raises it as if the handler had run here: between two bytecodes.
int raise_at_bytecode(void* /*none*/) noexcept {
  const RaisedError raised = std::exchange(g_raised, {});
  if (raised.type == nullptr) return 0;
  python().restore_error(raised.type, raised.value, raised.traceback);
  return -1;
}

// Runs the handlers. What one raises must not stay set here: the op goes on, and its caller would
// find a result with an error.
void run_signal_handlers(const Python& py) noexcept {
  void* const thread = py.this_thread();
  if (thread == nullptr || py.is_finalizing() != 0) return;
  py.restore_thread(thread);
  if (py.check_signals() != 0) {
    py.fetch_error(&g_raised.type, &g_raised.value, &g_raised.traceback);
  }
  (void)py.save_thread();
}

// Fails while the interpreter's short queue is full: then the next op tries again.
bool announce_raised(const Python& py) noexcept {
  if (g_raised.type == nullptr) return false;
  if (!g_raised.announced) {
    g_raised.announced = py.add_pending_call(&raise_at_bytecode, nullptr) == 0;
  }
  return true;
}

}  // namespace

void* take_python_lock() noexcept {
  const Python& py = python();
  if (!py.complete() || py.is_initialized() == 0 || py.is_finalizing() != 0 || py.holds_lock()) {
    return nullptr;
  }
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(py.ensure()) + 1);  // no token is null
}

void give_python_lock(void* token) noexcept {
  if (token == nullptr) return;
  python().release(static_cast<int>(reinterpret_cast<std::intptr_t>(token) - 1));
}

bool python_signal_raised() noexcept {
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  const Python& py = python();
  if (!is_main_thread() || !py.has_signals() || py.is_initialized() == 0) return false;
  if (announce_raised(py)) return true;
  static std::chrono::steady_clock::time_point next_look;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look) return false;
  next_look = now + kBetweenLooks;
  run_signal_handlers(py);
  return announce_raised(py);
}

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
  while (py.is_finalizing() != 0 && !is_main_thread()) ::pause();
  py.restore_thread(token);
}

}  // namespace commensal
