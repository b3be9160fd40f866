// SPDX-License-Identifier: Apache-2.0
// A state folder for tests of the local engine: real keepers, real processes, all gone at the end.
#pragma once

#include <poll.h>
#include <signal.h>
#include <stdlib.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "coordinator/engines/local/local_engine.h"

namespace commensal::cluster {

/// Calls `done` until it says true; false after a minute.
inline bool eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes{1};
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

inline std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream{file}.rdbuf();
  return text.str();
}

class LocalWorld {
 public:
  LocalWorld() {
    std::string name = (std::filesystem::temp_directory_path() / "commensal-local-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp");
    }
    path_ = name;
    std::filesystem::create_directory(path_ / "work");
    options.state = path_ / "state";
    options.keeper = COMMENSAL_KEEPER;
    options.nodes = [] {
      return std::vector{EngineNode{"left", {"host", "host"}, "cpu", 4000, 4096, true, ""},
                         EngineNode{"right", {"GPU-a", "GPU-b"}, "gpu", 4000, 4096, true, ""}};
    };
  }
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;
  ~LocalWorld() {
    std::error_code ignored;
    if (std::filesystem::exists(state() / "jobs", ignored)) {
      for (const Attempt& attempt : local::attempts_in(state())) kill_keeper(attempt);
    }
    std::filesystem::remove_all(path_, ignored);
  }

  LocalEngine::Options options;

  [[nodiscard]] const std::filesystem::path& state() const { return options.state; }
  [[nodiscard]] std::filesystem::path work() const { return path_ / "work"; }
  [[nodiscard]] std::unique_ptr<LocalEngine> make() const {
    return std::make_unique<LocalEngine>(options);
  }
  [[nodiscard]] local::AttemptFolder folder(const Attempt& attempt) const {
    return {state(), attempt};
  }

  [[nodiscard]] JobSpec job(std::vector<std::string> command) const {
    JobSpec spec;
    spec.command = std::move(command);
    spec.directory = work().native();
    return spec;
  }
  /// A job of /bin/sh; it first writes a line to work/JOB-ATTEMPT.starts.
  [[nodiscard]] JobSpec script(const std::string& text) const {
    return job(
        {"/bin/sh", "-c",
         "echo started >> $COMMENSAL_CLUSTER_JOB-$COMMENSAL_CLUSTER_ATTEMPT.starts; " + text});
  }
  /// How often a rank of the attempt has written so, or, of several, at least one of them has.
  [[nodiscard]] int starts(const Attempt& attempt, std::size_t ranks = 1) const {
    const std::string text =
        text_of(work() / (attempt.job.str() + '-' + std::to_string(attempt.number) + ".starts"));
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    return static_cast<int>((lines + ranks - 1) / ranks);
  }

  /// Kills the keeper with SIGKILL and waits until it has gone.
  void kill_keeper(const Attempt& attempt) const {
    const auto keeper = folder(attempt).keeper();
    if (!keeper) return;
    const wire::UniqueFd pidfd = local::open_process(keeper->process);
    if (!pidfd) return;
    (void)local::send_signal(pidfd.get(), SIGKILL);
    pollfd wait{pidfd.get(), POLLIN, 0};
    (void)::poll(&wait, 1, 60'000);
  }

 private:
  std::filesystem::path path_;
};

/// Waits until the engine's descriptor says that there may be news, or 100 ms.
inline void wait_for_news(const Engine& engine) {
  pollfd wait{engine.descriptor(), POLLIN, 0};
  (void)::poll(&wait, 1, 100);
}

}  // namespace commensal::cluster
