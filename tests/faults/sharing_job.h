// SPDX-License-Identifier: Apache-2.0
// What a job of the fuzz of two processes and the test that kills it tell each other.
#pragma once

#include <atomic>
#include <cstdint>

namespace commensal::testing {

/// What a job is told to do.
enum class SharingPhase : std::uint32_t {
  kRun,     ///< random operations
  kSettle,  ///< check every block, then only take steps
  kEnd      ///< free everything and leave
};

/// One job's page in a file that outlives its process. Counts go on in the next process.
struct SharingPage {
  std::atomic<SharingPhase> phase;
  std::atomic<std::uint64_t> operations;
  std::atomic<std::uint64_t> checked_bytes;
  std::atomic<std::uint64_t> lost_bytes;  ///< of blocks whose checksum was wrong
  std::atomic<std::uint64_t> out_of_memory;
  std::atomic<std::uint64_t> forks;
  std::atomic<std::uint64_t> moved_bytes;  ///< out and in
  // What holds while it settles.
  std::atomic<std::uint64_t> live_bytes;
  std::atomic<std::uint64_t> device_bytes;
  std::atomic<bool> settled;
};

}  // namespace commensal::testing
