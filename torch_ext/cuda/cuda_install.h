// SPDX-License-Identifier: Apache-2.0
// Puts an allocator of ours over PyTorch's CUDA allocator, or says why not.
#pragma once

#include <string>

namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator;
}

namespace commensal {

/// What is known of PyTorch's CUDA allocator before ours takes its place.
struct CudaAllocatorFacts {
  bool present;      ///< PyTorch has a CUDA allocator at all
  bool initialized;  ///< it has served or may serve blocks already
  std::string name;  ///< "native", "cudaMallocAsync", "pluggable"
};

/// Returns an empty text, or one sentence that says why ours cannot take its place.
[[nodiscard]] std::string cuda_install_complaint(const CudaAllocatorFacts& current);

/// The same of PyTorch's allocator as it is now; empty, too, where ours has taken its place.
[[nodiscard]] std::string cuda_install_problem();

/// Makes what is to stand over PyTorch's own allocator.
using MakeCudaAllocator = c10::cuda::CUDACachingAllocator::
    CUDAAllocator* (*)(c10::cuda::CUDACachingAllocator::CUDAAllocator& native);

/// Makes what `make` returns PyTorch's CUDA allocator; null: a ForwardingAllocator. Once a process,
/// before CUDA starts; the object is never destroyed, for tensors are freed after exit handlers.
/// @return an empty text, or why nothing has changed.
[[nodiscard]] std::string install_cuda_allocator(MakeCudaAllocator make = nullptr);

/// Puts what `make` returns over PyTorch's own allocator also after CUDA has started: only what
/// forwards every call and leaves each block its deleter. Not over another backend's.
/// @return an empty text, or why nothing has changed.
[[nodiscard]] std::string watch_cuda_allocator(MakeCudaAllocator make);

/// Tells whether install_cuda_allocator() has succeeded and nobody has replaced ours since.
[[nodiscard]] bool cuda_allocator_is_ours() noexcept;

}  // namespace commensal
