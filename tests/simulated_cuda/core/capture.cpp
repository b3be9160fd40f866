// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/capture.h"

#include <algorithm>
#include <set>
#include <utility>

namespace commensal::simulated_cuda {

CUstreamCaptureMode& Captures::thread_mode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

Captures::Member* Captures::find(const Stream* stream) {
  if (running_ == 0) return nullptr;
  const auto found = members_.find(stream);
  return found == members_.end() ? nullptr : &found->second;
}

CUresult Captures::begin(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode) {
  const MutexLock lock(mutex_);
  if (find(stream.get()) != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = next_id_++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  captures_.push_back(capture);
  members_[stream.get()] = {std::move(capture), stream, {}};
  ++running_;
  return CUDA_SUCCESS;
}

bool Captures::unjoined(const Capture& capture, const Stream& origin) {
  // Everything that was recorded must come before where the origin stands.
  std::set<const Node*> joined;
  std::vector<const Node*> open;
  for (const Node* node : find(&origin)->after) open.push_back(node);
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (joined.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return joined.size() != capture.graph->nodes.size();
}

CUresult Captures::end(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>* graph) {
  const MutexLock lock(mutex_);
  Member* member = find(stream.get());
  if (member == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  const std::shared_ptr<Capture> capture = member->capture;
  if (capture->origin.lock() != stream) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  const bool bound = capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  if (bound && capture->thread != std::this_thread::get_id()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->invalid) {
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (unjoined(*capture, *stream)) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  } else {
    *graph = capture->graph;
  }
  capture->ended = true;
  std::erase_if(members_, [&](const auto& item) { return item.second.capture == capture; });
  std::erase(captures_, capture);
  --running_;
  return result;
}

CaptureInfo Captures::info(const std::shared_ptr<Stream>& stream) {
  const MutexLock lock(mutex_);
  const Member* member = find(stream.get());
  if (member == nullptr) return {};
  const Capture& capture = *member->capture;
  const auto status =
      capture.invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return {status, capture.id, capture.graph, member->after};
}

std::optional<CUresult> Captures::record(const std::shared_ptr<Stream>& stream,
                                         CUgraphNodeType type, std::string label, const Body& body,
                                         const Launched& launched) {
  if (running_ == 0) return std::nullopt;
  const MutexLock lock(mutex_);
  Member* member = find(stream.get());
  if (member == nullptr) return std::nullopt;
  if (member->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Node* node = member->capture->graph->add(type, std::move(label), body, member->after, launched);
  member->after = {node};
  return CUDA_SUCCESS;
}

std::optional<CapturedPoint> Captures::point(const std::shared_ptr<Stream>& stream,
                                             CUresult* error) {
  *error = CUDA_SUCCESS;
  const MutexLock lock(mutex_);
  const Member* member = find(stream.get());
  if (member == nullptr) return std::nullopt;
  if (member->capture->invalid) *error = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return CapturedPoint{member->capture, member->after};
}

CUresult Captures::join(const std::shared_ptr<Stream>& stream, const CapturedPoint& point) {
  const MutexLock lock(mutex_);
  if (point.capture->ended) return CUDA_ERROR_CAPTURED_EVENT;
  if (point.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Member* member = find(stream.get());
  if (member == nullptr) {
    members_[stream.get()] = {point.capture, stream, point.after};
    return CUDA_SUCCESS;
  }
  if (member->capture != point.capture) {
    member->capture->invalid = true;
    point.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  for (Node* node : point.after) {
    if (std::ranges::find(member->after, node) == member->after.end()) {
      member->after.push_back(node);
    }
  }
  return CUDA_SUCCESS;
}

CUresult Captures::check_unsafe_call() {
  if (running_ == 0 || thread_mode() == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const MutexLock lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : captures_) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbids = own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                             : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                   thread_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) continue;
    capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::check_legacy_stream() {
  if (running_ == 0) return CUDA_SUCCESS;
  const MutexLock lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  for (auto& [stream, member] : members_) {
    if (!stream->blocking()) continue;
    member.capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

bool Captures::blocking_stream_captures() {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(members_, [](const auto& item) { return item.first->blocking(); });
}

CUresult Captures::check_not_capturing(const Stream* stream, CUresult error) {
  if (running_ == 0) return CUDA_SUCCESS;
  const MutexLock lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  for (auto& [member_stream, member] : members_) {
    if (stream != nullptr && stream != member_stream) continue;
    member.capture->invalid = true;
    result = error;
  }
  return result;
}

void Captures::invalidate(const CapturedPoint& point) {
  const MutexLock lock(mutex_);
  point.capture->invalid = true;
}

}  // namespace commensal::simulated_cuda
