// SPDX-License-Identifier: Apache-2.0
// sched_getaffinity and sched_setaffinity over /proc.
#include "torch_ext/runtime/thread_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include "allocator/host/own_descriptors.h"
#include "allocator/host/own_threads.h"

namespace commensal {
namespace {

namespace fs = std::filesystem;
using wire::CoreSet;

/// Large enough for any machine: with less, the kernel refuses to tell.
constexpr std::size_t kMostKernelCpus = 16384;
using KernelSet = std::array<cpu_set_t, kMostKernelCpus / CPU_SETSIZE>;

/// What could be read: nothing of a thread that has ended, even if it ended after it was opened.
std::string text_of(const fs::path& path) {
  // A failed read throws out of an istreambuf_iterator, but not out of this.
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

// Numbers are known as our own in this process alone: a child has none of these threads.
void add_threads(const fs::path& process, std::vector<ThreadCores::Thread>& threads) {
  std::error_code gone;
  for (fs::directory_iterator it(process / "task", gone), end; !gone && it != end;
       it.increment(gone)) {
    const int tid = std::atoi(it->path().filename().c_str());
    if (tid > 0) threads.push_back({tid, is_own_thread(tid)});
  }
}

std::vector<int> children() {
  std::vector<int> pids;
  std::error_code gone;
  for (fs::directory_iterator it("/proc/self/task", gone), end; !gone && it != end;
       it.increment(gone)) {
    std::ifstream file(it->path() / "children");
    pids.insert(pids.end(), std::istream_iterator<int>(file), {});
  }
  return pids;
}

class KernelThreadCores final : public ThreadCores {
 public:
  std::vector<Thread> threads() override {
    std::vector<Thread> all;
    own_descriptors::run([&] {
      add_threads("/proc/self", all);
      const std::string own = text_of("/proc/self/cmdline");
      for (const int pid : children()) {
        const fs::path child = fs::path("/proc") / std::to_string(pid);
        if (text_of(child / "cmdline") == own) add_threads(child, all);
      }
    });
    return all;
  }

  std::optional<CoreSet> get(int tid) override {
    KernelSet set{};
    if (::sched_getaffinity(tid, sizeof set, set.data()) != 0) return std::nullopt;
    CoreSet cores;
    for (std::size_t cpu = 0; cpu < kMostKernelCpus; ++cpu) {
      if (!CPU_ISSET_S(cpu, sizeof set, set.data())) continue;
      if (cpu >= CoreSet::kMost) return std::nullopt;
      cores.add(cpu);
    }
    return cores;
  }

  std::string set(int tid, const CoreSet& cores) override {
    KernelSet set{};
    for (const std::size_t cpu : cores.cpus()) CPU_SET_S(cpu, sizeof set, set.data());
    if (::sched_setaffinity(tid, sizeof set, set.data()) == 0 || errno == ESRCH) return {};
    return "sched_setaffinity of thread " + std::to_string(tid) + " to CPUs " + cores.to_string() +
           ": " + std::generic_category().message(errno);
  }
};

}  // namespace

ThreadCores& kernel_thread_cores() {
  static KernelThreadCores cores;
  return cores;
}

int parent_of(const std::string& inherited) noexcept {
  int pid = 0;
  const char* const end = inherited.data() + inherited.size();
  const auto [rest, error] = std::from_chars(inherited.data(), end, pid);
  return error == std::errc{} && rest != end && *rest == ':' && pid > 0 ? pid : 0;
}

CoreSet own_cores(const CoreSet& mine, const std::string& inherited,
                  const std::optional<CoreSet>& parents) {
  if (parent_of(inherited) == 0 || parents != mine) return mine;
  const std::string rest = inherited.substr(inherited.find(':') + 1);
  const auto list = CoreSet::parse(rest.substr(0, rest.find(':')));
  if (!list || list->empty() || (*list & mine) != mine) return mine;
  return *list;
}

}  // namespace commensal
