// SPDX-License-Identifier: Apache-2.0
// Seed and number of a test's random operations.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace commensal {

/// Returns an environment variable as a number, or `otherwise`.
inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

/// COMMENSAL_FUZZ_SEED, or a fresh seed; printed, so that a failure can be repeated.
inline std::uint64_t fuzz_seed() {
  const std::uint64_t seed = number_from_environment("COMMENSAL_FUZZ_SEED", std::random_device{}());
  std::cout << "COMMENSAL_FUZZ_SEED=" << seed << '\n';
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

/// COMMENSAL_FUZZ_OPS, or a number that takes a second or two in this kind of build.
inline std::uint64_t fuzz_operations(std::uint64_t release, std::uint64_t checked) {
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const std::uint64_t otherwise = release;
  (void)checked;
#else
  const std::uint64_t otherwise = checked;
  (void)release;
#endif
  return number_from_environment("COMMENSAL_FUZZ_OPS", otherwise);
}

}  // namespace commensal
