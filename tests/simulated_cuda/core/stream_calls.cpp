// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/stream_calls.h"

#include <algorithm>
#include <fstream>

#include "tests/simulated_cuda/core/device.h"
#include "tests/simulated_cuda/core/entry.h"

namespace commensal::simulated_cuda {
namespace {

constexpr unsigned kKnownEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

Captures& captures() { return Process::get().captures; }

CUresult find(CUstream handle, std::shared_ptr<Stream>* stream) {
  return Process::get().find_stream(handle, stream);
}

bool is_legacy(const std::shared_ptr<Stream>& stream) {
  return Process::get().contexts[static_cast<std::size_t>(stream->device())]->legacy() == stream;
}

Context& context_of(const std::shared_ptr<Stream>& stream) {
  return *Process::get().contexts[static_cast<std::size_t>(stream->device())];
}

/// A call that waits for or looks at a stream.
CUresult check_look(const std::shared_ptr<Stream>& stream) {
  COMMENSAL_RETURN_IF_REFUSED(
      captures().check_not_capturing(stream.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
  if (is_legacy(stream)) COMMENSAL_RETURN_IF_REFUSED(captures().check_legacy_stream());
  return captures().check_unsafe_call();
}

}  // namespace

CUresult create_stream(CUstream* handle, unsigned flags, int priority) {
  if (handle == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Process& process = Process::get();
  // Priorities outside the range are brought into it, as documented.
  const int meant = std::clamp(priority, kGreatestPriority, kLeastPriority);
  *handle = process.streams.add(process.current()->make_stream(flags, meant));
  return CUDA_SUCCESS;
}

CUresult destroy_stream(CUstream handle) {
  std::shared_ptr<Stream> stream = Process::get().streams.find(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &stream));  // not of a context that was destroyed
  (void)Process::get().streams.remove(handle);
  stream->close();  // what is queued is still done
  return CUDA_SUCCESS;
}

CUresult query_stream(CUstream handle) {
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &stream));
  COMMENSAL_RETURN_IF_REFUSED(check_look(stream));
  return stream->last().done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult synchronize_stream(CUstream handle) {
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &stream));
  COMMENSAL_RETURN_IF_REFUSED(check_look(stream));
  stream->last().wait();
  return Process::get().fate;
}

CUresult launch_host_function(CUstream handle, CUhostFn function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &stream));
  return Process::get().submit(stream, CU_GRAPH_NODE_TYPE_HOST, "host function",
                               [function, data](Execution&) {
                                 function(data);
                                 return CUDA_SUCCESS;
                               });
}

CUresult add_callback(CUstream handle, CUstreamCallback callback, void* data) {
  if (callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &stream));
  COMMENSAL_RETURN_IF_REFUSED(
      captures().check_not_capturing(stream.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
  return Process::get().submit(stream, CU_GRAPH_NODE_TYPE_HOST, "callback",
                               [handle, callback, data](Execution&) {
                                 callback(handle, CUDA_SUCCESS, data);
                                 return CUDA_SUCCESS;
                               });
}

CUresult create_event(CUevent* handle, unsigned flags) {
  if (handle == nullptr || (flags & ~kKnownEventFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) {
    return (flags & CU_EVENT_DISABLE_TIMING) == 0 ? CUDA_ERROR_INVALID_VALUE
                                                  : CUDA_ERROR_NOT_SUPPORTED;
  }
  Process& process = Process::get();
  *handle = process.events.add(std::make_shared<Event>(process.current()->device(), flags));
  return CUDA_SUCCESS;
}

CUresult destroy_event(CUevent handle) {
  return Process::get().events.remove(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult record_event(CUevent handle, CUstream stream_handle, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<Event> event = Process::get().events.find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(stream_handle, &stream));
  if (event->device() != stream->device()) return CUDA_ERROR_INVALID_HANDLE;
  if (is_legacy(stream)) COMMENSAL_RETURN_IF_REFUSED(captures().check_legacy_stream());
  return event->record(captures(), stream, (flags & CU_EVENT_RECORD_EXTERNAL) != 0, [&](Body body) {
    return context_of(stream).push(stream, {}, std::move(body));
  });
}

CUresult record_event_of_context(Context& context, CUevent handle) {
  const std::shared_ptr<Event> event = Process::get().events.find(handle);
  if (event == nullptr || event->device() != context.device()) return CUDA_ERROR_INVALID_HANDLE;
  COMMENSAL_RETURN_IF_REFUSED(
      captures().check_not_capturing(nullptr, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
  return event->record(captures(), context.marker(), false,
                       [&](Body body) { return context.push_after_all(std::move(body)); });
}

CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags) {
  if ((flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<Event> event = Process::get().events.find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(stream_handle, &stream));
  if (is_legacy(stream)) COMMENSAL_RETURN_IF_REFUSED(captures().check_legacy_stream());
  return event->wait_in(captures(), stream, (flags & CU_EVENT_WAIT_EXTERNAL) != 0,
                        [&](Ticket ticket) {
                          const auto nothing = [](Execution&) { return CUDA_SUCCESS; };
                          return context_of(stream).push(stream, {std::move(ticket)}, nothing);
                        });
}

CUresult query_event(CUevent handle) {
  const std::shared_ptr<Event> event = Process::get().events.find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = event->query(captures());
  if (result == CUDA_ERROR_CAPTURED_EVENT) return result;
  COMMENSAL_RETURN_IF_REFUSED(captures().check_unsafe_call());
  return result;
}

CUresult synchronize_event(CUevent handle) {
  const std::shared_ptr<Event> event = Process::get().events.find(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  COMMENSAL_RETURN_IF_REFUSED(captures().check_unsafe_call());
  COMMENSAL_RETURN_IF_REFUSED(event->synchronize(captures()));
  return Process::get().fate;
}

CUresult elapsed_time(float* milliseconds, CUevent begin, CUevent end) {
  Process& process = Process::get();
  const std::shared_ptr<Event> first = process.events.find(begin);
  const std::shared_ptr<Event> second = process.events.find(end);
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (first == nullptr || second == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return first->elapsed(captures(), *second, milliseconds);
}

CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode) {
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &stream));
  const bool known_mode = mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
                          mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
                          mode == CU_STREAM_CAPTURE_MODE_RELAXED;
  if (!known_mode) return CUDA_ERROR_INVALID_VALUE;
  if (is_legacy(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return captures().begin(stream, mode);
}

CUresult end_capture(CUstream handle, CUgraph* graph) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &stream));
  std::shared_ptr<Graph> made;
  COMMENSAL_RETURN_IF_REFUSED(captures().end(stream, &made));
  *graph = Process::get().graphs.add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult is_capturing(CUstream handle, CUstreamCaptureStatus* status) {
  return capture_info(handle, status, nullptr, nullptr, nullptr, nullptr);
}

CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** nodes, std::size_t* count) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(handle, &stream));
  // Asking alone invalidates nothing.
  if (is_legacy(stream) && captures().blocking_stream_captures()) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  CaptureInfo info = captures().info(stream);
  *status = info.status;
  if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  thread_local std::vector<Node*> answered;
  answered = std::move(info.after);
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(info.graph.get());
  if (nodes != nullptr) *nodes = reinterpret_cast<const CUgraphNode*>(answered.data());
  if (count != nullptr) *count = answered.size();
  return CUDA_SUCCESS;
}

CUresult exchange_capture_mode(CUstreamCaptureMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, Captures::thread_mode());
  return CUDA_SUCCESS;
}

CUresult create_graph(CUgraph* handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = Process::get().graphs.add(std::make_shared<Graph>());
  return CUDA_SUCCESS;
}

CUresult destroy_graph(CUgraph handle) {
  return Process::get().graphs.remove(handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult graph_nodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  const std::shared_ptr<Graph> graph = Process::get().graphs.find(handle);
  if (graph == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes == nullptr) {
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
  }
  for (std::size_t i = 0; i < *count; ++i) {
    nodes[i] =
        i < graph->nodes.size() ? reinterpret_cast<CUgraphNode>(graph->nodes[i].get()) : nullptr;
  }
  *count = std::min(*count, graph->nodes.size());
  return CUDA_SUCCESS;
}

CUresult node_dependencies(CUgraphNode node, CUgraphNode* nodes, std::size_t* count) {
  if (node == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& after = reinterpret_cast<const Node*>(node)->after;
  if (nodes != nullptr) {
    for (std::size_t i = 0; i < std::min(*count, after.size()); ++i) {
      nodes[i] = reinterpret_cast<CUgraphNode>(after[i]);
    }
  }
  *count = after.size();
  return CUDA_SUCCESS;
}

CUresult print_graph(CUgraph handle, const char* path) {
  const std::shared_ptr<Graph> graph = Process::get().graphs.find(handle);
  if (graph == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ofstream file{path};
  file << graph->dot();
  return file ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult instantiate_graph(CUgraphExec* executable, CUgraph handle) {
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Process& process = Process::get();
  const std::shared_ptr<Graph> graph = process.graphs.find(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *executable = process.executables.add(std::make_shared<Executable>(*graph));
  return CUDA_SUCCESS;
}

CUresult destroy_executable(CUgraphExec executable) {
  return Process::get().executables.remove(executable) == nullptr ? CUDA_ERROR_INVALID_VALUE
                                                                  : CUDA_SUCCESS;
}

CUresult launch_graph(CUgraphExec handle, CUstream stream_handle) {
  Process& process = Process::get();
  const std::shared_ptr<Executable> executable = process.executables.find(handle);
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(find(stream_handle, &stream));
  COMMENSAL_RETURN_IF_REFUSED(
      captures().check_not_capturing(stream.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
  const Body body = [executable](Execution& execution) { return executable->run(execution); };
  if (is_legacy(stream)) COMMENSAL_RETURN_IF_REFUSED(captures().check_legacy_stream());
  // The launch before this one of the same executable may be in another stream.
  executable->launch(
      [&](Ticket before) { return context_of(stream).push(stream, {std::move(before)}, body); });
  return CUDA_SUCCESS;
}

}  // namespace commensal::simulated_cuda
