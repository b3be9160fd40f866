// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/green_context.h"

#include <algorithm>
#include <cstring>

namespace commensal::simulated_cuda {
namespace {

constexpr std::uint64_t kStamp = 0x53494d5f534d5fULL;

enum class Origin : std::uint32_t {
  kWhole = 1,  // a device's or a green context's: may be split
  kPart,       // a group of a split
  kRemaining   // what a split left
};

/// What the driver keeps in the part of a resource that programs must not touch.
struct Hidden {
  std::uint64_t stamp = kStamp;
  std::uint64_t split = 0;  // equal for the groups of one split
  Origin origin = Origin::kWhole;
  int device = 0;
  unsigned multiprocessors = 0;
};
static_assert(sizeof(Hidden) <= sizeof(CUdevResource::_internal_padding));

CUdevResource make(const Hidden& hidden) {
  CUdevResource made{};
  made.type = CU_DEV_RESOURCE_TYPE_SM;
  std::memcpy(made._internal_padding, &hidden, sizeof hidden);
  made.sm.smCount = hidden.multiprocessors;
  made.sm.minSmPartitionSize = kLeastPart;
  made.sm.smCoscheduledAlignment = kPartAlignment;
  return made;
}

/// Reads a resource; false: a program made it, or wrote to it.
bool read(const CUdevResource& resource, Hidden* hidden) {
  std::memcpy(hidden, resource._internal_padding, sizeof *hidden);
  return resource.type == CU_DEV_RESOURCE_TYPE_SM && hidden->stamp == kStamp &&
         resource.sm.smCount == hidden->multiprocessors;
}

}  // namespace

GreenContext::GreenContext(Context& of, ResourceSet with)
    : primary(of),
      resources(with),
      part(std::make_shared<GreenPart>(with.multiprocessors)),
      converted(of, part) {}

GreenContexts& GreenContexts::get() {
  static GreenContexts* const all = new GreenContexts;  // streams may work until the process ends
  return *all;
}

GreenContext& GreenContexts::add(Context& primary, const ResourceSet& resources) {
  auto made = std::make_unique<GreenContext>(primary, resources);
  made->converted.retained = 1;
  const MutexLock lock(mutex_);
  contexts_.push_back(std::move(made));
  return *contexts_.back();
}

GreenContext* GreenContexts::find(CUgreenCtx handle) {
  const MutexLock lock(mutex_);
  for (const auto& made : contexts_) {
    if (reinterpret_cast<CUgreenCtx>(made.get()) == handle) return made.get();
  }
  return nullptr;
}

GreenContext* GreenContexts::of(const Context* context) {
  const MutexLock lock(mutex_);
  for (const auto& made : contexts_) {
    if (&made->converted == context) return made.get();
  }
  return nullptr;
}

GreenContext* GreenContexts::of(const Stream& stream) {
  const MutexLock lock(mutex_);
  for (const auto& made : contexts_) {
    if (made->part == stream.part()) return made.get();
  }
  return nullptr;
}

CUdevResource whole_resource(int device, unsigned multiprocessors) {
  return make({.device = device, .multiprocessors = multiprocessors});
}

CUresult split_resource(CUdevResource* parts, unsigned* count, const CUdevResource& whole,
                        CUdevResource* remaining, unsigned flags, unsigned least) {
  Hidden hidden;
  if (whole.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (!read(whole, &hidden)) return CUDA_ERROR_INVALID_VALUE;
  if (least > hidden.multiprocessors) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (hidden.origin != Origin::kWhole) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;  // other sizes of parts: not simulated
  const unsigned wanted = std::max(least, kLeastPart);
  const unsigned each = (wanted + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  const unsigned possible = hidden.multiprocessors / each;
  if (possible == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (parts == nullptr) {
    *count = possible;
    return CUDA_SUCCESS;
  }
  if (*count == 0) return CUDA_ERROR_INVALID_VALUE;
  *count = std::min(*count, possible);
  static std::atomic<std::uint64_t> next_split{1};
  const std::uint64_t split = next_split++;
  for (unsigned i = 0; i < *count; ++i) {
    parts[i] = make({.split = split,
                     .origin = Origin::kPart,
                     .device = hidden.device,
                     .multiprocessors = each});
  }
  if (remaining != nullptr) {
    const unsigned left = hidden.multiprocessors - *count * each;
    *remaining = make({.split = split,
                       .origin = Origin::kRemaining,
                       .device = hidden.device,
                       .multiprocessors = left});
    if (left == 0) remaining->type = CU_DEV_RESOURCE_TYPE_INVALID;
  }
  return CUDA_SUCCESS;
}

CUresult collect_resources(const CUdevResource* parts, unsigned count, ResourceSet* set) {
  if (parts == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  Hidden first;
  if (parts->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (!read(*parts, &first)) return CUDA_ERROR_INVALID_VALUE;
  *set = {first.device, 0};
  for (unsigned i = 0; i < count; ++i) {
    Hidden hidden;
    if (parts[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (!read(parts[i], &hidden)) return CUDA_ERROR_INVALID_VALUE;
    // Several of one type: groups of the same split.
    if (count > 1 && (hidden.split != first.split || hidden.origin == Origin::kWhole)) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    set->multiprocessors += hidden.multiprocessors;
  }
  return CUDA_SUCCESS;
}

}  // namespace commensal::simulated_cuda
