// SPDX-License-Identifier: Apache-2.0
// The C functions of libcommensal_torch_cuda, which Python loads by ctypes where PyTorch has CUDA.
#include "torch_ext/cuda/cuda_adaptor.h"

#include <exception>
#include <string>
#include <utility>

#include "torch_ext/cuda/cuda_install.h"
#include "torch_ext/cuda/elastic_cuda_allocator.h"

#define COMMENSAL_EXPORT __attribute__((visibility("default")))

namespace {

thread_local std::string kept;  // until the thread's next call

const char* keep(std::string complaint) {
  kept = std::move(complaint);
  return kept.empty() ? nullptr : kept.c_str();
}

}  // namespace

COMMENSAL_EXPORT const char* commensal_torch_cuda_install() {
  try {
    return keep(commensal::install_cuda_allocator());
  } catch (const std::exception& error) {
    return keep(error.what());
  }
}

COMMENSAL_EXPORT const char* commensal_torch_cuda_problem() {
  try {
    return keep(commensal::cuda_install_problem());
  } catch (const std::exception& error) {
    return keep(error.what());
  }
}

COMMENSAL_EXPORT int commensal_torch_cuda_is_installed() {
  return commensal::cuda_allocator_is_ours() ? 1 : 0;
}

COMMENSAL_EXPORT void commensal_torch_cuda_begin_trial() {
  if (auto* const allocator = commensal::ElasticCudaAllocator::instance()) allocator->begin_trial();
}

COMMENSAL_EXPORT void commensal_torch_cuda_end_trial() {
  if (auto* const allocator = commensal::ElasticCudaAllocator::instance()) allocator->end_trial();
}

COMMENSAL_EXPORT int commensal_torch_cuda_begin_sharing(const void* block) {
  const auto* const allocator = commensal::ElasticCudaAllocator::instance();
  if (allocator == nullptr || !allocator->may_leave(block)) return 0;
  commensal::ElasticCudaAllocator::serve_by_delegate(true);
  return 1;
}

COMMENSAL_EXPORT void commensal_torch_cuda_end_sharing() {
  commensal::ElasticCudaAllocator::serve_by_delegate(false);
}
