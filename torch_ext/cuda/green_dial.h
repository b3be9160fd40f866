// SPDX-License-Identifier: Apache-2.0
// Moves a training thread's work to a part of a GPU's multiprocessors, at the end of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <string>

#include "torch_ext/cuda/green_streams.h"
#include "torch_ext/runtime/multiprocessor_dial.h"

namespace commensal {

/// The stream into which the calling thread's ops of a device go, null: the default one. What is
/// not noexcept throws what PyTorch throws.
class CurrentStream {
 public:
  virtual ~CurrentStream() = default;
  [[nodiscard]] virtual cudaStream_t get(int device) = 0;
  virtual void set(int device, cudaStream_t stream) = 0;
  /// Lets what comes in each of two streams wait for what is in the other one.
  virtual void join(int device, cudaStream_t one, cudaStream_t other) = 0;
};

/// PyTorch's.
[[nodiscard]] CurrentStream& torch_current_stream();

/// The thread's current stream becomes one of a green context. PyTorch follows a current stream
/// everywhere: backward nodes run in the stream of their forward op, on whichever thread. The
/// default stream and the green one wait for each other at the end of each step.
///
/// A thread whose program has chosen a stream of its own is left alone. What fails is said and not
/// tried again with the same share; the thread is then back on the default stream. Nothing is asked
/// of the driver before the first `follow` with a share, and while a graph may be captured.
/// Thread safety: one thread at a time.
class GreenDial final : public MultiprocessorDial {
 public:
  /// @param streams    not owned; must outlive this.
  /// @param capturing  whether a graph may be captured now.
  GreenDial(int device, CurrentStream& streams, bool (*capturing)());

  std::optional<MultiprocessorState> follow(std::optional<double> share) noexcept override;

 private:
  MultiprocessorState turn(std::optional<double> share);
  [[nodiscard]] MultiprocessorState refused(double share, std::string reason) noexcept;
  void go_to(cudaStream_t stream);

  const int device_;
  CurrentStream& streams_;
  bool (*const capturing_)();
  std::unique_ptr<GreenStreams> green_;  // null: no share was asked for yet
  std::optional<double> failed_share_;
  MultiprocessorState failed_;
};

}  // namespace commensal
