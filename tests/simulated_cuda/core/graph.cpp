// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/graph.h"

#include <sstream>
#include <utility>

namespace commensal::simulated_cuda {

Node* Graph::add(CUgraphNodeType type, std::string label, Body body, std::vector<Node*> after,
                 Launched launched) {
  nodes.push_back(std::make_unique<Node>(
      Node{type, std::move(label), std::move(body), std::move(after), std::move(launched)}));
  return nodes.back().get();
}

std::string Graph::dot() const {
  std::ostringstream out;
  out << "digraph simulated {\n";
  for (const auto& node : nodes) {
    out << "  \"" << node.get() << "\" [label=\"" << node->label << "\"];\n";
    for (const Node* before : node->after) {
      out << "  \"" << before << "\" -> \"" << node.get() << "\";\n";
    }
  }
  out << "}\n";
  return out.str();
}

Executable::Executable(const Graph& graph) {
  bodies_.reserve(graph.nodes.size());
  for (const auto& node : graph.nodes) {
    bodies_.push_back(node->body);
    if (node->launched) launched_.push_back(node->launched);
  }
}

CUresult Executable::run(Execution& execution) {
  {
    const MutexLock lock(mutex_);  // the launch has told its nodes
  }
  for (const Body& body : bodies_) {
    if (!body) continue;
    if (const CUresult result = body(execution); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void Executable::launch(const std::function<Ticket(Ticket)>& push) {
  const MutexLock lock(mutex_);
  last_ = push(std::move(last_));
  for (const Launched& launched : launched_) launched(last_);
}

}  // namespace commensal::simulated_cuda
