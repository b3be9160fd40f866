// SPDX-License-Identifier: Apache-2.0
// Streams, events, captures and graphs as driver and runtime API both offer them.
#pragma once

#include <cuda.h>

#include "tests/simulated_cuda/core/process.h"

namespace commensal::simulated_cuda {

// Each answers the driver function that its name resembles; contexts are checked by the caller.
CUresult create_stream(CUstream* handle, unsigned flags, int priority);
CUresult destroy_stream(CUstream handle);
CUresult query_stream(CUstream handle);
CUresult synchronize_stream(CUstream handle);
CUresult launch_host_function(CUstream handle, CUhostFn function, void* data);
CUresult add_callback(CUstream handle, CUstreamCallback callback, void* data);

CUresult create_event(CUevent* handle, unsigned flags);
CUresult destroy_event(CUevent handle);
CUresult record_event(CUevent handle, CUstream stream, unsigned flags);
/// Captures "all the activities of the context at the time of this call".
CUresult record_event_of_context(Context& context, CUevent handle);
CUresult wait_event(CUstream stream, CUevent handle, unsigned flags);
CUresult query_event(CUevent handle);
CUresult synchronize_event(CUevent handle);
CUresult elapsed_time(float* milliseconds, CUevent begin, CUevent end);

CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode);
CUresult end_capture(CUstream handle, CUgraph* graph);
CUresult is_capturing(CUstream handle, CUstreamCaptureStatus* status);

/// @param nodes  the driver's array, valid until the thread asks again.
CUresult capture_info(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** nodes, std::size_t* count);
CUresult exchange_capture_mode(CUstreamCaptureMode* mode);

CUresult create_graph(CUgraph* handle);
CUresult destroy_graph(CUgraph handle);
CUresult graph_nodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count);
CUresult node_dependencies(CUgraphNode node, CUgraphNode* nodes, std::size_t* count);
CUresult print_graph(CUgraph handle, const char* path);
CUresult instantiate_graph(CUgraphExec* executable, CUgraph handle);
CUresult destroy_executable(CUgraphExec executable);
CUresult launch_graph(CUgraphExec executable, CUstream stream);

}  // namespace commensal::simulated_cuda
