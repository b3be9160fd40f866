// SPDX-License-Identifier: Apache-2.0
// What every function that programs call does first.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "tests/simulated_cuda/core/process.h"

namespace commensal::simulated_cuda {

/// What must hold before a driver function may run.
enum class Needs {
  kNothing,  ///< not even cuInit
  kInit,     ///< cuInit
  kContext,  ///< a context that is current to the calling thread
};

/// Turns arguments into numbers for the call log.
template <typename... Given>
CallLog::Arguments arguments(const Given&... given) {
  CallLog::Arguments made{};
  std::size_t at = 0;
  [[maybe_unused]] const auto put = [&](const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if (at == made.size()) return;
    if constexpr (std::is_pointer_v<Value>) {
      made[at++] = reinterpret_cast<std::uint64_t>(value);
    } else {
      made[at++] = static_cast<std::uint64_t>(value);
    }
  };
  (put(given), ...);
  return made;
}

/// Counts the call and asks whether it may go on: not on demand (`CallLog::fail`), not from a
/// host function, not in a forked child, not before what it needs, not after a fatal error.
[[nodiscard]] CUresult enter(std::string_view function, const CallLog::Arguments& given,
                             Needs needs);

/// A call that a capture does not observe: see `Captures::check_unsafe_call`.
[[nodiscard]] inline CUresult unsafe_call() { return Process::get().captures.check_unsafe_call(); }

}  // namespace commensal::simulated_cuda

#define COMMENSAL_RETURN_IF_REFUSED(expression)                                            \
  do {                                                                                     \
    if (const CUresult refused_ = (expression); refused_ != CUDA_SUCCESS) return refused_; \
  } while (false)

/// Opens a driver function: COMMENSAL_DRIVER_CALL(what it needs, its arguments...).
#define COMMENSAL_DRIVER_CALL(needs, ...)                            \
  COMMENSAL_RETURN_IF_REFUSED(::commensal::simulated_cuda::enter(    \
      __func__, ::commensal::simulated_cuda::arguments(__VA_ARGS__), \
      ::commensal::simulated_cuda::Needs::needs))
