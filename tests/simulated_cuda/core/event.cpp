// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/event.h"

#include <utility>

namespace commensal::simulated_cuda {

CUresult Event::record(Captures& captures, const std::shared_ptr<Stream>& stream, bool external,
                       const std::function<Ticket(Body)>& push) {
  CUresult error = CUDA_SUCCESS;
  std::optional<CapturedPoint> point = captures.point(stream, &error);
  if (error != CUDA_SUCCESS) return error;
  if (external) return point ? record_external(captures, stream) : CUDA_ERROR_ILLEGAL_STATE;
  auto made = std::make_shared<Mark>();
  if (!point) {
    made->ticket = push([made](Execution&) {
      made->time = Clock::now();
      return CUDA_SUCCESS;
    });
  }
  const MutexLock lock(mutex_);
  captured_ = std::move(point);
  mark_ = captured_ ? nullptr : std::move(made);
  return CUDA_SUCCESS;
}

CUresult Event::record_external(Captures& captures, const std::shared_ptr<Stream>& stream) {
  // The event stands for the whole of the latest launch; its time is that of the node.
  const auto self = shared_from_this();
  const Body stamp = [self](Execution&) {
    const MutexLock lock(self->mutex_);
    if (self->mark_ != nullptr) self->mark_->time = Clock::now();
    return CUDA_SUCCESS;
  };
  const Launched launched = [self](const Ticket& launch) {
    const MutexLock lock(self->mutex_);
    self->captured_.reset();
    self->mark_ = std::make_shared<Mark>(Mark{launch});
  };
  return captures.record(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, "event record", stamp, launched)
      .value_or(CUDA_ERROR_ILLEGAL_STATE);
}

CUresult Event::wait_external(Captures& captures, const std::shared_ptr<Stream>& stream) {
  const Body wait = [self = shared_from_this()](Execution&) {
    self->recorded().wait();
    return CUDA_SUCCESS;
  };
  return captures.record(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, "event wait", wait)
      .value_or(CUDA_ERROR_ILLEGAL_STATE);
}

Ticket Event::recorded() {
  const MutexLock lock(mutex_);
  return mark_ == nullptr ? Ticket{} : mark_->ticket;
}

CUresult Event::wait_in(Captures& captures, const std::shared_ptr<Stream>& stream, bool external,
                        const std::function<Ticket(Ticket)>& push) {
  std::optional<CapturedPoint> captured;
  bool ever_recorded = false;
  {
    const MutexLock lock(mutex_);
    captured = captured_;
    ever_recorded = mark_ != nullptr;
  }
  if (captured) return captures.join(stream, *captured);
  CUresult error = CUDA_SUCCESS;
  const bool capturing = captures.point(stream, &error).has_value();
  if (error != CUDA_SUCCESS) return error;
  if (external) return capturing ? wait_external(captures, stream) : CUDA_ERROR_INVALID_VALUE;
  if (!ever_recorded) return CUDA_SUCCESS;
  if (capturing) {
    return captures.check_not_capturing(stream.get(), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  }
  if (Ticket ticket = recorded(); !ticket.done()) push(std::move(ticket));
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
