// SPDX-License-Identifier: Apache-2.0
// Probes of the multi-process service: what processes under it do to each other.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "child.h"
#include "driver.h"
#include "monitor.h"
#include "probe.h"
#include "rates.h"

namespace probes {
namespace {

std::optional<std::filesystem::path> program(const char* name) {
  const char* const path = std::getenv("PATH");
  std::string folders = path == nullptr ? "" : path;
  std::size_t start = 0;
  while (start <= folders.size()) {
    const std::size_t end = std::min(folders.find(':', start), folders.size());
    const std::filesystem::path candidate =
        std::filesystem::path(folders.substr(start, end - start)) / name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    start = end + 1;
  }
  return std::nullopt;
}

// The multi-process service with folders of its own; ends with the object.
class Service {
 public:
  Service() {
    std::string pattern = (std::filesystem::temp_directory_path() / "probes-mps-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw NotRun("no folder for the service");
    folder_ = pattern;
    environment_ = {{"CUDA_MPS_PIPE_DIRECTORY", pattern}, {"CUDA_MPS_LOG_DIRECTORY", pattern}};
  }
  ~Service() {
    (void)run_program({"/bin/sh", "-c", "echo quit | nvidia-cuda-mps-control >/dev/null 2>&1"},
                      environment_, std::chrono::seconds(15));
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// @return the exit code of the daemon's start.
  int start() {
    return run_program({"nvidia-cuda-mps-control", "-d"}, environment_, std::chrono::seconds(15));
  }
  [[nodiscard]] Environment with(const Environment& more) const {
    Environment all = environment_;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  std::filesystem::path folder_;
  Environment environment_;
};

// Another process beside the first one, which may use a part of the threads.
struct Second {
  explicit Second(unsigned of_threads) : percent(of_threads) {}
  unsigned percent;
  SharedPage page;
  std::unique_ptr<Child> child;
  std::vector<double> first_rates;  // of the first process beside it
  std::vector<double> rates;
};

// The rates of the first process alone and beside each of the others, all with this load.
void compare_shares(Answer& answer, const std::string& label, Load load, Page& first,
                    std::vector<std::unique_ptr<Second>>& others) {
  constexpr std::chrono::milliseconds kWindow{80};
  constexpr std::chrono::milliseconds kSettle{20};  // kernels in flight end, others begin
  first.give(load);
  first.go.store(1);
  sleep_for(kSettle);
  std::vector<double> alone;
  for (int round = 0; round < 4; ++round) {
    alone.push_back(rate_of(first, kWindow));
    for (const auto& second : others) {
      second->page->give(load);
      second->page->go.store(1);
      sleep_for(kSettle);
      const std::uint64_t before = second->page->progress.load();
      const std::uint64_t start = now_ns();
      second->first_rates.push_back(rate_of(first, kWindow));
      second->rates.push_back(static_cast<double>(second->page->progress.load() - before) /
                              us_since(start) * 1e6);
      second->page->go.store(0);
      sleep_for(kSettle);
    }
  }
  first.go.store(0);
  sleep_for(kSettle);
  answer.figure(label + "_alone", "kernels/s", alone);
  for (const auto& second : others) {
    const std::string with = label + "_with_" + std::to_string(second->percent) + "_percent";
    const double first_rate = median_of(second->first_rates);
    const double sum = first_rate + median_of(second->rates);
    answer.figure(with + "_first_of_two", "kernels/s", std::move(second->first_rates));
    answer.figure(with + "_second_of_two", "kernels/s", std::move(second->rates));
    answer.fact(with + "_first_loses_percent", (1 - first_rate / median_of(alone)) * 100);
    answer.fact(with + "_loss_in_sum_percent", (1 - sum / median_of(alone)) * 100);
    second->first_rates.clear();
    second->rates.clear();
  }
}

// @throws NotRun where the service is not there or does not start.
void start(Service& service, Answer& answer) {
  const int code = service.start();
  answer.fact("daemon_starts", code == 0);
  answer.fact("as_root", ::geteuid() == 0);
  if (code != 0) throw NotRun("the daemon ends with code " + std::to_string(code));
}

}  // namespace

void multi_process_service(Device& device, Answer& answer) {
  if (!program("nvidia-cuda-mps-control")) throw NotRun("nvidia-cuda-mps-control is not here");
  const Load load = Worker(device).load(1000);
  const auto mode_before = compute_mode(device.uuid());
  Service service;
  start(service, answer);
  const auto mode_with = compute_mode(device.uuid());
  if (mode_before && mode_with) answer.fact("compute_mode_unchanged", *mode_before == *mode_with);
  compare_rates(answer, "service", load, service.with({}), service.with({}));
  compare_rates(answer, "second_below_normal", load, service.with({}),
                service.with({{"CUDA_MPS_CLIENT_PRIORITY", "1"}}));
  const int green = run_program({"/proc/self/exe", "--can", "green-contexts"}, service.with({}),
                                std::chrono::seconds(30));
  answer.fact("green_contexts_work_under_it", green == 0);
}

void shares_of_threads(Device& device, Answer& answer) {
  if (!program("nvidia-cuda-mps-control")) throw NotRun("nvidia-cuda-mps-control is not here");
  // Calibrated here, without a limit: a client under one would give itself less work.
  const auto quarter = static_cast<unsigned>(std::max(1, device.multiprocessors() / 4));
  const Load whole_card = Worker(device).load(250);
  const Load small_grids = Worker(device, quarter).load(250);
  answer.fact("blocks_of_a_small_grid", quarter);
  Service service;
  start(service, answer);
  SharedPage first_page;
  first_page->give(whole_card);
  Child first("work", first_page, service.with({}));
  std::vector<std::unique_ptr<Second>> others;
  for (const unsigned percent : {100U, 50U, 25U, 10U}) {
    others.push_back(std::make_unique<Second>(percent));
    Second& second = *others.back();
    second.page->give(whole_card);
    second.child = std::make_unique<Child>(
        "work", second.page,
        service.with({{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", std::to_string(percent)}}));
  }
  first.wait_ready();
  for (const auto& second : others) second->child->wait_ready();
  compare_shares(answer, "whole_card", whole_card, *first_page, others);
  compare_shares(answer, "small_grids", small_grids, *first_page, others);
  first.finish();
  for (const auto& second : others) second->child->finish();
}

}  // namespace probes
