// SPDX-License-Identifier: Apache-2.0
// Finds out whether the time stamp counter can be used, and how fast it counts.
#include "torch_ext/gate/tick_source.h"

#include <fstream>
#include <string>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace commensal {
namespace {

/// Nanoseconds of one count; zero: do not use the counter.
double calibrate() {
#if defined(__x86_64__)
  constexpr unsigned int kInvariantBit = 1U << 8U;
  unsigned int a = 0;
  unsigned int b = 0;
  unsigned int c = 0;
  unsigned int d = 0;
  if (__get_cpuid(0x80000007U, &a, &b, &c, &d) == 0 || (d & kInvariantBit) == 0) return 0.0;
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  if (!(file >> source)) return 0.0;
  if (source != "tsc" && source != "kvm-clock" && source != "hyperv_clocksource_tsc_page") {
    return 0.0;
  }
  const Clock& clock = SteadyClock::instance();
  const TimePoint from = clock.now();
  const std::uint64_t first = __rdtsc();
  std::this_thread::sleep_for(std::chrono::milliseconds{2});
  const TimePoint to = clock.now();
  const std::uint64_t last = __rdtsc();
  if (last <= first || to <= from) return 0.0;
  return static_cast<double>((to - from).count()) / static_cast<double>(last - first);
#else
  return 0.0;
#endif
}

}  // namespace

TickSource::TickSource(const Clock& clock) : clock_(clock) {
  if (&clock != &SteadyClock::instance()) return;
  static const double ns_per_count = calibrate();
  if (ns_per_count <= 0.0) return;
  counter_ = true;
  ns_per_tick_ = ns_per_count;
  ticks_per_ns_ = 1.0 / ns_per_count;
}

}  // namespace commensal
