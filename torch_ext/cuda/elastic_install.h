// SPDX-License-Identifier: Apache-2.0
// Puts elastic memory under PyTorch's CUDA tensors.
#pragma once

#include <string>

#include "torch_ext/cuda/cuda_memory_provider.h"

namespace commensal {

class NativeListener;

/// Makes an ElasticCudaAllocator PyTorch's CUDA allocator; each device gets memory of its own with
/// these options when it is used first. As `install_cuda_allocator`, and at most once a process.
/// @return an empty text, or why nothing has changed.
[[nodiscard]] std::string install_elastic_cuda_allocator(
    const CudaMemoryProvider::Options& options);
/// The same over memory of the caller's, which must live for ever.
[[nodiscard]] std::string install_elastic_cuda_allocator(MemoryProvider& memory);

/// Watches PyTorch's own allocator, which serves everything from now on, for a listener, which must
/// live for ever. At any time, at most once a process.
/// @return an empty text, or why nothing has changed.
[[nodiscard]] std::string watch_native_allocator(NativeListener& listener);

/// Gives back what PyTorch's allocator caches beside the elastic memory, and what the callbacks of
/// others free. Does nothing during a capture.
void give_back_delegates_cache();

/// Tells whether a graph may be captured now: then nothing of ours calls CUDA.
[[nodiscard]] bool cuda_capturing();

/// The memory of a device, or null: it is not ours.
[[nodiscard]] ElasticAllocator* elastic_cuda_memory(int device);

}  // namespace commensal
