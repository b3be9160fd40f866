// SPDX-License-Identifier: Apache-2.0
// Copies between tiers while the job runs.
#include "allocator/cuda/copy_queue.h"

#include <utility>

namespace commensal {

CopyQueue::CopyQueue(const DeviceContext& context) : context_(context), driver_(context.driver()) {
  try {
    int least = 0;
    int greatest = 0;
    check_cuda(driver_.cuCtxGetStreamPriorityRange(&least, &greatest),
               "cuCtxGetStreamPriorityRange");
    for (CUstream* made : {&out_, &in_}) {
      check_cuda(driver_.cuStreamCreateWithPriority(made, CU_STREAM_NON_BLOCKING, least),
                 "cuStreamCreateWithPriority");
    }
    fingerprints_ = std::make_unique<Fingerprinter>(context_, in_);
  } catch (...) {
    close();
    throw;
  }
}

CopyQueue::~CopyQueue() {
  if (!abandoned_) close();
}

void CopyQueue::close() noexcept {
  drain();
  fingerprints_.reset();
  std::vector<CUevent> events;
  {
    const MutexLock lock(mutex_);
    events.swap(events_);
  }
  for (CUevent event : events) {
    (void)insist([&] { return driver_.cuEventDestroy(event); });
  }
  for (CUstream made : {out_, in_}) {
    if (made != nullptr) (void)insist([&] { return driver_.cuStreamDestroy(made); });
  }
}

void CopyQueue::drain() noexcept {
  for (CUstream made : {out_, in_}) {
    if (made != nullptr) (void)insist([&] { return driver_.cuStreamSynchronize(made); });
  }
}

std::shared_ptr<CUevent_st> CopyQueue::take_event() {
  CUevent event = nullptr;
  {
    const MutexLock lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (event == nullptr) {
    {
      const MutexLock lock(mutex_);
      events_.reserve(++events_made_);  // `give_event` has room for each
    }
    check_cuda(driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC),
               "cuEventCreate");
  }
  return {event, [this](CUevent unused) { give_event(unused); }};
}

void CopyQueue::give_event(CUevent event) noexcept {
  const MutexLock lock(mutex_);
  events_.push_back(event);
}

// Puts a copy, and the fingerprint of what arrives, into the stream.
CUresult CopyQueue::enqueue(DeviceCopy& copy) noexcept {
  CUstream into = stream(copy.target);
  const CUresult result = driver_.cuMemcpyAsync(copy.to, copy.from, copy.size.count(), into);
  if (result != CUDA_SUCCESS || copy.copied == Fingerprinter::kNoSlot) return result;
  return fingerprints_->launch(copy.to, copy.size, into, copy.copied);
}

void CopyQueue::start(DeviceCopy& copy) {
  copy.done = take_event();
  if (fingerprint_reason().empty()) {
    copy.copied = fingerprints_->take();
    copy.now = fingerprints_->take();
    if (copy.now == Fingerprinter::kNoSlot) {
      end(copy);
      throw SourceError("too many copies at once");
    }
  }
  CUresult result = enqueue(copy);
  if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(copy.done.get(), stream(copy.target));
  if (result == CUDA_SUCCESS) return;
  end(copy);
  check_cuda(result, "starting to copy " + to_string(copy.size));
}

CopyState CopyQueue::poll(DeviceCopy& copy) noexcept {
  CopyState state = copy.state.load();
  if (state != CopyState::kRunning) return state;
  const CUresult result = driver_.cuEventQuery(copy.done.get());
  if (result == CUDA_ERROR_NOT_READY) return state;
  if (result != CUDA_SUCCESS) copy.error = result;
  // Another thread that asks at the same time may have seen it end the other way: the first wins.
  const CopyState seen = result == CUDA_SUCCESS ? CopyState::kDone : CopyState::kFailed;
  return copy.state.compare_exchange_strong(state, seen) ? seen : state;
}

CopyState CopyQueue::wait(DeviceCopy& copy) noexcept {
  CopyState state = copy.state.load();
  if (state != CopyState::kRunning) return state;
  const CUresult result = driver_.cuEventSynchronize(copy.done.get());
  if (result != CUDA_SUCCESS) copy.error = result;
  const CopyState seen = result == CUDA_SUCCESS ? CopyState::kDone : CopyState::kFailed;
  return copy.state.compare_exchange_strong(state, seen) ? seen : state;
}

void CopyQueue::end(DeviceCopy& copy) noexcept {
  if (copy.done == nullptr) return;
  // A copy that counts as failed may be under way still: perhaps only a question was refused.
  if (copy.state.load() != CopyState::kDone) {
    (void)insist([&] { return driver_.cuStreamSynchronize(stream(copy.target)); });
  }
  fingerprints_->give(std::exchange(copy.copied, Fingerprinter::kNoSlot));
  fingerprints_->give(std::exchange(copy.now, Fingerprinter::kNoSlot));
}

CUresult CopyQueue::begin_compare(DeviceCopy& copy) noexcept {
  return fingerprints_->launch(copy.from, copy.size, stream(copy.target), copy.now);
}

CUresult CopyQueue::begin_renew(DeviceCopy& copy) noexcept { return enqueue(copy); }

CUresult CopyQueue::finish() noexcept {
  CUresult first = CUDA_SUCCESS;
  for (CUstream made : {out_, in_}) {
    const CUresult result = driver_.cuStreamSynchronize(made);
    if (first == CUDA_SUCCESS) first = result;
  }
  return first;
}

void CopyQueue::abandon() noexcept {
  abandoned_ = true;
  fingerprints_->abandon();
}

}  // namespace commensal
