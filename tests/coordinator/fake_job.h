// SPDX-License-Identifier: Apache-2.0
// A job's process and a running commensald, for component tests: real processes, real sockets.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/wire/control_client.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/messages.h"

namespace commensal::node {

/// Calls `done` until it says true; false after half a minute.
bool eventually(const std::function<bool()>& done);

/// What a program printed to stderr and how it ended.
struct Finished {
  int code = -1;
  std::string output;
};

/// A folder with coordinators in it; kills what still runs and removes the folder at the end.
class DaemonFolder {
 public:
  DaemonFolder();
  ~DaemonFolder();
  DaemonFolder(const DaemonFolder&) = delete;
  DaemonFolder& operator=(const DaemonFolder&) = delete;

  /// Runs commensald with the folder's --runtime-dir and waits for the starting process.
  Finished start(std::vector<std::string> arguments = {});
  /// Runs commensald with these arguments alone.
  static Finished run(std::vector<std::string> arguments);
  /// The pid in an instance's lock file; 0 without one.
  [[nodiscard]] pid_t pid(const std::string& instance = "default") const;
  [[nodiscard]] wire::ControlClient client(const std::string& instance = "default") const;
  [[nodiscard]] nlohmann::json status(const std::string& job = "",
                                      const std::string& instance = "default") const;
  /// Sends a signal to a coordinator and waits until it is gone.
  bool stop(int signal, const std::string& instance = "default") const;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// What a job does about its memory.
enum class Holding : std::uint8_t {
  kNothing,  ///< it only says that it fills its limit
  kHonest,   ///< it fills its limit with pages and gives back what it must
  kFalse,    ///< it says that it gave back, and does so when it gets SIGUSR1
  kHalf      ///< it says that it holds half of its limit, and claims that on its page as a job does
};

/// A child process that registers, answers every change at once, and registers again when the
/// coordinator does not know it any more. Killed in the destructor.
class FakeJob {
 public:
  FakeJob(const DaemonFolder& folder, wire::Register hello, const std::string& instance = "default",
          Holding holding = Holding::kNothing);
  /// The same with the runtime folder of a coordinator that somebody else has started.
  FakeJob(const std::filesystem::path& folder, wire::Register hello,
          const std::string& instance = "default", Holding holding = Holding::kNothing);
  ~FakeJob();
  FakeJob(const FakeJob&) = delete;
  FakeJob& operator=(const FakeJob&) = delete;

  void kill();
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = -1;
};

/// A registration with the usual values.
[[nodiscard]] wire::Register registration(const std::string& job, JobClass job_class,
                                          std::uint64_t min_bytes,
                                          std::optional<std::uint64_t> max_bytes = std::nullopt);

}  // namespace commensal::node
