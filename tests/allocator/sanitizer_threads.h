// SPDX-License-Identifier: Apache-2.0
// Lets a forked child stop its threads under ThreadSanitizer.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace commensal::testing {

/// ThreadSanitizer starts threads of its own in a forked process; they block every signal, so
/// memory could never move. Gives them names of threads that need not stop. Does nothing in other
/// builds. Call it before the process starts threads of its own.
inline void name_sanitizer_threads() {
#ifdef __SANITIZE_THREAD__
  std::thread{[] {}}.join();  // they start with the first thread
  for (const auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
    if (task.path().filename() != std::to_string(::getpid())) {
      std::ofstream{task.path() / "comm"} << "commensal:tsan";
    }
  }
#endif
}

}  // namespace commensal::testing
