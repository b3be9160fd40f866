// SPDX-License-Identifier: Apache-2.0
// Runtime API: streams, events, host functions, capture, graphs.
#include "tests/simulated_cuda/core/stream_calls.h"
#include "tests/simulated_cuda/runtime/entry.h"

using namespace commensal::simulated_cuda;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  COMMENSAL_RUNTIME_CALL(kContext, stream);
  return runtime_result(create_stream(stream, CU_STREAM_DEFAULT, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  COMMENSAL_RUNTIME_CALL(kContext, stream, flags, priority);
  return runtime_result(create_stream(stream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, stream);
  return runtime_result(destroy_stream(stream));
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  COMMENSAL_RUNTIME_CALL(kContext, handle, priority);
  std::shared_ptr<Stream> stream;
  const CUresult error = Process::get().find_stream(handle, &stream);
  if (error == CUDA_SUCCESS) *priority = stream->priority();
  return runtime_result(error);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, stream);
  return runtime_result(query_stream(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, stream);
  return runtime_result(synchronize_stream(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, stream, event, flags);
  return runtime_result(wait_event(stream, event, flags));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  COMMENSAL_RUNTIME_CALL(kContext, stream, data);
  return runtime_result(launch_host_function(stream, function, data));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, stream, data, flags);
  if (flags != 0) return runtime_result(CUDA_ERROR_INVALID_VALUE);
  return runtime_result(add_callback(stream, reinterpret_cast<CUstreamCallback>(callback), data));
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  COMMENSAL_RUNTIME_CALL(kContext, event);
  return runtime_result(create_event(event, CU_EVENT_DEFAULT));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, event, flags);
  return runtime_result(create_event(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  COMMENSAL_RUNTIME_CALL(kContext, event);
  return runtime_result(destroy_event(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, event, stream);
  return runtime_result(record_event(event, stream, 0));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, event, stream, flags);
  return runtime_result(record_event(event, stream, flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  COMMENSAL_RUNTIME_CALL(kContext, event);
  return runtime_result(query_event(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  COMMENSAL_RUNTIME_CALL(kContext, event);
  return runtime_result(synchronize_event(event));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  COMMENSAL_RUNTIME_CALL(kContext, milliseconds, begin, end);
  return runtime_result(elapsed_time(milliseconds, begin, end));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  COMMENSAL_RUNTIME_CALL(kContext, stream, mode);
  return runtime_result(begin_capture(stream, static_cast<CUstreamCaptureMode>(mode)));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  COMMENSAL_RUNTIME_CALL(kContext, stream, graph);
  return runtime_result(end_capture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  COMMENSAL_RUNTIME_CALL(kContext, stream, status);
  return runtime_result(is_capturing(stream, reinterpret_cast<CUstreamCaptureStatus*>(status)));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     std::size_t* count) {
  COMMENSAL_RUNTIME_CALL(kContext, stream, status);
  if (edges != nullptr) *edges = nullptr;
  cuuint64_t number = 0;
  const CUresult result = capture_info(stream, reinterpret_cast<CUstreamCaptureStatus*>(status),
                                       &number, graph, nodes, count);
  if (id != nullptr) *id = number;
  return runtime_result(result);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  COMMENSAL_RUNTIME_CALL(kInit, mode);
  return runtime_result(exchange_capture_mode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  COMMENSAL_RUNTIME_CALL(kInit, graph, nodes, count);
  return runtime_result(graph_nodes(graph, nodes, count));
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                         cudaGraphEdgeData* edges, std::size_t* count) {
  COMMENSAL_RUNTIME_CALL(kInit, node, nodes, edges, count);
  if (edges != nullptr) return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
  return runtime_result(node_dependencies(node, nodes, count));
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kInit, graph, path, flags);
  return runtime_result(print_graph(graph, path));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  COMMENSAL_RUNTIME_CALL(kInit, graph);
  return runtime_result(destroy_graph(graph));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  COMMENSAL_RUNTIME_CALL(kInit, executable, graph, flags);
  return runtime_result(instantiate_graph(executable, graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  COMMENSAL_RUNTIME_CALL(kInit, executable);
  return runtime_result(destroy_executable(executable));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, executable, stream);
  return runtime_result(launch_graph(executable, stream));
}

// Sharing with other processes by the runtime's own handles is not simulated.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  COMMENSAL_RUNTIME_CALL(kContext, handle, address);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, address, flags);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  COMMENSAL_RUNTIME_CALL(kContext, address);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  COMMENSAL_RUNTIME_CALL(kContext, handle, event);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t) {
  COMMENSAL_RUNTIME_CALL(kContext, event);
  return runtime_result(CUDA_ERROR_NOT_SUPPORTED);
}
