// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime whose streams come past a mark when a test says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "torch_ext/cuda/cuda_calls.h"

namespace commensal {

class FakeCudaCalls final : public CudaCalls {
 public:
  int device = 0;                  ///< current
  cudaStream_t stream = nullptr;   ///< current
  std::size_t free = 1ULL << 30U;  ///< bytes of every device
  std::size_t total = 1ULL << 30U;
  int calls = 0;  ///< that reach the runtime and would break a capture
  int waits = 0;  ///< for a mark that was not reached
  int copies = 0;
  bool captured = false;  ///< every stream
  bool broken = false;    ///< marking fails
  Duration time{};        ///< of the device

  /// Even, as a pointer: PyTorch marks others by the lowest bit.
  static cudaStream_t handle(std::uintptr_t number) {
    return reinterpret_cast<cudaStream_t>(number * 4096);
  }
  /// Everything in a stream is done.
  void pass(cudaStream_t past) {
    for (Mark& mark : marks_) {
      if (mark.reached || mark.stream != past) continue;
      mark.reached = true;
      mark.when = time;
    }
  }
  /// Marks that were made and not forgotten.
  [[nodiscard]] std::size_t kept() const {
    std::size_t count = 0;
    for (const Mark& mark : marks_) count += mark.forgotten ? 0 : 1;
    return count;
  }

  int current_device() override { return device; }
  cudaStream_t current_stream(int /*device*/) override { return stream; }
  bool captures(cudaStream_t /*stream*/) noexcept override { return captured; }
  std::pair<std::size_t, std::size_t> memory_info(int /*device*/) override { return {free, total}; }
  cudaEvent_t mark(int /*device*/, cudaStream_t marked) override {
    ++calls;
    if (broken) throw std::runtime_error("the runtime is broken");
    marks_.push_back({marked});
    return reinterpret_cast<cudaEvent_t>(marks_.size());
  }
  bool reached(cudaEvent_t mark) override {
    ++calls;
    return at(mark).reached;
  }
  void wait(cudaEvent_t mark) override {
    ++calls;
    waits += at(mark).reached ? 0 : 1;
    at(mark).reached = true;
  }
  cudaEvent_t make_timed(int /*device*/) override {
    ++calls;
    if (broken) throw std::runtime_error("the runtime is broken");
    marks_.push_back({nullptr, true});
    return reinterpret_cast<cudaEvent_t>(marks_.size());
  }
  void record(cudaEvent_t event, int /*device*/, cudaStream_t into) override {
    ++calls;
    if (broken) throw std::runtime_error("the runtime is broken");
    Mark& mark = at(event);
    mark.stream = into;
    mark.reached = false;
  }
  Duration between(cudaEvent_t from, cudaEvent_t to) override {
    ++calls;
    if (!at(from).reached || !at(to).reached) throw std::runtime_error("not reached");
    return at(to).when - at(from).when;
  }
  cudaError_t copy(void* /*dest*/, int /*dest_device*/, const void* /*src*/, int /*src_device*/,
                   std::size_t /*count*/, cudaStream_t /*stream*/,
                   bool /*peer_access*/) noexcept override {
    ++copies;
    return cudaSuccess;
  }
  void forget(cudaEvent_t mark) noexcept override { at(mark).forgotten = true; }

 private:
  struct Mark {
    cudaStream_t stream = nullptr;
    bool reached = false;
    bool forgotten = false;
    Duration when{};  // reached
  };
  Mark& at(cudaEvent_t mark) { return marks_[reinterpret_cast<std::uintptr_t>(mark) - 1]; }
  std::vector<Mark> marks_;
};

}  // namespace commensal
