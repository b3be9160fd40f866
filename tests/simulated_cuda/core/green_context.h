// SPDX-License-Identifier: Apache-2.0
// Parts of a device's multiprocessors, and contexts whose streams work on such a part.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/base/mutex.h"
#include "tests/simulated_cuda/core/process.h"

namespace commensal::simulated_cuda {

/// Sizes of parts on devices of compute capability 9.0.
constexpr unsigned kLeastPart = 8;
constexpr unsigned kPartAlignment = 8;

/// What a `CUdevResourceDesc` stands for.
struct ResourceSet {
  int device = 0;
  unsigned multiprocessors = 0;
};

/// A context on a part of its device, which is retained as long as it lives.
struct GreenContext {
  GreenContext(Context& of, ResourceSet with);

  Context& primary;
  const ResourceSet resources;
  const std::shared_ptr<GreenPart> part;
  Context converted;  ///< what `cuCtxFromGreenCtx` gives: never current by itself
};

/// All green contexts of the process. One that was destroyed stays, because its streams may still
/// be asked for. Any member may be called from any thread.
class GreenContexts {
 public:
  static GreenContexts& get();

  GreenContext& add(Context& primary, const ResourceSet& resources);
  /// Null for a handle that was never given out; one that was destroyed has `part->gone`.
  [[nodiscard]] GreenContext* find(CUgreenCtx handle);
  /// The one whose converted context this is; null: a primary one's.
  [[nodiscard]] GreenContext* of(const Context* context);
  /// The one to which a stream belongs; null: a primary context's.
  [[nodiscard]] GreenContext* of(const Stream& stream);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<GreenContext>> contexts_ COMMENSAL_GUARDED_BY(mutex_);
};

/// The resource of a whole device, or of the green context that has a part of it.
[[nodiscard]] CUdevResource whole_resource(int device, unsigned multiprocessors);
/// Splits; see `cuDevSmResourceSplitByCount`.
CUresult split_resource(CUdevResource* parts, unsigned* count, const CUdevResource& whole,
                        CUdevResource* remaining, unsigned flags, unsigned least);
/// Checks and adds up what a descriptor is to be made of.
CUresult collect_resources(const CUdevResource* parts, unsigned count, ResourceSet* set);

}  // namespace commensal::simulated_cuda
