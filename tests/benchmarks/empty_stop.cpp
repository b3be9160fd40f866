// SPDX-License-Identifier: Apache-2.0
// Stops all threads of a process and moves nothing: what any pause takes at least. Loaded by
// workload.py into a training job.
#include <chrono>

#include "allocator/host/thread_stopper.h"

extern "C" {
/// Stops all other threads and lets them go on; returns how long they stood, in seconds; below
/// zero: they could not be stopped.
double commensal_empty_stop() {
  commensal::ThreadStopper& stopper = commensal::ThreadStopper::instance();
  const commensal::ThreadStopper::Result stop = stopper.stop(std::chrono::seconds(1));
  const auto begin = std::chrono::steady_clock::now();
  if (!stop.stopped) return -1;
  stopper.resume();
  return std::chrono::duration<double>(stop.held + (std::chrono::steady_clock::now() - begin))
      .count();
}
}
