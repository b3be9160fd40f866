// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/transfer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace commensal::simulated_cuda {
namespace {

// Between two slices the rest of the program may unmap: then the copy fails as on the card.
constexpr std::size_t kSlice = 1UL << 20;

void take_time(Execution& execution, std::size_t bytes) {
  const std::size_t speed = Process::get().copy_bytes_per_second;
  if (speed == 0) return;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(speed);
  execution.spend(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
}

Body copy_body(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, bool any_device,
               std::shared_ptr<std::vector<std::byte>> staged) {
  return [=](Execution& execution) {
    const int device = any_device ? -1 : execution.device();
    const AddressSpace& memory = Process::get().memory;
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t slice = std::min(kSlice, bytes - done);
      const auto source =
          staged == nullptr ? from + done : reinterpret_cast<CUdeviceptr>(staged->data()) + done;
      if (!memory.copy(to + done, source, slice, device)) return CUDA_ERROR_ILLEGAL_ADDRESS;
      take_time(execution, slice);
      done += slice;
    }
    return CUDA_SUCCESS;
  };
}

/// Waits until the stream has done all that was put into it; tells how the work ended.
CUresult drain(const std::shared_ptr<Stream>& stream) {
  stream->last().wait();
  return Process::get().fate;
}

bool pageable(CUdeviceptr address) {
  return Process::get().memory.find(address).kind == Kind::kPageable;
}

/// Work of the legacy default stream that nothing may capture.
CUresult check_synchronous(const std::shared_ptr<Stream>& stream, Wait wait) {
  if (wait == Wait::kNo) return CUDA_SUCCESS;
  Captures& captures = Process::get().captures;
  const CUresult refused =
      captures.check_not_capturing(stream.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (refused != CUDA_SUCCESS) return refused;
  if (const CUresult error = captures.check_legacy_stream(); error != CUDA_SUCCESS) return error;
  return captures.check_unsafe_call();
}

// As a driver does (580 on an H200): what begins in a chunk that the CPU has a right to is copied
// by the CPU, up to the end, and faults where the range goes on in memory of a device.
CUresult copy_by_cpu(void* to, CUdeviceptr from, std::size_t bytes,
                     const std::shared_ptr<Stream>& stream) {
  const CUresult fate = drain(stream);
  if (fate != CUDA_SUCCESS) return fate;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult copy(const std::shared_ptr<Stream>& stream, CUdeviceptr to, CUdeviceptr from,
              std::size_t bytes, Wait wait, bool any_device) {
  Process& process = Process::get();
  if (bytes == 0) return CUDA_SUCCESS;
  const int device = any_device ? -1 : stream->device();
  if (!process.memory.accessible(to, bytes, device, true) ||
      !process.memory.accessible(from, bytes, device, false)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult error = check_synchronous(stream, wait); error != CUDA_SUCCESS) return error;
  const bool reads_pageable = pageable(from);
  const bool writes_pageable = pageable(to);
  if (reads_pageable || writes_pageable) {
    // The driver stages pageable memory itself: nothing that a graph could repeat.
    const CUresult error =
        process.captures.check_not_capturing(stream.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (error != CUDA_SUCCESS) return error;
  }
  if (writes_pageable && process.memory.open_to_cpu(from)) {
    return copy_by_cpu(reinterpret_cast<void*>(to), from, bytes, stream);
  }
  std::shared_ptr<std::vector<std::byte>> staged;
  if (reads_pageable && wait == Wait::kNo) {
    const auto* source = reinterpret_cast<const std::byte*>(from);
    staged = std::make_shared<std::vector<std::byte>>(source, source + bytes);
  }
  const CUresult error =
      process.submit(stream, CU_GRAPH_NODE_TYPE_MEMCPY, "copy " + std::to_string(bytes),
                     copy_body(to, from, bytes, any_device, std::move(staged)));
  if (error != CUDA_SUCCESS) return error;
  return wait == Wait::kYes || writes_pageable ? drain(stream) : CUDA_SUCCESS;
}

CUresult fill(const std::shared_ptr<Stream>& stream, CUdeviceptr to, std::uint32_t pattern,
              std::size_t width, std::size_t bytes, Wait wait) {
  Process& process = Process::get();
  if (bytes == 0) return CUDA_SUCCESS;
  if (to % width != 0 || pageable(to)) return CUDA_ERROR_INVALID_VALUE;
  if (!process.memory.accessible(to, bytes, stream->device(), true)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult error = check_synchronous(stream, wait); error != CUDA_SUCCESS) return error;
  const CUresult error =
      process.submit(stream, CU_GRAPH_NODE_TYPE_MEMSET, "fill " + std::to_string(bytes),
                     [=](Execution& execution) {
                       const AddressSpace& memory = Process::get().memory;
                       for (std::size_t done = 0; done < bytes;) {
                         const std::size_t slice = std::min(kSlice, bytes - done);
                         if (!memory.fill(to + done, pattern, width, slice, execution.device())) {
                           return CUDA_ERROR_ILLEGAL_ADDRESS;
                         }
                         take_time(execution, slice);
                         done += slice;
                       }
                       return CUDA_SUCCESS;
                     });
  if (error != CUDA_SUCCESS) return error;
  return wait == Wait::kYes ? drain(stream) : CUDA_SUCCESS;
}

CUresult write_value(const std::shared_ptr<Stream>& stream, CUdeviceptr to, std::uint64_t value,
                     std::size_t width, unsigned flags) {
  Process& process = Process::get();
  const bool known_flags =
      (flags & ~static_cast<unsigned>(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)) == 0;
  if (!known_flags || to % width != 0 || pageable(to)) return CUDA_ERROR_INVALID_VALUE;
  if (!process.memory.accessible(to, width, stream->device(), true)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return process.submit(
      stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, "write value", [=](Execution& execution) {
        const bool stored = Process::get().memory.store(to, value, width, execution.device());
        return stored ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
      });
}

CUresult wait_value(const std::shared_ptr<Stream>& stream, CUdeviceptr from, std::uint64_t value,
                    std::size_t width, unsigned flags) {
  Process& process = Process::get();
  const unsigned condition = flags & ~static_cast<unsigned>(CU_STREAM_WAIT_VALUE_FLUSH);
  if (condition > CU_STREAM_WAIT_VALUE_NOR || from % width != 0 || pageable(from)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!process.memory.accessible(from, width, stream->device(), false)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto holds = [=](std::uint64_t found) {
    const std::uint64_t mask = width == 4 ? 0xffff'ffffULL : ~std::uint64_t{0};
    switch (condition) {
      case CU_STREAM_WAIT_VALUE_EQ: return found == value;
      case CU_STREAM_WAIT_VALUE_AND: return (found & value) != 0;
      case CU_STREAM_WAIT_VALUE_NOR: return (~(found | value) & mask) != 0;
      default:  // cyclic greater-or-equal
        return width == 4 ? static_cast<std::int32_t>(found - value) >= 0
                          : static_cast<std::int64_t>(found - value) >= 0;
    }
  };
  return process.submit(
      stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, "wait value", [=](Execution& execution) {
        std::uint64_t found = 0;
        do {
          if (!Process::get().memory.load(from, &found, width, execution.device())) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
          }
          if (holds(found)) return CUDA_SUCCESS;
          std::this_thread::sleep_for(std::chrono::microseconds{20});
        } while (Process::get().fate == CUDA_SUCCESS);
        return CUDA_SUCCESS;
      });
}

}  // namespace commensal::simulated_cuda
