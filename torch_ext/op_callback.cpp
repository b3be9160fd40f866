// SPDX-License-Identifier: Apache-2.0
// Lets every thread's outermost dispatcher ops pass the gate.
#include "torch_ext/op_callback.h"

#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>

#include "allocator/base/mutex.h"
#include "allocator/host/own_descriptors.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/known_ops.h"
#include "torch_ext/op_kind.h"
#include "torch_ext/op_nesting.h"
#include "torch_ext/op_positions.h"
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

struct OpThread {
  OpNesting nesting;
  OpCursor cursor;
  Gate::Account* account = nullptr;  // null: not asked for yet
  bool copies = false;               // a copy that counts is under way: those within it do not
};
COMMENSAL_QUICK_THREAD_LOCAL constinit OpThread t_thread;

Gate::Account* ask_for_account(Gate& gate) noexcept {
  struct Forgetter {
    OpThread& thread;
    ~Forgetter() { thread.account = nullptr; }
  };
  t_thread.account = gate.account();
  // Made after what the gate keeps for this thread, hence destroyed before it.
  static thread_local const Forgetter forgetter{t_thread};
  return t_thread.account;
}

// Named ops never go, but wrappers' names are temporaries: those are never stored here.
KnownOps g_known_ops;
OpPositions g_positions;
CopyDurations g_copies;
bool g_allocations_wait = false;  // set before the callback is
OpDuration g_region_duration;     // of all compiled regions together: their names are temporaries

struct FoundOp {
  OpKind kind;
  OpDuration* duration = nullptr;  // null where kind is kTransparent
};

// By hand, for it is asked about every op: a call of strncmp costs more than all the rest.
bool is_aten(const char* name) noexcept {
  return name[0] == 'a' && name[1] == 't' && name[2] == 'e' && name[3] == 'n' && name[4] == ':' &&
         name[5] == ':';
}

FoundOp look_at(const char* name, bool is_dispatcher) {
  OpKind kind = op_kind(name, is_dispatcher);
  if (kind == OpKind::kTransparent && g_allocations_wait && only_allocates(name)) {
    kind = OpKind::kOp;
  }
  if (kind == OpKind::kRegion) return {kind, &g_region_duration};
  if (kind == OpKind::kTransparent && !is_aten(name)) return {kind};
  return {kind, &g_known_ops.add(name, kind).duration()};
}

FoundOp find_op(const at::RecordFunction& event) {
  const char* const name = event.name();
  if (!is_aten(name)) return look_at(name, event.operator_name().has_value());
  KnownOp* const known = g_known_ops.find(name);
  if (known == nullptr || known->kind() == OpKind::kUnknown) return look_at(name, true);
  return {known->kind(), &known->duration()};
}

// Compiling runs a program on tensors without data, thousands of ops of it: they use no device time
// worth a gap, and one by one they would wait for as many gaps.
bool is_traced() noexcept {
  using c10::impl::TorchDispatchModeKey;
  return c10::impl::TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::FAKE).has_value();
}

void enter(Gate& gate, Gate::Account* account, OpEstimate op) noexcept {
  if (gate.try_enter_op(op, account)) return;
  if (is_traced() || gate.passes_by()) return;  // what was not entered is not left either
  void* const python = release_python_lock();
  gate.wait_op(op, &python_signal_raised);
  take_python_lock_back(python);
}

inline void apply(Gate& gate, const OpThread& thread, const GateCalls& calls) noexcept {
  if (calls.leave) gate.leave_op(calls.leave, thread.account);
  if (!calls.enter) return;
  enter(gate, thread.account != nullptr ? thread.account : ask_for_account(gate), calls.enter);
}

// Out of the way of ops: the first event in a forked child ends up here.
void switch_off_in_child() noexcept {
  if (g_switch_off_in_child.exchange(false)) at::disableCallback(g_handle);
}

std::unique_ptr<at::ObserverContext> on_op_begin(const at::RecordFunction& event) {
  OpThread& thread = t_thread;
  if (thread.nesting.is_inside()) {
    thread.nesting.begin_nested();
    return nullptr;
  }
  Gate* const gate = g_gate.load(std::memory_order_relaxed);
  if (gate == nullptr) {
    switch_off_in_child();
    return nullptr;
  }
  const FoundOp op = find_op(event);
  if (op.kind == OpKind::kTransparent) return nullptr;
  // A kind of op has one duration, so its address names the op.
  OpDuration* const here =
      g_positions.next(thread.cursor, op.duration, gate->border().load(std::memory_order_relaxed));
  apply(*gate, thread,
        thread.nesting.begin_outermost(op.kind, OpEstimate(*op.duration, here),
                                       is_thread_shielded()));
  return nullptr;
}

void leave_thread_op(OpThread& thread, bool is_region) noexcept {
  const GateCalls calls = thread.nesting.end_outermost(is_region);
  Gate* const gate = g_gate.load(std::memory_order_relaxed);
  if (gate != nullptr) apply(*gate, thread, calls);
}

void on_op_end(const at::RecordFunction& event, at::ObserverContext* /*none*/) {
  OpThread& thread = t_thread;
  if (thread.nesting.is_nested()) {
    thread.nesting.end_nested();
    return;
  }
  leave_thread_op(thread, thread.nesting.is_outside() && is_compiled_region(event.name()));
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

void tell_of_held_graph(Duration predicted) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  own_descriptors::write_line(
      "commensal: a CUDA graph of " + std::to_string(std::lround(Milliseconds(predicted).count())) +
      " ms waits for a gap of a guaranteed job that is as long; without graphs (torch.compile "
      "without mode=\"reduce-overhead\" or \"max-autotune\", no make_graphed_callables) the job "
      "uses shorter gaps, too");
}

}  // namespace

void install_op_callback(Session& session) {
  g_allocations_wait = session.config().device != "host";
  g_handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_op_begin, &on_op_end).scopes({at::RecordScope::FUNCTION}));
  at::disableCallback(g_handle);
  session.gate().on_graph_held(&tell_of_held_graph);
  g_gate.store(&session.gate(), std::memory_order_release);
  session.on_wait(&release_python_lock, &take_python_lock_back);
  session.on_move(&take_python_lock, &give_python_lock);
  session.on_callback_switch(&switch_op_callback);
}

bool begin_launch(Launch what) noexcept {
  static std::array<OpDuration, 2> durations;
  const auto number = static_cast<std::size_t>(what);
  Gate* const gate = g_gate.load(std::memory_order_relaxed);
  if (gate == nullptr || number >= durations.size() || !gate->wants_callback()) return false;
  OpThread& thread = t_thread;
  if (thread.nesting.is_inside()) {
    thread.nesting.begin_nested();
    return true;
  }
  OpDuration& duration = durations.at(number);
  OpDuration* const here =
      g_positions.next(thread.cursor, &duration, gate->border().load(std::memory_order_relaxed));
  const OpEstimate estimate(duration, here);
  apply(*gate, thread,
        thread.nesting.begin_outermost(OpKind::kOp,
                                       what == Launch::kGraph ? estimate.as_graph() : estimate,
                                       is_thread_shielded()));
  return true;
}

void end_launch() noexcept {
  OpThread& thread = t_thread;
  if (thread.nesting.is_nested()) {
    thread.nesting.end_nested();
  } else {
    leave_thread_op(thread, false);
  }
}

bool begin_copy(Bytes size, CopyWay way) noexcept {
  Gate* const gate = g_gate.load(std::memory_order_relaxed);
  if (gate == nullptr || size < CopyDurations::kSmallest || !gate->wants_callback()) return false;
  OpThread& thread = t_thread;
  if (thread.copies) return false;  // one that converts makes another one
  const GateCalls calls = thread.nesting.begin_part(g_copies.of(size, way));
  if (!calls.enter) return false;
  thread.copies = true;
  gate->note_copy(size);
  apply(*gate, thread, calls);
  return true;
}

void end_copy() noexcept {
  OpThread& thread = t_thread;
  thread.copies = false;
  const GateCalls calls = thread.nesting.end_part();
  Gate* const gate = g_gate.load(std::memory_order_relaxed);
  if (gate != nullptr) apply(*gate, thread, calls);
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
