// SPDX-License-Identifier: Apache-2.0
// Starting a daemon that has nothing of its starter, and the lock that keeps it the only one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "coordinator/node/daemon.h"
#include "coordinator/wire/handover.h"

namespace commensal::node {

/// Runs `daemon` in a process of its own: new session, working directory /, stdio on /dev/null, no
/// descriptor of this process. Returns when it has reported its start, or died before.
/// Must be called while this process has one thread.
StartReport run_in_background(
    const std::function<ExitCode(const std::function<void(const StartReport&)>&)>& daemon);

/// The lock file of an instance; holds the pid of the running coordinator.
class InstanceLock {
 public:
  /// Takes the lock. @throws wire::BadPath if the file cannot be used.
  explicit InstanceLock(const std::filesystem::path& path);

  /// Whether this process has it. If not, `holder` is the pid of the one who has; 0: not known.
  [[nodiscard]] bool held() const noexcept { return static_cast<bool>(fd_); }
  [[nodiscard]] std::int64_t holder() const noexcept { return holder_; }
  /// Whether the last holder left without `leave_clean`, so that jobs of it may be about.
  [[nodiscard]] bool after_crash() const noexcept { return after_crash_; }
  /// Whether it is the file of that name.
  [[nodiscard]] bool is_at(const std::filesystem::path& path) const noexcept;
  /// Notes that nothing is left behind.
  void leave_clean() noexcept;

 private:
  wire::UniqueFd fd_;
  std::int64_t holder_ = 0;
  bool after_crash_ = false;
};

}  // namespace commensal::node
