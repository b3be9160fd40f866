// SPDX-License-Identifier: Apache-2.0
// Work per second of second processes: the same kernels everywhere, whatever a process may use.
#include "rates.h"

#include <vector>

#include "timeline.h"

namespace probes {

double rate_of(Page& page, std::chrono::milliseconds time) {
  const std::uint64_t before = page.progress.load();
  const std::uint64_t start = now_ns();
  sleep_for(time);
  return static_cast<double>(page.progress.load() - before) / us_since(start) * 1e6;
}

void compare_rates(Answer& answer, const std::string& label, Load load,
                   const Environment& first_environment, const Environment& second_environment) {
  SharedPage first_page;
  SharedPage second_page;
  first_page->give(load);
  second_page->give(load);
  Child first("work", first_page, first_environment);
  first.wait_ready();
  Child second("work", second_page, second_environment);
  second.wait_ready();
  std::vector<double> alone, one, other;
  const std::chrono::milliseconds window{700};
  first_page->go.store(1);
  (void)rate_of(*first_page, window);
  for (int round = 0; round < 4; ++round) {
    alone.push_back(rate_of(*first_page, window));
    second_page->go.store(1);
    sleep_for(std::chrono::milliseconds(50));
    const std::uint64_t before = second_page->progress.load();
    const std::uint64_t start = now_ns();
    one.push_back(rate_of(*first_page, window));
    other.push_back(static_cast<double>(second_page->progress.load() - before) / us_since(start) *
                    1e6);
    second_page->go.store(0);
    sleep_for(std::chrono::milliseconds(50));
  }
  first.finish();
  second.finish();
  answer.figure(label + "_alone", "kernels/s", alone);
  answer.figure(label + "_first_of_two", "kernels/s", one);
  answer.figure(label + "_second_of_two", "kernels/s", other);
  answer.fact(label + "_loss_in_sum_percent",
              (1 - (median_of(one) + median_of(other)) / median_of(alone)) * 100);
}

}  // namespace probes
