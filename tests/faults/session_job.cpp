// SPDX-License-Identifier: Apache-2.0
// A job without PyTorch: a real session, live memory with a known content, and one of several ways
// to behave. Tells on stdout what it does, one line each.
//
//   session_job RUNTIME_DIR JOB_ID steps|never_steps|exits|forks|execs|execs_again
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "torch_ext/runtime/session.h"

namespace {

using namespace commensal;
using namespace std::chrono_literals;

constexpr std::size_t kLive = 64U << 20U;

void tell(const std::string& line) {
  const std::string text = line + '\n';
  // A test reads it from a pipe; without a reader this process is about to be killed.
  (void)!::write(STDOUT_FILENO, text.data(), text.size());
}

void fill(std::uint64_t* words, std::uint64_t seed) {
  for (std::size_t i = 0; i < kLive / sizeof *words; ++i) words[i] = seed + i * 0x9E3779B97F4A7C15U;
}
bool shows(const std::uint64_t* words, std::uint64_t seed) {
  for (std::size_t i = 0; i < kLive / sizeof *words; ++i) {
    if (words[i] != seed + i * 0x9E3779B97F4A7C15U) return false;
  }
  return true;
}

[[noreturn]] void live(Session& session, std::uint64_t* words, bool steps) {
  tell("lives");
  for (std::uint64_t round = 0;; ++round) {
    std::this_thread::sleep_for(20ms);
    if (steps) session.step();
    if (round % 10 == 0 && !shows(words, 7)) {
      tell("content lost");
      ::_exit(9);
    }
    if (round % 10 == 0) tell("content is right");
  }
}

/// Makes a child that outlives its parent and keeps its snapshot.
void fork_a_child(std::uint64_t* words) {
  const pid_t child = ::fork();
  if (child != 0) return;
  ::prctl(PR_SET_PDEATHSIG, 0);
  for (int i = 0; i < 50; ++i) {
    if (!shows(words, 7)) {
      tell("child: content lost");
      ::_exit(9);
    }
    std::this_thread::sleep_for(20ms);
  }
  fill(words, 8);
  tell(shows(words, 8) && Session::current() == nullptr ? "child: content is right"
                                                        : "child: content lost");
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {  // until the test ends
  }
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("session_job RUNTIME_DIR JOB_ID BEHAVIOUR\n", stderr);
    return 2;
  }
  const std::string behaviour = argv[3];
  SessionConfig config;
  config.job_id = JobId{argv[2]};
  config.name = argv[2];
  config.runtime_dir = argv[1];
  config.terms.idle_class = false;  // a busy machine would starve it
  config.connect_timeout = 20s;
  Session& session = Session::start(config);
  auto* words = static_cast<std::uint64_t*>(session.allocator().allocate(Bytes{kLive}));
  fill(words, 7);
  if (behaviour == "exits") {
    session.range_begin("Optimizer.step#SGD.step");  // in the middle of a step
    tell("exits");
    char byte = 0;
    (void)!::read(STDIN_FILENO, &byte, 1);
    ::_exit(3);
  }
  if (behaviour == "forks") fork_a_child(words);
  if (behaviour == "execs" || behaviour == "execs_again") {
    tell("execs");
    char byte = 0;
    (void)!::read(STDIN_FILENO, &byte, 1);
    if (behaviour == "execs") ::execl("/bin/sleep", "sleep", "1000", nullptr);
    ::execl("/proc/self/exe", argv[0], argv[1], argv[2], "steps", nullptr);
    return 1;
  }
  live(session, words, behaviour != "never_steps");
}
