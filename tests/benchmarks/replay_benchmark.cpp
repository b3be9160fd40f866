// SPDX-License-Identifier: Apache-2.0
// Replays a recorded allocation trace on the elastic allocator, without a limit or with one that
// is never reached, or on PyTorch's default one (its own functions, from the installed libc10;
// another malloc can be preloaded). For each line with a number on stdin it replays so many times
// and answers with one line of JSON; replay.py lets several such processes take turns.
//
//   replay_benchmark elastic|limited|default FILE THREADS leave|touch
//
// Or tells how densely blocks lie in chunks at the ends of steps, with the arenas by lifetime or in
// one (density.py):
//
//   replay_benchmark density FILE lifetimes|one
#include <c10/core/impl/alloc_cpu.h>
#include <dlfcn.h>
#include <time.h>

#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"

namespace commensal {
namespace {

struct Event {
  std::uint32_t slot = 0;
  std::uint32_t size = 0;  ///< 0: the slot's block is given back
};
constexpr std::uint32_t kStepEnds = UINT32_MAX;  ///< instead of a slot

/// What traces.py packed.
struct Trace {
  std::uint32_t slots = 0;
  std::uint32_t timed_begin = 0;
  std::uint32_t timed_end = 0;
  std::vector<Event> events;
  std::size_t timed_pairs = 0;
};

Trace read_trace(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const auto word = [&file] {
    std::uint32_t value = 0;
    file.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  };
  Trace trace;
  trace.slots = word();
  trace.timed_begin = word();
  trace.timed_end = word();
  trace.events.resize(word());
  for (Event& event : trace.events) {
    event.slot = word();
    event.size = word();
    if (event.slot >= trace.slots && event.slot != kStepEnds)
      throw std::runtime_error("the trace names a slot it lacks");
  }
  if (!file || trace.timed_end > trace.events.size() || trace.timed_begin >= trace.timed_end) {
    throw std::runtime_error(std::string("not a packed trace: ") + path);
  }
  for (std::size_t i = trace.timed_begin; i < trace.timed_end; ++i) {
    trace.timed_pairs += trace.events[i].size != 0 ? 1 : 0;
  }
  return trace;
}

struct Elastic {
  // Never destroyed, as in a training process.
  static inline constinit ElasticAllocator* allocator = nullptr;
  static void prepare(const ElasticAllocatorOptions& options) {
    allocator = new ElasticAllocator(*new HostMemorySource, options);
  }
  static void* allocate(std::size_t size) { return allocator->allocate(Bytes{size}); }
  static void free(void* block) { allocator->deallocate(block); }
  static void end_step() {
    allocator->step_ended();
    if (allocator->work_pending()) (void)allocator->safe_point();
  }
};

struct Default {
  static void* allocate(std::size_t size) { return c10::alloc_cpu(size); }
  static void free(void* block) { c10::free_cpu(block); }
  static void end_step() {}
};

/// Writes one byte a page: what a first use costs.
void touch_pages(void* block, std::size_t size) {
  auto* const bytes = static_cast<volatile std::byte*>(block);
  for (std::size_t i = 0; i < size; i += 4096) bytes[i] = std::byte{1};
}

/// One of several threads that do the same: steps are those of the first.
template <typename Kind, bool kTouch>
void replay(const Trace& trace, std::size_t begin, std::size_t end, std::vector<void*>& slots,
            bool first) {
  for (std::size_t i = begin; i < end; ++i) {
    const Event event = trace.events[i];
    if (event.size == 0) {
      if (event.slot != kStepEnds) {
        Kind::free(slots[event.slot]);
      } else if (first) {
        Kind::end_step();
      }
      continue;
    }
    void* const block = Kind::allocate(event.size);
    if constexpr (kTouch) touch_pages(block, event.size);
    slots[event.slot] = block;
  }
}

/// Where running threads wait for each other without sleeping: a thread that has to be woken would
/// begin so late that the others are nearly done.
class Meeting {
 public:
  explicit Meeting(std::size_t threads) : threads_(threads) {}
  void meet() {
    const std::uint64_t number = met_.fetch_add(1) / threads_ + 1;
    while (met_.load() < number * threads_) continue;
  }

 private:
  const std::uint64_t threads_;
  std::atomic<std::uint64_t> met_{0};
};

/// Nanoseconds of this thread, to be compared with each other: where each thread has a processor,
/// by the wall clock, so that waiting counts; else the processor time that it used.
double thread_time(bool crowded) {
  timespec now{};
  if (::clock_gettime(crowded ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now) != 0) {
    throw std::runtime_error("clock_gettime failed");
  }
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// What all threads of a team share.
struct Together {
  explicit Together(std::size_t threads)
      : barrier(static_cast<std::ptrdiff_t>(threads)),
        meeting(threads),
        crowded(threads > std::thread::hardware_concurrency()) {}
  std::barrier<> barrier;
  Meeting meeting;
  bool crowded;
};

/// One thread's part of `passes` replays; the timed parts of all threads begin together.
template <typename Kind, bool kTouch>
void work(const Trace& trace, std::size_t passes, Together& together, bool first,
          std::vector<double>& nanoseconds) {
  std::vector<void*> slots(trace.slots);
  for (std::size_t pass = 0; pass < passes; ++pass) {
    replay<Kind, kTouch>(trace, 0, trace.timed_begin, slots, first);
    together.barrier.arrive_and_wait();
    if (!together.crowded) together.meeting.meet();
    const double begin = thread_time(together.crowded);
    replay<Kind, kTouch>(trace, trace.timed_begin, trace.timed_end, slots, first);
    const double took = thread_time(together.crowded) - begin;
    nanoseconds.push_back(took / static_cast<double>(trace.timed_pairs));
    replay<Kind, kTouch>(trace, trace.timed_end, trace.events.size(), slots, first);
    together.barrier.arrive_and_wait();
  }
}

/// Threads that live as long as the program, as a job's do.
template <typename Kind, bool kTouch>
class Team {
 public:
  Team(const Trace& trace, std::size_t threads)
      : trace_(trace),
        together_(threads),
        turn_(static_cast<std::ptrdiff_t>(threads)),
        times_(threads) {
    for (std::size_t i = 1; i < threads; ++i) {
      others_.emplace_back([this, i] {
        while (true) {
          turn_.arrive_and_wait();
          if (passes_ == 0) return;
          work<Kind, kTouch>(trace_, passes_, together_, false, times_[i]);
          turn_.arrive_and_wait();
        }
      });
    }
  }
  ~Team() {
    passes_ = 0;
    turn_.arrive_and_wait();
    for (std::thread& thread : others_) thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// Returns nanoseconds a pair of each pass, the mean over the threads.
  std::vector<double> run(std::size_t passes) {
    for (auto& times : times_) times.clear();
    passes_ = passes;
    turn_.arrive_and_wait();
    work<Kind, kTouch>(trace_, passes, together_, true, times_[0]);
    turn_.arrive_and_wait();
    std::vector<double> means(passes);
    for (std::size_t pass = 0; pass < passes; ++pass) {
      for (const auto& times : times_) means[pass] += times[pass];
      means[pass] /= static_cast<double>(times_.size());
    }
    return means;
  }

 private:
  const Trace& trace_;
  Together together_;
  std::barrier<> turn_;
  std::size_t passes_ = 0;  // written while the others wait for their turn
  std::vector<std::vector<double>> times_;
  std::vector<std::thread> others_;
};

/// Names the library that serves malloc's family in this process.
std::string malloc_library() {
  Dl_info info{};
  void* const function = dlsym(RTLD_DEFAULT, "posix_memalign");
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "unknown";
}

template <typename Kind, bool kTouch>
int take_turns(const Trace& trace, std::size_t threads) {
  Team<Kind, kTouch> team(trace, threads);
  (void)team.run(1);  // a first replay makes pools, caches and ranges
  std::cout << nlohmann::json{{"malloc", malloc_library()}, {"pairs", trace.timed_pairs}}
            << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << nlohmann::json{{"nanoseconds", team.run(std::stoul(line))}} << std::endl;
  }
  return 0;
}

/// Replays a trace once, as the job ran, and tells what was live and what held it.
int tell_density(const Trace& trace, bool by_lifetime) {
  ElasticAllocatorOptions options;
  options.by_lifetime = by_lifetime;
  Elastic::prepare(options);
  std::vector<void*> slots(trace.slots);
  nlohmann::json steps = nlohmann::json::array();
  std::size_t begin = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    if (trace.events[i].slot != kStepEnds) continue;
    replay<Elastic, false>(trace, begin, i + 1, slots, true);
    begin = i + 1;
    Bytes chunks;
    for (const ChunkResidency& chunk : Elastic::allocator->residency()) {
      if (!chunk.live.is_zero()) chunks += chunk.size;
    }
    steps.push_back(
        {{"live", Elastic::allocator->stats().live.count()}, {"chunks", chunks.count()}});
  }
  const AllocatorStats stats = Elastic::allocator->stats();
  std::cout << nlohmann::json{{"steps", steps},
                              {"live_peak", stats.peak_live.count()},
                              {"reserved_peak", stats.peak_device.count()}}
            << std::endl;
  return 0;
}

template <typename Kind>
int replay_kind(const Trace& trace, std::size_t threads, bool touch) {
  return touch ? take_turns<Kind, true>(trace, threads) : take_turns<Kind, false>(trace, threads);
}

int run(const std::vector<std::string_view>& arguments) {
  if (arguments.size() == 4 && arguments[1] == "density") {
    return tell_density(read_trace(arguments[2].data()), arguments[3] == "lifetimes");
  }
  if (arguments.size() != 5) {
    throw std::runtime_error(
        "usage: replay_benchmark elastic|limited|default FILE THREADS leave|touch, or "
        "replay_benchmark density FILE lifetimes|one");
  }
  const Trace trace = read_trace(arguments[2].data());
  const std::size_t threads = std::stoul(std::string(arguments[3]));
  if (threads == 0) throw std::runtime_error("no threads");
  const bool touch = arguments[4] == "touch";
  if (arguments[1] == "elastic" || arguments[1] == "limited") {
    Elastic::prepare({});
    if (arguments[1] == "limited") (void)Elastic::allocator->set_limit(1024_GiB);
    return replay_kind<Elastic>(trace, threads, touch);
  }
  if (arguments[1] == "default") return replay_kind<Default>(trace, threads, touch);
  throw std::runtime_error("unknown allocator: " + std::string(arguments[1]));
}

}  // namespace
}  // namespace commensal

int main(int argc, char** argv) {
  try {
    return commensal::run(std::vector<std::string_view>(argv, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "replay_benchmark: " << error.what() << '\n';
    return 1;
  }
}
