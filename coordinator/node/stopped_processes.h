// SPDX-License-Identifier: Apache-2.0
// Processes that the coordinator has stopped from outside.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "coordinator/wire/handover.h"

namespace commensal::node {

/// Sends a signal to the process of a pidfd. @return why not; empty: it was sent.
[[nodiscard]] std::string send_signal(int pidfd, int signal);

/// Stops processes and lets them go on. Whoever is stopped stands in a file: what a coordinator
/// that was killed left stopped goes on when the next one starts. Not thread safe.
class StoppedProcesses {
 public:
  /// Lets everything go on that stands in the file, and removes it.
  explicit StoppedProcesses(std::filesystem::path file);
  /// Lets everything go on that it has stopped.
  ~StoppedProcesses();
  StoppedProcesses(const StoppedProcesses&) = delete;
  StoppedProcesses& operator=(const StoppedProcesses&) = delete;

  /// Stops a process, once it stands in the file. @return why not; empty: it is stopped.
  [[nodiscard]] std::string stop(std::int64_t pid, int pidfd);
  /// Lets a process go on, whoever has stopped it. @return why not.
  [[nodiscard]] std::string go_on(std::int64_t pid, int pidfd);
  /// The process is gone.
  void forget(std::int64_t pid);

 private:
  struct Stopped {
    std::uint64_t start_ticks = 0;
    wire::UniqueFd pidfd;
  };
  /// @return why the file cannot be written.
  [[nodiscard]] std::string write() const;

  std::filesystem::path file_;
  std::map<std::int64_t, Stopped> stopped_;
};

}  // namespace commensal::node
