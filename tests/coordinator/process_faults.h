// SPDX-License-Identifier: Apache-2.0
// Lets a program of ours die at a chosen change of its files, without a word of it in the program:
// a library that the loader puts before the C library (LD_PRELOAD), and what a test tells it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace commensal::process_faults {

/// What both sides map from one file. Points are what changes a file below the folder that is
/// watched (a file is made, written, synced, cut, renamed, linked, removed) and each start of
/// another program; they are counted from the mapping's beginning, over all processes that use it.
struct Control {
  std::atomic<std::uint64_t> points;
  std::atomic<std::uint64_t> die_at;   ///< the point before which the process kills itself; 0: none
  std::atomic<bool> torn;              ///< where that is a write, half of it is done before
  std::atomic<bool> full;              ///< what needs room on the disk fails with ENOSPC
  std::atomic<std::int64_t> clock_ms;  ///< how far the wall clock has been set ahead
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // it works between processes

/// Variables that tell the library its control file and the folder that it watches. It removes them
/// and LD_PRELOAD from the environment: what the program starts is as ever.
inline constexpr const char* kControlVariable = "PROCESS_FAULTS_CONTROL";
inline constexpr const char* kFolderVariable = "PROCESS_FAULTS_FOLDER";

}  // namespace commensal::process_faults
