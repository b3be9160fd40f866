// SPDX-License-Identifier: Apache-2.0
// Lets the kernel's file calls that the spill file uses fail, in this process.
#pragma once

#include <cstdint>

namespace commensal::testing {

enum class DiskCall : std::uint8_t {
  kReserve,  ///< fallocate
  kWrite,    ///< pwrite64
  kRead,     ///< pread64
};

/// As errno: the call transfers half of its bytes and says so.
inline constexpr int kShortTransfer = -1;

/// Lets the `n`-th call from now (1 is the next one) fail with an errno; zero as errno: it
/// transfers nothing, as a full disk may answer. `for_ever`: and every later one too.
void break_disk(DiskCall call, int error, std::uint64_t n, bool for_ever = false);
/// Lets all calls work again.
void heal_disk();
/// Calls so far, and how many of them were made to fail.
[[nodiscard]] std::uint64_t disk_calls(DiskCall call);
[[nodiscard]] std::uint64_t disk_failures();

}  // namespace commensal::testing
