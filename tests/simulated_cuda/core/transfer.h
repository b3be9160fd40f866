// SPDX-License-Identifier: Apache-2.0
// Copies, fills and memory operations of streams: checked when asked for, done by the stream.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tests/simulated_cuda/core/process.h"

namespace commensal::simulated_cuda {

/// How a copy treats the caller.
enum class Wait { kNo, kYes };

/// Copies bytes between any two addresses.
///
/// Pageable host memory is read before the call returns and written before it returns; with
/// `Wait::kYes` everything is done by then. @param any_device  the copy names the devices itself
/// (peer copies): each side's own device needs access, not the stream's.
CUresult copy(const std::shared_ptr<Stream>& stream, CUdeviceptr to, CUdeviceptr from,
              std::size_t bytes, Wait wait, bool any_device = false);

/// Repeats a pattern of 1, 2 or 4 bytes.
CUresult fill(const std::shared_ptr<Stream>& stream, CUdeviceptr to, std::uint32_t pattern,
              std::size_t width, std::size_t bytes, Wait wait);

/// `cuStreamWriteValue32/64` and `cuStreamWaitValue32/64`; width 4 or 8.
CUresult write_value(const std::shared_ptr<Stream>& stream, CUdeviceptr to, std::uint64_t value,
                     std::size_t width, unsigned flags);
CUresult wait_value(const std::shared_ptr<Stream>& stream, CUdeviceptr from, std::uint64_t value,
                    std::size_t width, unsigned flags);

}  // namespace commensal::simulated_cuda
