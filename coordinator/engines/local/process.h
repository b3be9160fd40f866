// SPDX-License-Identifier: Apache-2.0
// Processes by more than a number, which is given to another one later.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/wire/handover.h"

namespace commensal::cluster::local {

/// Names one process of this machine for all times: numbers and start ticks come again after a
/// reboot, boots do not.
struct ProcessIdentity {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  ///< field 22 of /proc/PID/stat
  std::string boot;
  bool operator==(const ProcessIdentity&) const = default;
};

[[nodiscard]] ProcessIdentity own_identity();
/// The identity as one word without spaces.
[[nodiscard]] std::string to_string(const ProcessIdentity& identity);

/// Opens a pidfd of a process that still runs; empty: it is gone or a zombie, or its number is
/// another process's.
[[nodiscard]] wire::UniqueFd open_process(const ProcessIdentity& identity);

/// Sends a signal by a pidfd. @return false if the process has ended or may not be sent one.
bool send_signal(int pidfd, int signal) noexcept;

/// Processes whose parent is `parent`, zombies left out.
[[nodiscard]] std::vector<pid_t> children_of(pid_t parent);

/// Kills what carries `entry` ("NAME=value") in the environment that it was started with.
/// @return how many were killed.
int kill_marked(const std::string& entry);

}  // namespace commensal::cluster::local
