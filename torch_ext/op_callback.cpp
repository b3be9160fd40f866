// SPDX-License-Identifier: Apache-2.0
// Lets every thread's outermost dispatcher ops pass the gate.
#include "torch_ext/op_callback.h"

#include <ATen/record_function.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "allocator/base/mutex.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/op_kind.h"
#include "torch_ext/op_nesting.h"
#include "torch_ext/python_lock.h"
#include "torch_ext/runtime/session.h"
#include "torch_ext/thread_shield.h"

namespace commensal {
namespace {

std::atomic<Gate*> g_gate{nullptr};  // null before installation and in a forked child
at::CallbackHandle g_handle = at::INVALID_CALLBACK_HANDLE;
std::atomic<bool> g_switch_off_in_child{false};

// Held across fork(), so that a child does not inherit PyTorch's callback list half changed by us.
Mutex& switch_mutex() {
  static Mutex& mutex = *new Mutex;  // never destroyed: the client thread may switch until the end
  return mutex;
}

thread_local OpNesting t_nesting;

// A dispatcher op's name is one constant pointer for the whole process, so that its kind needs to
// be found once. Wrappers' names are temporaries and never stored here.
struct KnownKind {
  const char* name = nullptr;
  OpKind kind = OpKind::kOp;
};
thread_local std::array<KnownKind, 256> t_known_kinds;

OpKind aten_kind(const char* name) noexcept {
  const auto slot = (reinterpret_cast<std::uintptr_t>(name) >> 4U) % t_known_kinds.size();
  KnownKind& known = t_known_kinds[slot];
  if (known.name != name) known = {name, op_kind(name, true)};
  return known.kind;
}

OpKind kind_of(const at::RecordFunction& event) {
  const char* const name = event.name();
  if (std::strncmp(name, "aten::", 6) == 0) return aten_kind(name);
  return op_kind(name, event.operator_name().has_value());
}

void enter(Gate& gate, const char* key) noexcept {
  if (gate.try_enter_op(key)) return;
  void* const python = release_python_lock();
  gate.wait_op(key, &python_signal_raised);
  take_python_lock_back(python);
}

void apply(Gate& gate, const GateCalls& calls) noexcept {
  if (calls.leave != nullptr) gate.leave_op(calls.leave);
  if (calls.enter != nullptr) enter(gate, calls.enter);
}

// Out of the way of ops: the first event in a forked child ends up here.
void switch_off_in_child() noexcept {
  if (g_switch_off_in_child.exchange(false)) at::disableCallback(g_handle);
}

std::unique_ptr<at::ObserverContext> on_op_begin(const at::RecordFunction& event) {
  if (t_nesting.is_inside()) {
    t_nesting.begin_nested();
    return nullptr;
  }
  Gate* const gate = g_gate.load(std::memory_order_relaxed);
  if (gate == nullptr) {
    switch_off_in_child();
    return nullptr;
  }
  const OpKind kind = kind_of(event);
  if (kind == OpKind::kTransparent) return nullptr;
  apply(*gate, t_nesting.begin_outermost(kind, event.name(), is_thread_shielded()));
  return nullptr;
}

void on_op_end(const at::RecordFunction& event, at::ObserverContext* /*none*/) {
  if (t_nesting.is_nested()) {
    t_nesting.end_nested();
    return;
  }
  const bool is_region = t_nesting.is_outside() && is_compiled_region(event.name());
  const GateCalls calls = t_nesting.end_outermost(is_region);
  Gate* const gate = g_gate.load(std::memory_order_relaxed);
  if (gate != nullptr) apply(*gate, calls);
}

void switch_op_callback(bool on) {
  const MutexLock lock(switch_mutex());
  if (g_gate.load(std::memory_order_relaxed) == nullptr) return;
  if (on) {
    at::reenableCallback(g_handle);
  } else {
    at::disableCallback(g_handle);
  }
}

}  // namespace

void install_op_callback(Session& session) {
  g_handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_op_begin, &on_op_end).scopes({at::RecordScope::FUNCTION}));
  at::disableCallback(g_handle);
  g_gate.store(&session.gate(), std::memory_order_release);
  session.on_wait(&release_python_lock, &take_python_lock_back);
  session.on_callback_switch(&switch_op_callback);
}

void prepare_op_callback_for_fork() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  switch_mutex().lock();
}

void release_op_callback_in_parent() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  switch_mutex().unlock();
}

void disarm_op_callback_in_child() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  g_gate.store(nullptr, std::memory_order_relaxed);
  g_switch_off_in_child.store(true);
  switch_mutex().unlock();
}

}  // namespace commensal
