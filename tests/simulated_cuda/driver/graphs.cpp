// SPDX-License-Identifier: Apache-2.0
// Driver API: stream capture and graphs.
#include "tests/simulated_cuda/core/entry.h"
#include "tests/simulated_cuda/core/stream_calls.h"

using namespace commensal::simulated_cuda;

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  COMMENSAL_DRIVER_CALL(kContext, stream, mode);
  return begin_capture(stream, mode);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  COMMENSAL_DRIVER_CALL(kContext, stream, graph);
  return end_capture(stream, graph);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  COMMENSAL_DRIVER_CALL(kContext, stream, status);
  return is_capturing(stream, status);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                CUgraph* graph, const CUgraphNode** nodes,
                                const CUgraphEdgeData** edges, std::size_t* count) {
  COMMENSAL_DRIVER_CALL(kContext, stream, status);
  if (edges != nullptr) *edges = nullptr;
  return capture_info(stream, status, id, graph, nodes, count);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  COMMENSAL_DRIVER_CALL(kInit, mode);
  return exchange_capture_mode(mode);
}

CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kInit, graph, flags);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return create_graph(graph);
}

CUresult cuGraphDestroy(CUgraph graph) {
  COMMENSAL_DRIVER_CALL(kInit, graph);
  return destroy_graph(graph);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  COMMENSAL_DRIVER_CALL(kInit, graph, nodes, count);
  return graph_nodes(graph, nodes, count);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  COMMENSAL_DRIVER_CALL(kInit, node, type);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = reinterpret_cast<const Node*>(node)->type;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* edges,
                                    std::size_t* count) {
  COMMENSAL_DRIVER_CALL(kInit, node, nodes, edges, count);
  if (edges != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return node_dependencies(node, nodes, count);
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned flags) {
  COMMENSAL_DRIVER_CALL(kInit, graph, path, flags);
  return print_graph(graph, path);
}

CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  COMMENSAL_DRIVER_CALL(kInit, executable, graph, flags);
  return instantiate_graph(executable, graph);
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  COMMENSAL_DRIVER_CALL(kInit, executable);
  return destroy_executable(executable);
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  COMMENSAL_DRIVER_CALL(kContext, executable, stream);
  return launch_graph(executable, stream);
}
