// SPDX-License-Identifier: Apache-2.0
// Small things that PyTorch has its own types for.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

#include <cstddef>

namespace commensal {

[[nodiscard]] inline c10::DeviceIndex index_of(int device) noexcept {
  return static_cast<c10::DeviceIndex>(device);
}

/// Where PyTorch's statistics have the sum over all pools.
inline constexpr auto kAllPools =
    static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace commensal
