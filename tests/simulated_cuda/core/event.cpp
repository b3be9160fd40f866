// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/event.h"

#include <utility>

namespace commensal::simulated_cuda {

CUresult Event::record(Captures& captures, const std::shared_ptr<Stream>& stream, bool external,
                       const std::function<Ticket(Body)>& push) {
  CUresult error = CUDA_SUCCESS;
  std::optional<CapturedPoint> point = captures.point(stream, &error);
  if (error != CUDA_SUCCESS) return error;
  auto made = std::make_shared<Mark>();
  const Body stamp = [made](Execution&) {
    made->time = Clock::now();
    return CUDA_SUCCESS;
  };
  if (point && external) {
    // Done at each launch; the event says nothing between captures and launches.
    return captures.record(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, "event record", stamp)
        .value_or(CUDA_ERROR_ILLEGAL_STATE);
  }
  if (!point) made->ticket = push(stamp);
  const MutexLock lock(mutex_);
  captured_ = std::move(point);
  mark_ = captured_ ? nullptr : std::move(made);
  return CUDA_SUCCESS;
}

CUresult Event::wait_in(Captures& captures, const std::shared_ptr<Stream>& stream, bool external,
                        const std::function<Ticket(Ticket)>& push) {
  std::optional<CapturedPoint> captured;
  Ticket ticket;
  bool recorded = false;
  {
    const MutexLock lock(mutex_);
    captured = captured_;
    recorded = mark_ != nullptr;
    if (recorded) ticket = mark_->ticket;
  }
  if (captured) return captures.join(stream, *captured);
  CUresult error = CUDA_SUCCESS;
  if (captures.point(stream, &error)) {
    if (error != CUDA_SUCCESS) return error;
    if (external) {
      return captures
          .record(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, "event wait",
                  [ticket](Execution&) {
                    ticket.wait();
                    return CUDA_SUCCESS;
                  })
          .value_or(CUDA_ERROR_ILLEGAL_STATE);
    }
    if (!recorded) return CUDA_SUCCESS;
    return captures.check_not_capturing(stream.get(), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  }
  if (!ticket.done()) push(ticket);
  return CUDA_SUCCESS;
}

std::shared_ptr<Event::Mark> Event::mark(Captures& captures, CUresult* error) {
  const MutexLock lock(mutex_);
  *error = CUDA_SUCCESS;
  if (captured_) {
    captures.invalidate(*captured_);
    *error = CUDA_ERROR_CAPTURED_EVENT;
  }
  return mark_;
}

CUresult Event::query(Captures& captures) {
  CUresult error = CUDA_SUCCESS;
  const std::shared_ptr<Mark> recorded = mark(captures, &error);
  if (error != CUDA_SUCCESS) return error;
  return recorded == nullptr || recorded->ticket.done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult Event::synchronize(Captures& captures) {
  CUresult error = CUDA_SUCCESS;
  const std::shared_ptr<Mark> recorded = mark(captures, &error);
  if (error != CUDA_SUCCESS) return error;
  if (recorded != nullptr) recorded->ticket.wait();
  return CUDA_SUCCESS;
}

CUresult Event::elapsed(Captures& captures, Event& later, float* milliseconds) {
  if (((flags_ | later.flags_) & CU_EVENT_DISABLE_TIMING) != 0 || device_ != later.device_) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  CUresult error = CUDA_SUCCESS;
  const std::shared_ptr<Mark> begin = mark(captures, &error);
  if (error != CUDA_SUCCESS) return error;
  const std::shared_ptr<Mark> end = later.mark(captures, &error);
  if (error != CUDA_SUCCESS) return error;
  if (begin == nullptr || end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!begin->ticket.done() || !end->ticket.done()) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return CUDA_SUCCESS;
}

}  // namespace commensal::simulated_cuda
