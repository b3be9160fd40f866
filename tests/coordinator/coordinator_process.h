// SPDX-License-Identifier: Apache-2.0
// commensal-coordinator as a process that a test may kill, fill the disk of, or set the clock of.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "coordinator/wire/handover.h"
#include "tests/coordinator/process_faults.h"

namespace commensal::cluster {

/// One state folder, and one coordinator after the other that uses it. Thread safety: none.
class CoordinatorProcess {
 public:
  /// @param options  further words of its command line.
  explicit CoordinatorProcess(std::vector<std::string> options) : options_(std::move(options)) {
    std::string name = (std::filesystem::temp_directory_path() / "commensal-kill-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) fail("mkdtemp");
    folder_ = std::filesystem::canonical(name);
    std::filesystem::create_directory(work());
    map_control();
  }
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;
  ~CoordinatorProcess() {
    kill();
    ::munmap(control_, sizeof *control_);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  /// How many points the next one lives after so many deaths; 0: until it is killed.
  std::function<std::uint64_t(int deaths)> next_life = [](int) { return 0; };

  /// What it is told while it runs.
  [[nodiscard]] process_faults::Control& control() const { return *control_; }
  [[nodiscard]] std::filesystem::path state() const { return folder_ / "state"; }
  [[nodiscard]] std::filesystem::path work() const { return folder_ / "work"; }
  /// How many of them have killed themselves.
  [[nodiscard]] int deaths() const { return deaths_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string log() const {
    std::ifstream file{folder_ / "log"};
    return {std::istreambuf_iterator<char>{file}, {}};
  }

  /// Asks, starting a coordinator where none runs. A death while it is asked is noticed, and the
  /// next one is asked the same. @throws std::runtime_error after a minute, or if one ends
  /// otherwise than by a death that was told.
  nlohmann::json ask(nlohmann::json request) {
    request["v"] = 1;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes{1};
    while (std::chrono::steady_clock::now() < deadline) {
      if (pid_ <= 0) start();
      if (auto answer = try_to_ask(request.dump(), deadline)) return *std::move(answer);
    }
    throw std::runtime_error("the coordinator does not answer: " + log());
  }

  /// As `kill -9` does. Nothing if none runs.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  [[noreturn]] static void fail(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
  }

  void map_control() {
    const std::string file = (folder_ / "control").native();
    const wire::UniqueFd fd{::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    if (!fd || ::ftruncate(fd.get(), sizeof *control_) != 0) fail("control file");
    void* const mapped =
        ::mmap(nullptr, sizeof *control_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (mapped == MAP_FAILED) fail("mmap");
    control_ = new (mapped) process_faults::Control{};
  }

  void start() {
    std::vector<std::string> words{COMMENSAL_COORDINATOR,
                                   "--foreground",
                                   "--runtime-dir",
                                   (folder_ / "run").native(),
                                   "--state-dir",
                                   state().native(),
                                   "--keeper",
                                   COMMENSAL_KEEPER,
                                   "--http",
                                   "off",
                                   "--grace",
                                   "1",
                                   "--first-retry",
                                   "0"};
    words.insert(words.end(), options_.begin(), options_.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string log = (folder_ / "log").native();
    pid_ = ::fork();
    if (pid_ < 0) fail("fork");
    if (pid_ == 0) {
      ::dup2(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
      ::setenv("LD_PRELOAD", COMMENSAL_PROCESS_FAULTS, 1);
      ::setenv(process_faults::kControlVariable, (folder_ / "control").c_str(), 1);
      ::setenv(process_faults::kFolderVariable, state().c_str(), 1);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
  }

  /// @return nothing if it has died.
  std::optional<nlohmann::json> try_to_ask(const std::string& frame,
                                           std::chrono::steady_clock::time_point deadline) {
    zmq::socket_t socket{context_, zmq::socket_type::dealer};
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::reconnect_ivl, 5);
    socket.connect("ipc://" + (folder_ / "run" / "cluster-default.sock").native());
    (void)socket.send(zmq::buffer(frame));
    while (std::chrono::steady_clock::now() < deadline) {
      zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
      zmq::poll(&item, 1, std::chrono::milliseconds{10});
      zmq::message_t reply;
      if (item.revents != 0 && socket.recv(reply)) return nlohmann::json::parse(reply.to_string());
      if (has_died()) return std::nullopt;
    }
    return std::nullopt;
  }

  bool has_died() {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended != pid_) return false;
    pid_ = -1;
    const bool told = control_->die_at != 0 && control_->points >= control_->die_at;
    if (!told || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
      throw std::runtime_error("the coordinator ended, status " + std::to_string(status) + ": " +
                               log());
    }
    const std::uint64_t life = next_life(++deaths_);
    control_->die_at = life == 0 ? 0 : control_->points + life;
    return true;
  }

  const std::vector<std::string> options_;
  std::filesystem::path folder_;
  process_faults::Control* control_ = nullptr;
  zmq::context_t context_{1};
  pid_t pid_ = -1;
  int deaths_ = 0;
};

}  // namespace commensal::cluster
