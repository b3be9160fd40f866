// SPDX-License-Identifier: Apache-2.0
// Markers between pieces of work, in streams and in captures.
#pragma once

#include <cuda.h>

#include <memory>
#include <optional>

#include "allocator/base/mutex.h"
#include "tests/simulated_cuda/core/capture.h"
#include "tests/simulated_cuda/core/stream.h"

namespace commensal::simulated_cuda {

/// An event. Any member may be called from any thread.
class Event : public std::enable_shared_from_this<Event> {
 public:
  /// When the work before the record was done; read only after its ticket is done.
  struct Mark {
    Ticket ticket;
    Clock::time_point time{};
  };

  Event(int device, unsigned flags) : device_(device), flags_(flags) {}

  [[nodiscard]] int device() const { return device_; }

  /// Remembers the point where the stream stands, in its queue or in its capture.
  /// @param external  only in a capture: becomes a node, and each launch records the event.
  CUresult record(Captures& captures, const std::shared_ptr<Stream>& stream, bool external,
                  const std::function<Ticket(Body)>& push);

  /// Lets the stream's next work wait for what was recorded last; nothing recorded: no wait.
  /// @param external  only in a capture: becomes a node, and each launch waits.
  CUresult wait_in(Captures& captures, const std::shared_ptr<Stream>& stream, bool external,
                   const std::function<Ticket(Ticket)>& push);

  CUresult query(Captures& captures);
  CUresult synchronize(Captures& captures);

  /// @param milliseconds  time from this event to `later`.
  CUresult elapsed(Captures& captures, Event& later, float* milliseconds);

 private:
  CUresult record_external(Captures& captures, const std::shared_ptr<Stream>& stream);
  CUresult wait_external(Captures& captures, const std::shared_ptr<Stream>& stream);
  Ticket recorded();

  /// The latest record outside captures, or an error if it was made inside one.
  std::shared_ptr<Mark> mark(Captures& captures, CUresult* error);

  const int device_;
  const unsigned flags_;
  Mutex mutex_;
  std::shared_ptr<Mark> mark_ COMMENSAL_GUARDED_BY(mutex_);
  std::optional<CapturedPoint> captured_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal::simulated_cuda
