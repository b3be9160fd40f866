// SPDX-License-Identifier: Apache-2.0
// Tries it with a thread.
#include "allocator/host/stop_probe.h"

#include <signal.h>

#include <future>
#include <system_error>
#include <thread>

#include "allocator/host/thread_stopper.h"
#include "allocator/memory_source.h"

namespace commensal {

std::string probe_thread_stops() {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string why;
  try {
    std::promise<void> end;
    std::thread deaf([until = end.get_future()]() mutable { until.wait(); });
    try {
      why = ThreadStopper::instance().obstacle();
    } catch (const SourceError& error) {
      why = error.what();
    }
    end.set_value();
    deaf.join();
  } catch (const std::system_error& error) {
    why = std::string("no thread to be had: ") + error.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return why;
}

}  // namespace commensal
