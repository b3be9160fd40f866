// SPDX-License-Identifier: Apache-2.0
// Lets a forked child stop its threads under ThreadSanitizer.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "allocator/host/own_threads.h"

namespace commensal::testing {

/// ThreadSanitizer starts threads of its own in a forked process; they block every signal, so
/// memory could never move where nobody may be traced. Makes them threads that need not stop. Does
/// nothing in other builds. Call it before the process starts threads of its own.
inline void pass_over_sanitizer_threads() {
#ifdef __SANITIZE_THREAD__
  std::thread{[] {}}.join();  // they start with the first thread
  for (const auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
    const int tid = std::stoi(task.path().filename());
    if (tid != ::getpid()) new OwnThread(tid);  // for the life of the process
  }
#endif
}

}  // namespace commensal::testing
