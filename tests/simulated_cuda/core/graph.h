// SPDX-License-Identifier: Apache-2.0
// Graphs of work: what a capture records and a launch repeats.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allocator/base/mutex.h"
#include "tests/simulated_cuda/core/stream.h"

namespace commensal::simulated_cuda {

/// What a node does when its graph is launched, before any of the work: gets the launch's ticket.
using Launched = std::function<void(const Ticket&)>;

/// One piece of recorded work; `CUgraphNode` is its address.
struct Node {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::string label;  ///< for pictures: the kernel's name, the bytes of a copy
  Body body;
  std::vector<Node*> after;
  Launched launched;
};

/// A graph under construction or finished; `CUgraph` is its address. Nodes are only added, by
/// the captures' lock; a node comes after all that it depends on.
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;

  Node* add(CUgraphNodeType type, std::string label, Body body, std::vector<Node*> after,
            Launched launched = {});

  /// The picture of the graph in the language of Graphviz.
  [[nodiscard]] std::string dot() const;
};

/// A graph that can be launched; `CUgraphExec` is its address.
class Executable {
 public:
  explicit Executable(const Graph& graph);

  /// Does the recorded work in an order that its dependencies allow.
  CUresult run(Execution& execution);

  /// Launches once more. Launches of one executable follow each other: `push` gets the ticket of
  /// the one before and returns its own.
  void launch(const std::function<Ticket(Ticket)>& push);

 private:
  std::vector<Body> bodies_;
  std::vector<Launched> launched_;
  Mutex mutex_;
  Ticket last_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal::simulated_cuda
