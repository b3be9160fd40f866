// SPDX-License-Identifier: Apache-2.0
// Serves PyTorch's CPU tensors from the session's elastic allocator.
#include "torch_ext/cpu_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "allocator/elastic_allocator.h"
#include "torch_ext/phase.h"
#include "torch_ext/region.h"
#include "torch_ext/runtime/session.h"

namespace commensal {
namespace {

constexpr std::uint8_t kHighestPriority = 255;
// NOLINTNEXTLINE(bugprone-throwing-static-initialization): no index, nothing to throw for
const c10::Device kCpu{c10::DeviceType::CPU};

// Set once by install_cpu_allocator, before the allocator is registered.
Session* g_session = nullptr;
ElasticAllocator* g_elastic = nullptr;
c10::DeleterFnPtr g_previous_deleter = nullptr;

std::int64_t as_signed(Bytes bytes) noexcept { return static_cast<std::int64_t>(bytes.count()); }

Bytes reserved(const AllocatorStats& stats) noexcept { return stats.device + stats.host; }

void report_to_profiler(void* block, std::int64_t change) {
  const AllocatorStats stats = g_elastic->stats();
  c10::reportMemoryUsageToProfiler(block, change, stats.live.count(), reserved(stats).count(),
                                   kCpu);
}

[[noreturn]] void raise_out_of_memory(Bytes asked, const char* message) {
  if (c10::memoryProfilingEnabled()) {
    const AllocatorStats stats = g_elastic->stats();
    c10::reportOutOfMemoryToProfiler(as_signed(asked), stats.live.count(), reserved(stats).count(),
                                     kCpu);
  }
  throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, message);
}

void* take(Bytes size) {
  try {
    AllocationContext context;
    context.phase = phase_now(*g_session);
    context.tag = current_tag();
    return g_elastic->allocate(size, 0, context);
  } catch (const OutOfMemory& error) {
    raise_out_of_memory(size, error.what());
  } catch (const std::bad_alloc&) {  // no room for the allocator's own lists
    raise_out_of_memory(size, ("out of memory: no room for the bookkeeping of " + to_string(size) +
                               " on the C heap")
                                  .c_str());
  }
}

// The deleter of every block. Called from any thread, at any time, also after exit handlers.
void give_back(void* block) {
  if (block == nullptr) return;
  if (!c10::memoryProfilingEnabled()) {
    if (!g_elastic->deallocate(block)) g_previous_deleter(block);
    return;
  }
  const Bytes size = g_elastic->size_of(block);
  if (!g_elastic->deallocate(block)) {
    g_previous_deleter(block);
  } else if (!size.is_zero()) {
    report_to_profiler(block, -as_signed(size));
  }
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    if (size == 0) return {nullptr, nullptr, &give_back, kCpu};
    void* const block = take(Bytes{size});
    g_session->touch_host();
    if (c10::memoryProfilingEnabled()) report_to_profiler(block, static_cast<std::int64_t>(size));
    // The context is the block: oneDNN takes blocks without their DataPtr and asserts this.
    return {block, block, &give_back, kCpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

}  // namespace

void install_cpu_allocator(Session& session) {
  c10::Allocator* const previous = c10::GetAllocator(c10::DeviceType::CPU);
  g_previous_deleter = previous->raw_deleter();
  if (g_previous_deleter == nullptr) g_previous_deleter = &std::free;
  g_session = &session;
  g_elastic = &session.allocator();
  static CpuAllocator& allocator = *new CpuAllocator;  // never destroyed
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, kHighestPriority);
  if (c10::GetAllocator(c10::DeviceType::CPU) != &allocator) {
    throw std::runtime_error("PyTorch refused commensal's CPU allocator");
  }
}

}  // namespace commensal
