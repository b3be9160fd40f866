// SPDX-License-Identifier: Apache-2.0
// Replays a recorded allocation trace on the elastic allocator, or on PyTorch's default one (its
// own functions, from the installed libc10; another malloc can be preloaded). For each line with a
// number on stdin it replays so many times and answers with one line of JSON; replay.py lets
// several such processes take turns.
//
//   replay_benchmark elastic|default FILE THREADS leave|touch
#include <c10/core/impl/alloc_cpu.h>
#include <dlfcn.h>

#include <atomic>
#include <barrier>
#include <chrono>
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
    if (event.slot >= trace.slots) throw std::runtime_error("the trace names a slot it lacks");
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
  static ElasticAllocator& allocator() {
    // Never destroyed, as in a training process.
    static auto& source = *new HostMemorySource;
    static auto& elastic = *new ElasticAllocator(source, ElasticAllocatorOptions{});
    return elastic;
  }
  static void* allocate(std::size_t size) { return allocator().allocate(Bytes{size}); }
  static void free(void* block) { allocator().deallocate(block); }
};

struct Default {
  static void* allocate(std::size_t size) { return c10::alloc_cpu(size); }
  static void free(void* block) { c10::free_cpu(block); }
};

/// Writes one byte a page: what a first use costs.
void touch_pages(void* block, std::size_t size) {
  auto* const bytes = static_cast<volatile std::byte*>(block);
  for (std::size_t i = 0; i < size; i += 4096) bytes[i] = std::byte{1};
}

template <typename Kind, bool kTouch>
void replay(const Trace& trace, std::size_t begin, std::size_t end, std::vector<void*>& slots) {
  for (std::size_t i = begin; i < end; ++i) {
    const Event event = trace.events[i];
    if (event.size == 0) {
      Kind::free(slots[event.slot]);
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

/// One thread's part of `passes` replays; the timed parts of all threads begin together.
template <typename Kind, bool kTouch>
void work(const Trace& trace, std::size_t passes, std::barrier<>& together, Meeting& at_once,
          std::vector<double>& nanoseconds) {
  std::vector<void*> slots(trace.slots);
  for (std::size_t pass = 0; pass < passes; ++pass) {
    replay<Kind, kTouch>(trace, 0, trace.timed_begin, slots);
    together.arrive_and_wait();
    at_once.meet();
    const auto begin = std::chrono::steady_clock::now();
    replay<Kind, kTouch>(trace, trace.timed_begin, trace.timed_end, slots);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    nanoseconds.push_back(took.count() / static_cast<double>(trace.timed_pairs));
    replay<Kind, kTouch>(trace, trace.timed_end, trace.events.size(), slots);
    together.arrive_and_wait();
  }
}

/// Threads that live as long as the program, as a job's do.
template <typename Kind, bool kTouch>
class Team {
 public:
  Team(const Trace& trace, std::size_t threads)
      : trace_(trace),
        together_(static_cast<std::ptrdiff_t>(threads)),
        turn_(static_cast<std::ptrdiff_t>(threads)),
        at_once_(threads),
        times_(threads) {
    for (std::size_t i = 1; i < threads; ++i) {
      others_.emplace_back([this, i] {
        while (true) {
          turn_.arrive_and_wait();
          if (passes_ == 0) return;
          work<Kind, kTouch>(trace_, passes_, together_, at_once_, times_[i]);
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
    work<Kind, kTouch>(trace_, passes, together_, at_once_, times_[0]);
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
  std::barrier<> together_;
  std::barrier<> turn_;
  Meeting at_once_;
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

int run(const std::vector<std::string_view>& arguments) {
  if (arguments.size() != 5) {
    throw std::runtime_error("usage: replay_benchmark elastic|default FILE THREADS leave|touch");
  }
  const Trace trace = read_trace(arguments[2].data());
  const std::size_t threads = std::stoul(std::string(arguments[3]));
  if (threads == 0) throw std::runtime_error("no threads");
  const bool touch = arguments[4] == "touch";
  if (arguments[1] == "elastic") {
    return touch ? take_turns<Elastic, true>(trace, threads)
                 : take_turns<Elastic, false>(trace, threads);
  }
  if (arguments[1] == "default") {
    return touch ? take_turns<Default, true>(trace, threads)
                 : take_turns<Default, false>(trace, threads);
  }
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
