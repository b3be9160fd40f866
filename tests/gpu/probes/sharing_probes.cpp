// SPDX-License-Identifier: Apache-2.0
// Probes of two processes on one card: slices, services, locks, clocks.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "child.h"
#include "driver.h"
#include "monitor.h"
#include "probe.h"
#include "rates.h"

namespace probes {
namespace {

std::vector<Stretch> pauses_of(const Page& page) {
  std::vector<Stretch> pauses;
  for (std::uint32_t index = 0; index + 1 < page.count.load(); index += 2) {
    pauses.push_back({page.values[index], page.values[index + 1]});
  }
  return pauses;
}

// Between two pauses a kernel ran.
std::vector<Stretch> runs_between(const std::vector<Stretch>& pauses) {
  std::vector<Stretch> runs;
  for (std::size_t index = 1; index < pauses.size(); ++index) {
    runs.push_back({pauses[index - 1].end, pauses[index].start});
  }
  return runs;
}

// Of each pause of one kernel, the time in which the other did not run either.
std::vector<double> neither_runs(const std::vector<Stretch>& pauses,
                                 const std::vector<Stretch>& others_runs) {
  std::vector<double> lost;
  for (const Stretch& pause : pauses) {
    double used = 0;
    for (const Stretch& run : others_runs) {
      const std::uint64_t start = std::max(run.start, pause.start);
      const std::uint64_t end = std::min(run.end, pause.end);
      if (start < end) used += static_cast<double>(end - start) / 1000.0;
    }
    if (used > 0) lost.push_back(pause.us() - used);
  }
  return lost;
}

// Locks and unlocks the process again and again.
void lock_and_unlock(Child& child, Page& page, Answer& answer, const std::string& label,
                     int rounds) {
  std::vector<double> locks, unlocks;
  for (int round = 0; round < rounds; ++round) {
    CUcheckpointLockArgs lock{};
    lock.timeoutMs = 10'000;
    std::uint64_t start = now_ns();
    CU(cuCheckpointProcessLock, child.pid(), &lock);
    locks.push_back(us_since(start));
    CUcheckpointUnlockArgs unlock{};
    start = now_ns();
    CU(cuCheckpointProcessUnlock, child.pid(), &unlock);
    unlocks.push_back(us_since(start));
    const std::uint64_t reached = page.progress.load();
    for (int wait = 0; page.progress.load() == reached && wait < 2000; ++wait) {
      sleep_for(std::chrono::milliseconds(1));
    }
    if (page.progress.load() == reached) throw std::runtime_error("no step after an unlock");
  }
  answer.figure(label + "_lock", "us", locks);
  answer.figure(label + "_unlock", "us", unlocks);
}

void checkpoint_cycle(Answer& answer, const std::string& role) {
  SharedPage page;
  Child child(role, page);
  child.wait_ready();
  page->go.store(1);
  std::string reached = "lock";
  try {
    CUcheckpointLockArgs lock{};
    lock.timeoutMs = 10'000;
    CU(cuCheckpointProcessLock, child.pid(), &lock);
    reached = "checkpoint";
    CUcheckpointCheckpointArgs checkpoint{};
    std::uint64_t start = now_ns();
    CU(cuCheckpointProcessCheckpoint, child.pid(), &checkpoint);
    answer.figure(role + "_checkpoint", "ms", {us_since(start) / 1000});
    reached = "restore";
    CUcheckpointRestoreArgs restore{};
    start = now_ns();
    CU(cuCheckpointProcessRestore, child.pid(), &restore);
    answer.figure(role + "_restore", "ms", {us_since(start) / 1000});
    reached = "unlock";
    CUcheckpointUnlockArgs unlock{};
    CU(cuCheckpointProcessUnlock, child.pid(), &unlock);
    reached = "content";
    child.finish();
    answer.fact(role, "survives with its content");
  } catch (const NotRun&) {
    throw;
  } catch (const DriverError& error) {
    answer.fact(role, error.what());
  } catch (const std::runtime_error& error) {
    answer.fact(role, reached + ": " + error.what());
  }
}

void note_state(Answer& answer, const std::string& label, const std::string& uuid) {
  const auto state = card_state(uuid);
  if (!state) return;
  answer.fact(label + "_sm_clock_mhz", state->sm_clock_mhz);
  answer.fact(label + "_power_w", state->power_w);
  answer.fact(label + "_temperature_c", state->temperature_c);
}

/// A green context with a stream.
class GreenPart {
 public:
  GreenPart(const Device& device, const CUdevResource& all, unsigned wanted)
      : label_("wanted_" + std::to_string(wanted)) {
    CUdevResource part{};
    unsigned groups = 1;
    CU(cuDevSmResourceSplitByCount, &part, &groups, &all, nullptr, 0U, wanted);
    CUdevResourceDesc description = nullptr;
    CU(cuDevResourceGenerateDesc, &description, &part, 1U);
    const std::uint64_t start = now_ns();
    CU(cuGreenCtxCreate, &context_, description, device.id(),
       static_cast<unsigned>(CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuGreenCtxStreamCreate, &stream_, context_, static_cast<unsigned>(CU_STREAM_NON_BLOCKING),
       0);
    create_us_ = us_since(start);
    CUdevResource own{};
    CU(cuGreenCtxGetDevResource, context_, &own, CU_DEV_RESOURCE_TYPE_SM);
    granted_ = own.sm.smCount;
  }
  ~GreenPart() {
    (void)Driver::get().cuStreamDestroy(stream_);
    (void)Driver::get().cuGreenCtxDestroy(context_);
  }
  GreenPart(const GreenPart&) = delete;
  GreenPart& operator=(const GreenPart&) = delete;

  [[nodiscard]] const std::string& label() const { return label_; }
  [[nodiscard]] CUstream stream() const { return stream_; }
  [[nodiscard]] double granted() const { return granted_; }
  [[nodiscard]] double create_us() const { return create_us_; }

 private:
  std::string label_;
  CUgreenCtx context_ = nullptr;
  CUstream stream_ = nullptr;
  double create_us_ = 0;
  double granted_ = 0;
};

void join(CUstream one, CUstream other) {
  const Event first;
  const Event second;
  CU(cuEventRecord, static_cast<CUevent>(first), one);
  CU(cuEventRecord, static_cast<CUevent>(second), other);
  CU(cuStreamWaitEvent, other, static_cast<CUevent>(first), 0U);
  CU(cuStreamWaitEvent, one, static_cast<CUevent>(second), 0U);
}

/// On how many multiprocessors the blocks of one large kernel ran.
double multiprocessors_seen(Device& device, CUstream stream) {
  constexpr std::size_t kMost = 1024;
  const Buffer seen(device, kMost * sizeof(unsigned));
  CU(cuMemsetD32Async, seen.address(), 0U, kMost, stream);
  launch(device.kernel("visit"), static_cast<unsigned>(device.multiprocessors()) * 64, 256, stream,
         seen.address(), static_cast<unsigned>(kMost));
  std::vector<unsigned> flags(kMost);
  CU(cuMemcpyDtoHAsync, static_cast<void*>(flags.data()), seen.address(), kMost * sizeof(unsigned),
     stream);
  CU(cuStreamSynchronize, stream);
  return static_cast<double>(std::count(flags.begin(), flags.end(), 1U));
}

}  // namespace

void slices_and_switches(Device& device, Answer& answer) {
  const Load load = Worker(device).load(1000);
  SharedPage first_page;
  SharedPage second_page;
  Child first("spin", first_page);
  Child second("spin", second_page);
  first.wait_ready();
  second.wait_ready();
  first_page->go.store(1);
  second_page->go.store(1);
  first.finish();
  second.finish();
  const std::vector<Stretch> first_pauses = pauses_of(*first_page);
  const std::vector<Stretch> second_pauses = pauses_of(*second_page);
  answer.figure("slice", "us", lengths(runs_between(first_pauses)));
  answer.figure("pause", "us", lengths(first_pauses));
  answer.figure("switch_there_and_back", "us",
                neither_runs(first_pauses, runs_between(second_pauses)));
  compare_rates(answer, "arithmetic", load, {}, {});
}

void green_contexts(Device& device, Answer& answer) {
  CUdevResource all{};
  CU(cuDeviceGetDevResource, device.id(), &all, CU_DEV_RESOURCE_TYPE_SM);
  answer.fact("multiprocessors", all.sm.smCount);
  answer.fact("smallest_part", all.sm.minSmPartitionSize);
  answer.fact("step", all.sm.smCoscheduledAlignment);
  std::vector<std::unique_ptr<GreenPart>> parts;
  for (const unsigned wanted : {8U, 16U, 20U, 32U, 64U, 128U}) {
    if (wanted >= all.sm.smCount) continue;
    parts.push_back(std::make_unique<GreenPart>(device, all, wanted));
    const GreenPart& part = *parts.back();
    answer.fact(part.label() + "_got", part.granted());
    answer.figure(part.label() + "_create", "us", {part.create_us()});
  }
  if (parts.empty()) return;
  const Stream whole;
  // What a job's step pays: both streams wait for each other.
  std::vector<double> joins;
  for (int round = 0; round < 100; ++round) {
    const std::uint64_t start = now_ns();
    join(whole, parts.front()->stream());
    joins.push_back(us_since(start));
  }
  answer.figure("join_of_two_streams", "us", joins);
  Worker worker(device);
  for (const auto& part : parts) {
    answer.fact(part->label() + "_kernels_see", multiprocessors_seen(device, part->stream()));
    std::vector<double> slowdowns;
    for (int round = 0; round < 10; ++round) {
      slowdowns.push_back(worker.measure(part->stream(), 2000) / worker.measure(whole, 2000));
    }
    answer.figure(part->label() + "_time_against_all", "times", slowdowns);
  }
}

void locking_a_process(Device& /*device*/, Answer& answer) {
  SharedPage page;
  Child child("keeper", page);
  child.wait_ready();
  page->go.store(1);
  lock_and_unlock(child, *page, answer, "process_of_64_mib", 40);
  child.finish();
  answer.fact("content_survives", true);
  throw NotRun(
      "data-parallel training over gloo needs PyTorch, this program has none: "
      "that half of the question is left to a test with PyTorch");
}

void checkpoint_with_host_memory(Device& /*device*/, Answer& answer) {
  for (const char* role : {"keeper", "keeper-registered", "keeper-host-numa"}) {
    checkpoint_cycle(answer, role);
  }
}

void changing_the_slice(Device& /*device*/, Answer& /*answer*/) {
  throw NotRun(
      "the one documented way to change a slice (nvidia-smi compute-policy) is a setting of the "
      "card, and these probes never change one");
}

void cost_of_the_callback(Device& /*device*/, Answer& /*answer*/) {
  throw NotRun("it is a cost on the CPU, measured with PyTorch by ./scripts/benchmark (gate_cost)");
}

namespace {

// Steps of 1 ms after a rest, and after a time in which another process was at work.
void compare_steps(Device& device, Worker& worker, Answer& answer) {
  constexpr std::chrono::milliseconds kLong{700};
  const Stream stream;
  SharedPage page;
  page->give(worker.load(1000));
  Child burst("work", page);
  burst.wait_ready();
  const std::string uuid = device.uuid();
  const auto add_steps = [&](std::vector<double>& steps) {
    for (int step = 0; step < 50; ++step) steps.push_back(worker.measure(stream, 1000));
  };
  std::vector<double> after_rest, after_burst;
  for (int round = 0; round < 3; ++round) {
    sleep_for(kLong);
    note_state(answer, "after_rest", uuid);
    add_steps(after_rest);
    page->go.store(1);
    sleep_for(kLong);
    page->go.store(0);
    sleep_for(std::chrono::milliseconds(20));  // the last kernel ends: no overlap
    note_state(answer, "after_burst", uuid);
    add_steps(after_burst);
  }
  burst.finish();
  answer.figure("step_after_rest", "us", after_rest);
  answer.figure("step_after_burst", "us", after_burst);
  answer.fact("slower_after_a_burst_percent",
              (median_of(after_burst) / median_of(after_rest) - 1) * 100);
}

// Another process that runs one kernel whenever it is asked to.
class Neighbour {
 public:
  explicit Neighbour(Load load) {
    page_->give(load);
    child_ = std::make_unique<Child>("one-by-one", page_);
    child_->wait_ready();
  }
  void ask() { page_->go.store(++asked_); }
  /// @throws std::runtime_error after two seconds.
  void await() const {
    const std::uint64_t start = now_ns();
    while (page_->progress.load() != asked_) {
      if (us_since(start) > 2e6) throw std::runtime_error("the neighbour's kernel never ended");
    }
  }
  /// When it saw the end of its kernel; after `await`.
  [[nodiscard]] std::uint64_t ended_ns() const { return page_->values[0]; }
  void finish() { child_->finish(); }

 private:
  SharedPage page_;
  std::unique_ptr<Child> child_;
  std::uint32_t asked_ = 0;
};

// A kernel right after the neighbour's only one has ended, and behind one that runs: what is more
// than alone is the switch.
void switch_where_a_kernel_ends(Worker& worker, Answer& answer) {
  constexpr double kOwnUs = 100;
  constexpr double kNeighboursUs = 500;
  const Stream stream;
  Neighbour neighbour(worker.load(kNeighboursUs));
  const auto own_kernel = [&] {
    return stretch_of([&] {
      worker.queue(stream, kOwnUs);
      while (TRY_CU(cuStreamQuery, static_cast<CUstream>(stream)) == CUDA_ERROR_NOT_READY) {
      }
    });
  };
  std::vector<double> alone, after, behind, after_neighbours, neighbours;
  for (int round = 0; round < 300; ++round) {
    (void)own_kernel();  // the context's own turn
    alone.push_back(own_kernel().us());
    std::uint64_t asked = now_ns();
    neighbour.ask();
    neighbour.await();
    neighbours.push_back(static_cast<double>(neighbour.ended_ns() - asked) / 1000.0);
    after.push_back(own_kernel().us());

    asked = now_ns();
    neighbour.ask();
    while (us_since(asked) < kNeighboursUs / 2) {  // it runs
    }
    const Stretch own = own_kernel();
    neighbour.await();
    behind.push_back(own.us());
    // Below zero: it was first, and the neighbour's kernel was cut in two.
    after_neighbours.push_back(
        (static_cast<double>(own.end) - static_cast<double>(neighbour.ended_ns())) / 1000.0);
  }
  neighbour.finish();
  answer.figure("kernel_of_100_us_alone", "us", alone);
  answer.figure("kernel_of_100_us_after_the_neighbours_end", "us", after);
  answer.figure("kernel_of_100_us_behind_a_running_one_of_500_us", "us", behind);
  answer.figure("its_end_after_the_end_of_the_running_one", "us", after_neighbours);
  answer.figure("neighbours_kernel_of_500_us", "us", neighbours);
  answer.fact("switch_where_a_kernel_ends_us", median_of(after) - median_of(alone));
}

}  // namespace

void step_after_a_burst(Device& device, Answer& answer) {
  Worker worker(device);
  switch_where_a_kernel_ends(worker, answer);
  compare_steps(device, worker, answer);
}

}  // namespace probes
