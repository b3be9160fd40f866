// SPDX-License-Identifier: Apache-2.0
// C functions by which Python tests drive a session without the Python package.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "allocator/host/host_memory_source.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/session.h"

// The texts that these functions return are valid until the thread's next call.

namespace {

using commensal::Bytes;
using commensal::Session;

const char* keep(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

// The session under test; it outlives everything but is not `current` in a forked child.
Session* g_session = nullptr;

commensal::LimitTicket g_last_ticket;

std::uint64_t keep_ticket(commensal::LimitTicket ticket) {
  g_last_ticket = std::move(ticket);
  return g_last_ticket.done.count();
}

commensal::SessionConfig make_config(const char* job_class, std::uint64_t limit_bytes,
                                     const char* law, const char* spill_dir) {
  commensal::SessionConfig config;
  config.job_id = commensal::JobId{"test"};
  config.name = "test";
  config.job_class = std::string_view{job_class} == "guaranteed"
                         ? commensal::JobClass::kGuaranteed
                         : commensal::JobClass::kOpportunistic;
  if (limit_bytes != UINT64_MAX) config.terms.memory.max = Bytes{limit_bytes};
  config.terms.law = law;
  config.spill_dir = spill_dir;
  config.terms.idle_class = false;  // an ordinary user's test process could not leave it again
  return config;
}

/// A training step between the comparison and the exchange of each chunk that moves. A stopped
/// thread takes none: then the exchange waits in vain for `patience` milliseconds.
struct StepInAMove {
  bool stop_threads = true;
  int patience = 0;
  std::atomic<int> steps{0};     // that ended so far
  std::atomic<int> compared{0};  // chunks
  std::atomic<int> steps_in{0};  // that began and ended in the move
};
StepInAMove g_cut;

void wait_for_a_step(void* /*context*/) {
  g_cut.compared.fetch_add(1);
  const int before = g_cut.steps.load();
  const auto whole = [before] { return g_cut.steps.load() - before - 1; };  // one was half over
  for (int i = 0; i < g_cut.patience && whole() < 1; ++i) {
    const timespec pause{0, 1'000'000};
    ::syscall(SYS_nanosleep, &pause, nullptr);
  }
  if (whole() < 1 && !g_cut.stop_threads) g_cut.patience = 0;  // there are no steps left
  g_cut.steps_in.fetch_add(std::max(0, whole()));
}

std::unique_ptr<commensal::MemorySource> make_cut_source(const commensal::SessionConfig& config,
                                                         bool (*between_ops)()) {
  commensal::HostMemorySource::Options options;
  options.spill_folder = config.spill_dir.string();
  options.between_ops = between_ops;
  options.testing.stop_threads = g_cut.stop_threads;
  options.testing.before_exchange = wait_for_a_step;
  return std::make_unique<commensal::HostMemorySource>(options);
}

// Null: the source that every session has.
commensal::MakeSource g_make_source = nullptr;

}  // namespace

extern "C" {

/// Makes the session that starts next let a training step cut into its first move. `stop_threads`
/// 0 switches off what keeps the step's writes: its threads run on while memory moves.
void commensal_testing_cut_into_a_move(int stop_threads, int patience_ms) {
  g_cut.stop_threads = stop_threads != 0;
  g_cut.patience = patience_ms;
  g_make_source = make_cut_source;
}
/// Says that a step ended.
void commensal_testing_stepped() { g_cut.steps.fetch_add(1); }
/// @return how many chunks were compared, and how many steps cut in.
int commensal_testing_compared() { return g_cut.compared.load(); }
int commensal_testing_steps_in() { return g_cut.steps_in.load(); }

/// Starts a session without a coordinator. `limit_bytes` UINT64_MAX: no limit. `host_cap_bytes`
/// UINT64_MAX: as much as the disk has. @return null, or what went wrong.
const char* commensal_testing_start(const char* job_class, std::uint64_t limit_bytes,
                                    std::uint64_t host_cap_bytes, const char* law,
                                    const char* spill_dir) {
  try {
    commensal::SessionConfig config = make_config(job_class, limit_bytes, law, spill_dir);
    if (host_cap_bytes != UINT64_MAX) config.host_cap = Bytes{host_cap_bytes};
    g_session = &Session::start(std::move(config), g_make_source);
    return nullptr;
  } catch (const std::exception& error) {
    return keep(error.what());
  }
}

std::uint64_t commensal_testing_set_limit(std::uint64_t limit_bytes) {
  return keep_ticket(g_session->set_memory_limit(Bytes{limit_bytes}));
}
std::uint64_t commensal_testing_shrink(std::uint64_t bytes) {
  return keep_ticket(g_session->allocator().shrink(Bytes{bytes}));
}
std::uint64_t commensal_testing_grow(std::uint64_t bytes) {
  return keep_ticket(g_session->allocator().grow(Bytes{bytes}));
}
std::uint64_t commensal_testing_deferred() { return g_last_ticket.deferred.count(); }
const char* commensal_testing_reason() { return keep(g_last_ticket.reason); }

int commensal_testing_owns(const void* address) {
  return g_session->allocator().owns(address) ? 1 : 0;
}
/// @return "device", "host", "parked", "free", or "" for an address that is not managed.
const char* commensal_testing_tier_of(const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const commensal::ChunkResidency& chunk : g_session->allocator().residency()) {
    if (byte >= chunk.address && byte < chunk.address + chunk.size.count()) {
      return keep(std::string{commensal::to_string(chunk.tier)});
    }
  }
  return "";
}

void commensal_testing_pause() { g_session->gate().pause(); }
void commensal_testing_resume() { g_session->gate().resume(); }
int commensal_testing_wants_callback() { return g_session->gate().wants_callback() ? 1 : 0; }
std::uint64_t commensal_testing_ops_in_flight() { return g_session->gate().ops_in_flight(); }
// Comes to the gate as an op does, and waits there with whatever lock the caller holds.
void commensal_testing_pass_gate() {
  commensal::OpDuration op;
  commensal::Gate& gate = g_session->gate();
  if (!gate.try_enter_op(op)) gate.wait_op(op);
  gate.leave_op(op);
}
// Opens the gate after a while, from a thread that needs nothing of Python.
void commensal_testing_resume_after(int milliseconds) {
  std::thread([milliseconds] {
    std::this_thread::sleep_for(std::chrono::milliseconds{milliseconds});
    g_session->gate().resume();
  }).detach();
}

const char* commensal_testing_stats() { return keep(g_session->stats_json()); }
int commensal_testing_has_current() { return Session::current() != nullptr ? 1 : 0; }
void commensal_testing_shutdown() { g_session->shutdown(); }
}
