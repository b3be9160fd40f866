// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/stream.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <thread>
#include <utility>

namespace commensal::simulated_cuda {
namespace {

thread_local bool stream_worker = false;
std::atomic<std::uint64_t> next_stream_id{1};

}  // namespace

bool in_stream_worker() noexcept { return stream_worker; }

void Execution::spend(std::chrono::nanoseconds time) {
  if (time <= std::chrono::nanoseconds{0}) return;
  end_ += time;
  std::this_thread::sleep_until(end_);
}

void Brake::hold() {
  const MutexLock lock(mutex_);
  on_ = true;
}

void Brake::let_go() {
  const MutexLock lock(mutex_);
  on_ = false;
  changed_.notify_all();
}

void Brake::pass() {
  const MutexLock lock(mutex_);
  while (on_) changed_.wait(mutex_);
}

bool Ticket::done() const {
  if (stream == nullptr) return true;
  const MutexLock lock(stream->mutex_);
  return stream->done_ >= number;
}

void Ticket::wait() const {
  if (stream == nullptr) return;
  const MutexLock lock(stream->mutex_);
  while (stream->done_ < number) stream->changed_.wait(stream->mutex_);
}

Stream::Stream(int device, unsigned flags, int priority, Brake& brake, Fate& fate,
               std::shared_ptr<GreenPart> part)
    : device_(device),
      flags_(flags),
      priority_(priority),
      id_(next_stream_id++),
      part_(std::move(part)),
      brake_(brake),
      fate_(fate) {}

Ticket Stream::push(std::vector<Ticket> after, Body body) {
  const MutexLock lock(mutex_);
  queue_.push_back({std::move(after), std::move(body)});
  ++pushed_;
  if (!started_) {
    started_ = true;
    sigset_t all;  // signals are for the program's own threads
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([self = shared_from_this()] { self->work(); }).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  changed_.notify_all();
  return {shared_from_this(), pushed_};
}

Ticket Stream::last() {
  const MutexLock lock(mutex_);
  if (done_ >= pushed_) return {};
  return {shared_from_this(), pushed_};
}

void Stream::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Stream::next(Work* work) {
  const MutexLock lock(mutex_);
  while (queue_.empty() && !closed_) changed_.wait(mutex_);
  if (queue_.empty()) return false;
  *work = std::move(queue_.front());
  queue_.pop_front();
  return true;
}

void Stream::finish() {
  const MutexLock lock(mutex_);
  ++done_;
  changed_.notify_all();
}

void Stream::work() {
  stream_worker = true;
  Work work;
  while (next(&work)) {
    for (const Ticket& ticket : work.after) ticket.wait();
    brake_.pass();
    if (fate_ == CUDA_SUCCESS) {
      // Late by a moment of the host's scheduler, the device still begins when it was free.
      const auto now = Clock::now();
      const bool just_free = now - free_from_ < std::chrono::milliseconds{1};
      Execution execution(just_free ? free_from_ : now, device_);
      const CUresult result = work.body(execution);
      free_from_ = std::max(execution.end(), now);
      if (result != CUDA_SUCCESS) {
        CUresult none = CUDA_SUCCESS;
        fate_.compare_exchange_strong(none, result);
      }
    }
    work = {};  // what the work held is gone before anybody hears that it is done
    finish();
  }
}

}  // namespace commensal::simulated_cuda
