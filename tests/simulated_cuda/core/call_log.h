// SPDX-License-Identifier: Apache-2.0
// Which functions were called, how often, with what; and which of the calls are to fail.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/mutex.h"

namespace commensal::simulated_cuda {

/// Counts the calls of each function and makes chosen ones fail.
///
/// Functions go by the name that programs write (`cuMemAlloc`, not `cuMemAlloc_v2`). Any member
/// may be called from any thread.
class CallLog {
 public:
  using Arguments = std::array<std::uint64_t, 8>;
  static constexpr std::uint64_t kForever = ~std::uint64_t{0};

  struct Entry {
    std::uint64_t calls = 0;
    std::uint64_t while_capturing = 0;  ///< calls made while any capture was under way
    std::uint64_t refused = 0;          ///< calls that failed on demand
    Arguments last{};                   ///< integer and pointer arguments of the last call
  };

  /// Counts a call. @return the error to fail with, CUDA_SUCCESS to go on.
  [[nodiscard]] CUresult enter(std::string_view function, const Arguments& arguments,
                               bool capturing);

  /// Lets call number `nth` (from 1, counted from now) and the `times - 1` after it fail.
  void fail(const std::string& function, std::uint64_t nth, CUresult error, std::uint64_t times);

  /// Reads failures such as "cuMemCreate:2:CUDA_ERROR_OUT_OF_MEMORY,cuMemMap:1:1:3": function,
  /// which call, error by name or number, how many calls (1 if left out, `*`: all from there on).
  /// @throws std::invalid_argument if the text cannot be read.
  void fail_from_text(const std::string& text);

  [[nodiscard]] Entry entry(const std::string& function) const;

  /// Forgets counts and failures.
  void clear();

  /// All entries as one JSON object: {"cuMemMap": {"calls": 3, ...}, ...}.
  [[nodiscard]] std::string json() const;

  /// Writes each call to stderr from now on.
  void trace(bool on);

 private:
  struct Failure {
    std::string function;
    std::uint64_t skip;  // calls that still pass
    std::uint64_t times;
    CUresult error;
  };

  mutable Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ COMMENSAL_GUARDED_BY(mutex_);
  std::vector<Failure> failures_ COMMENSAL_GUARDED_BY(mutex_);
  bool trace_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

/// Returns "CUDA_ERROR_..." for a result, null for a number that is none.
[[nodiscard]] const char* name_of(CUresult result) noexcept;

/// Returns the sentence for a result, null for a number that is none.
[[nodiscard]] const char* sentence_of(CUresult result) noexcept;

/// Returns the result of that name or number.
/// @throws std::invalid_argument if there is none.
[[nodiscard]] CUresult result_from_text(const std::string& text);

}  // namespace commensal::simulated_cuda
