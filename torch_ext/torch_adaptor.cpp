// SPDX-License-Identifier: Apache-2.0
// The C functions of libcommensal_torch, which Python loads by ctypes where torch is imported.
#include "torch_ext/torch_adaptor.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <pthread.h>
#include <torch/headeronly/version.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/base/mutex.h"
#include "torch_ext/copy_gate.h"
#include "torch_ext/cpu_allocator.h"
#include "torch_ext/op_callback.h"
#include "torch_ext/op_sampler.h"
#include "torch_ext/range_callback.h"
#include "torch_ext/region.h"
#include "torch_ext/runtime/session.h"

#define COMMENSAL_EXPORT __attribute__((visibility("default")))

namespace commensal {
namespace {

std::string minor_text(std::uint64_t major, std::uint64_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

const std::string& built_for() {
  static const std::string text = minor_text(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
  return text;
}

// "2.11.0+cu130" -> "2.11"
std::string_view minor_of(std::string_view version) {
  return version.substr(0, version.find_first_of(".+", version.find('.') + 1));
}

// Returns an empty text, or what is wrong with a PyTorch version.
std::string version_complaint(std::string_view running) {
  if (minor_of(running) == built_for()) return {};
  return "commensal's adaptor was built for PyTorch " + built_for() + " and this is PyTorch " +
         std::string{running} + "; install commensal again with this PyTorch";
}

// Asks the PyTorch library itself; empty where it does not tell (before 2.10).
std::string loaded_version() {
  auto* const ask =
      reinterpret_cast<std::uint64_t (*)()>(::dlsym(RTLD_DEFAULT, "aoti_torch_abi_version"));
  if (ask == nullptr) return {};
  const std::uint64_t packed = ask();
  return minor_text(packed >> 56U, (packed >> 48U) & 0xFFU);
}

void prepare_for_fork() {
  prepare_op_callback_for_fork();
  prepare_op_sampler_for_fork();
}

void release_parent() {
  release_op_sampler_in_parent();
  release_op_callback_in_parent();
}

void disarm_child() {
  disarm_op_sampler_in_child();
  disarm_op_callback_in_child();
  disarm_range_callback_in_child();
}

void install_memory(Session& session) {
  if (session.config().device == "host") install_cpu_allocator(session);
}

void install_rest(Session& session) {
  install_range_callback(session);
  install_op_callback(session);
  const SessionConfig& config = session.config();
  const bool may_use_gpu = config.device == "cuda" || config.later_device == "cuda";
  if (may_use_gpu && config.job_class == JobClass::kOpportunistic) install_copy_gate();
  install_op_sampler(session);
  session.on_region(&current_tag);
  session.on_thread_count(&at::get_num_threads, &at::set_num_threads);
  ::pthread_atfork(&prepare_for_fork, &release_parent, &disarm_child);
}

// Returns an empty text, or why nothing was installed.
std::string install_once(bool all) {
  static Mutex mutex;
  static bool memory_installed = false;
  static bool rest_installed = false;
  const MutexLock lock(mutex);
  if (memory_installed && (rest_installed || !all)) return {};
  if (const std::string loaded = loaded_version(); !loaded.empty()) {
    if (std::string complaint = version_complaint(loaded); !complaint.empty()) return complaint;
  }
  Session* const session = Session::current();
  if (session == nullptr) {
    return "commensal has no active session in this process; call commensal.init() first";
  }
  if (!memory_installed) install_memory(*session);
  memory_installed = true;
  if (all && !rest_installed) install_rest(*session);
  rest_installed = rest_installed || all;
  return {};
}

thread_local std::string kept;  // until the thread's next call

const char* keep(std::string complaint) {
  kept = std::move(complaint);
  return kept.empty() ? nullptr : kept.c_str();
}

const char* install(bool all) {
  try {
    return keep(install_once(all));
  } catch (const std::exception& error) {
    return keep(error.what());
  }
}

}  // namespace
}  // namespace commensal

COMMENSAL_EXPORT const char* commensal_torch_built_for() { return commensal::built_for().c_str(); }

COMMENSAL_EXPORT const char* commensal_torch_check(const char* torch_version) {
  return commensal::keep(commensal::version_complaint(torch_version));
}

COMMENSAL_EXPORT const char* commensal_torch_install() { return commensal::install(true); }

COMMENSAL_EXPORT const char* commensal_torch_install_memory() { return commensal::install(false); }

COMMENSAL_EXPORT int commensal_torch_begin_launch(unsigned what) {
  return commensal::begin_launch(static_cast<commensal::Launch>(what)) ? 1 : 0;
}

COMMENSAL_EXPORT void commensal_torch_end_launch() { commensal::end_launch(); }
