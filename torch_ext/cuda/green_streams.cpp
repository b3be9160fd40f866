// SPDX-License-Identifier: Apache-2.0
// Parts of a device by the driver's functions.
#include "torch_ext/cuda/green_streams.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "allocator/memory_source.h"

namespace commensal {
namespace {

/// A share as people write it, 0.3 of 10, is not to become 2 by its last bit.
constexpr double kRounding = 1e-6;

}  // namespace

MultiprocessorPart part_for(double share, const MultiprocessorSizes& sizes) noexcept {
  MultiprocessorPart part;
  part.asked = static_cast<unsigned>(std::floor(share * sizes.total + kRounding));
  const unsigned step = std::max(1U, sizes.step);
  const unsigned count = std::max(part.asked / step * step, sizes.least);
  if (part.asked < sizes.total && count < sizes.total) part.count = count;
  return part;
}

GreenStreams::GreenStreams(int device) : context_(device) {
  const CudaDriver& driver = context_.driver();
  check_cuda(driver.cuDeviceGetDevResource(context_.device(), &whole_, CU_DEV_RESOURCE_TYPE_SM),
             "cuDeviceGetDevResource of the multiprocessors");
  sizes_ = {whole_.sm.smCount, std::max(1U, whole_.sm.minSmPartitionSize),
            std::max(1U, whole_.sm.smCoscheduledAlignment)};
}

GreenStream GreenStreams::with(unsigned count) {
  const auto known = made_.find(count);
  if (known != made_.end()) return known->second;
  const GreenStream made = make(count);
  made_.emplace(count, made);
  return made;
}

bool GreenStreams::ours(CUstream stream) const noexcept {
  return std::ranges::any_of(made_,
                             [stream](const auto& entry) { return entry.second.stream == stream; });
}

GreenStream GreenStreams::make(unsigned count) {
  const CudaDriver& driver = context_.driver();
  const std::string size = " of " + std::to_string(count) + " multiprocessors";
  const DeviceContext::Scope scope(context_);
  scope.check();
  CUdevResource part{};
  unsigned groups = 1;
  check_cuda(driver.cuDevSmResourceSplitByCount(&part, &groups, &whole_, nullptr, 0, count),
             "cuDevSmResourceSplitByCount" + size);
  if (groups != 1) {
    throw SourceError("cuDevSmResourceSplitByCount" + size + " made " + std::to_string(groups) +
                      " groups");
  }
  CUdevResourceDesc descriptor = nullptr;
  check_cuda(driver.cuDevResourceGenerateDesc(&descriptor, &part, 1),
             "cuDevResourceGenerateDesc" + size);
  CUgreenCtx green = nullptr;
  check_cuda(
      driver.cuGreenCtxCreate(&green, descriptor, context_.device(), CU_GREEN_CTX_DEFAULT_STREAM),
      "cuGreenCtxCreate" + size);
  GreenStream made;
  try {
    CUdevResource own{};
    check_cuda(driver.cuGreenCtxGetDevResource(green, &own, CU_DEV_RESOURCE_TYPE_SM),
               "cuGreenCtxGetDevResource" + size);
    made.multiprocessors = own.sm.smCount;
    check_cuda(driver.cuGreenCtxStreamCreate(&made.stream, green, CU_STREAM_NON_BLOCKING, 0),
               "cuGreenCtxStreamCreate" + size);
  } catch (const std::exception&) {
    (void)insist([&] { return driver.cuGreenCtxDestroy(green); });
    throw;
  }
  return made;
}

}  // namespace commensal
