// SPDX-License-Identifier: Apache-2.0
// The part of a step in which memory is asked for.
#pragma once

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>

#include "allocator/lifetime.h"
#include "torch_ext/runtime/session.h"

namespace commensal {

/// Returns the part of a step in which the calling thread is. Until the first backward pass nothing
/// tells a forward pass from preparations.
inline Phase phase_now(const Session& session) {
  static std::atomic<bool> trains{false};
  if (session.in_optimizer()) return Phase::kOptimizer;
  const bool grad = c10::GradMode::is_enabled();
  if (!trains.load(std::memory_order_relaxed)) {
    if (grad || torch::autograd::get_current_node() == nullptr) return Phase::kUnknown;
    trains.store(true, std::memory_order_relaxed);
  }
  return grad ? Phase::kForward : Phase::kBackward;
}

}  // namespace commensal
