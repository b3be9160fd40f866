// SPDX-License-Identifier: Apache-2.0
// Stream capture: which streams record instead of run, and what must not happen meanwhile.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "allocator/base/mutex.h"
#include "tests/simulated_cuda/core/graph.h"

namespace commensal::simulated_cuda {

/// One sequence from `cuStreamBeginCapture` to `cuStreamEndCapture`.
struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  std::weak_ptr<Stream> origin;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  bool invalid = false;
  bool ended = false;
};

/// A point in a capture, as an event recorded there remembers it.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  std::vector<Node*> after;
};

struct CaptureInfo {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  std::uint64_t id = 0;
  std::shared_ptr<Graph> graph;
  std::vector<Node*> after;
};

/// All captures of the process and their rules. A call that breaks a rule invalidates the
/// captures that forbid it, as on the card. Any member may be called from any thread.
class Captures {
 public:
  CUresult begin(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode);

  /// @param graph  set only if the result is CUDA_SUCCESS.
  CUresult end(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph);

  [[nodiscard]] CaptureInfo info(const std::shared_ptr<Stream>& stream);

  /// Records work if the stream is capturing.
  /// @return nothing if it is not; else the result of the call.
  std::optional<CUresult> record(const std::shared_ptr<Stream>& stream, CUgraphNodeType type,
                                 std::string label, const Body& body,
                                 const Launched& launched = {});

  /// Where a capturing stream stands, nothing if it is not capturing.
  [[nodiscard]] std::optional<CapturedPoint> point(const std::shared_ptr<Stream>& stream,
                                                   CUresult* error);

  /// Makes the stream's next work depend on a captured point; joins it to that capture.
  CUresult join(const std::shared_ptr<Stream>& stream, const CapturedPoint& point);

  /// Asks whether the calling thread may make a call that captures do not observe.
  /// @return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if not.
  CUresult check_unsafe_call();

  /// Asks whether work of the legacy stream may begin: not while a blocking stream captures.
  CUresult check_legacy_stream();

  /// Whether a blocking stream captures.
  [[nodiscard]] bool blocking_stream_captures();

  /// Refuses a call that conflicts with the stream's capture, or with any capture (null).
  CUresult check_not_capturing(const Stream* stream, CUresult error);

  /// Ends with an error what the point belongs to.
  void invalidate(const CapturedPoint& point);

  [[nodiscard]] bool any() const { return running_ > 0; }

  /// The calling thread's interaction mode.
  static CUstreamCaptureMode& thread_mode();

 private:
  struct Member {
    std::shared_ptr<Capture> capture;
    std::shared_ptr<Stream> stream;
    std::vector<Node*> after;
  };

  Member* find(const Stream* stream) COMMENSAL_REQUIRES(mutex_);
  bool unjoined(const Capture& capture, const Stream& origin) COMMENSAL_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<const Stream*, Member> members_ COMMENSAL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Capture>> captures_ COMMENSAL_GUARDED_BY(mutex_);
  std::atomic<int> running_{0};
  std::uint64_t next_id_ COMMENSAL_GUARDED_BY(mutex_) = 1;
};

}  // namespace commensal::simulated_cuda
