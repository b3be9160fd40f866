// SPDX-License-Identifier: Apache-2.0
// Finds the threads of a ZeroMQ context.
#include "torch_ext/runtime/zmq_threads.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <system_error>
#include <thread>

namespace commensal {
namespace {

namespace fs = std::filesystem;

constexpr int kInputThreads = 1;
constexpr std::size_t kThreads = kInputThreads + 1;  // and the one that closes sockets
constexpr auto kPatience = std::chrono::seconds{1};
constexpr auto kPause = std::chrono::microseconds{200};

// Eight digits: with what ZeroMQ puts behind them they fill a thread's name.
int unguessable() {
  std::random_device source;
  return std::uniform_int_distribution<int>(10'000'000, 99'999'999)(source);
}

// Returns the threads of this process whose names begin so.
std::set<int> threads_named(const std::string& prefix) {
  std::set<int> found;
  std::error_code gone;
  for (fs::directory_iterator it("/proc/self/task", gone), end; !gone && it != end;
       it.increment(gone)) {
    std::string name;
    std::ifstream comm(it->path() / "comm");
    std::getline(comm, name);
    if (name.starts_with(prefix)) found.insert(std::atoi(it->path().filename().c_str()));
  }
  return found;
}

}  // namespace

ZmqContext::ZmqContext() : context_(kInputThreads) {
  const int mark = unguessable();
  context_.set(zmq::ctxopt::thread_name_prefix, mark);
  const zmq::socket_t first(context_, zmq::socket_type::dealer);  // starts the threads
  const std::string prefix = std::to_string(mark) + "/ZMQbg";
  const auto until = std::chrono::steady_clock::now() + kPatience;
  std::set<int> threads;
  while ((threads = threads_named(prefix)).size() < kThreads &&
         std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kPause);
  }
  for (const int tid : threads) {
    own_.emplace_back(tid);
    std::ofstream("/proc/self/task/" + std::to_string(tid) + "/comm") << "commensal-zmq";
  }
}

}  // namespace commensal
