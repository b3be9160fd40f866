// SPDX-License-Identifier: Apache-2.0
// SQLite's file system with faults: the n-th change of any file ends the process, loses what was
// not synced, or fails.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace commensal::fault_vfs {

enum class Fault : std::uint8_t {
  kNone,
  kDie,        ///< the process ends before the change
  kTear,       ///< half of the write is done, then the process ends
  kPowerLoss,  ///< the process ends, and every write that was not synced is undone
  kFail,       ///< the change returns `Plan::code`
  kFailOn,     ///< so does every later write and sync
  kFreeze,     ///< so does every later change, of whatever kind: the files stay as a process has
               ///< left them that died before this change, and the test's own process goes on
  kFreezeTorn  ///< the same, after half of the write
};

struct Plan {
  Fault fault = Fault::kNone;
  std::uint64_t at = 0;     ///< number of the change, from 1 on
  int code = 0;             ///< of SQLite; a frozen file fails with SQLITE_IOERR
  bool syncs_only = false;  ///< changes that are counted: all, or syncs
};

/// How a process ends that a plan ends.
inline constexpr int kExitCode = 97;

/// Makes it SQLite's default, over the one that was; to be called before anything uses SQLite.
/// Nothing is ever synced: the kernel does not fail in tests.
void install();
/// Counts from zero, under that plan.
void arm(const Plan& plan);
/// Since `arm`: changes (writes, syncs, truncations, deletions; or syncs only), whether the fault
/// came, pages read.
[[nodiscard]] std::uint64_t changes();
[[nodiscard]] bool came();
[[nodiscard]] std::uint64_t reads();

}  // namespace commensal::fault_vfs
