// SPDX-License-Identifier: Apache-2.0
// What the fingerprint kernel does on the simulated driver, whose kernels do nothing by themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/cuda/fingerprint.h"

namespace commensal {

inline constexpr std::size_t kFingerprintArguments[] = {8, 8, 8};

/// Runs the kernel on the CPU. @param peek, poke  of tests/simulated_cuda/control.h.
template <typename Peek, typename Poke>
int run_fingerprint_kernel(void** arguments, Peek peek, Poke poke) {
  const auto argument = [&](std::size_t i) { return *static_cast<std::uint64_t*>(arguments[i]); };
  std::vector<std::byte> bytes(argument(1) * 16);
  if (const int error = peek(bytes.data(), argument(0), bytes.size()); error != 0) return error;
  DeviceFingerprint sum;
  if (const int error = peek(&sum, argument(2), sizeof sum); error != 0) return error;
  const DeviceFingerprint added = fingerprint_of(bytes.data(), bytes.size());
  sum.low += added.low;
  sum.high += added.high;
  return poke(argument(2), &sum, sizeof sum);
}

}  // namespace commensal
