// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/kernel.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace commensal::simulated_cuda {

Kernels& Kernels::get() {
  static Kernels* const kernels = new Kernels;  // launches may run until the process ends
  return *kernels;
}

void Kernels::define(const std::string& name, std::vector<std::size_t> sizes, KernelBody body) {
  const MutexLock lock(mutex_);
  defined_[name] = std::make_shared<Defined>(Defined{std::move(sizes), std::move(body)});
}

CUresult Kernels::launch(const std::shared_ptr<Stream>& stream, const std::string& name,
                         const LaunchShape& shape, void** arguments) {
  const auto bad = [](const std::array<unsigned, 3>& extent) {
    return std::ranges::find(extent, 0U) != extent.end();
  };
  const std::uint64_t threads = std::uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
  if (bad(shape.grid) || bad(shape.block) || threads > 1024) return CUDA_ERROR_INVALID_VALUE;

  const Context* current = Process::get().current();
  if (current == nullptr || current->device() != stream->device()) {
    return CUDA_ERROR_INVALID_HANDLE;  // a stream of another device
  }

  std::shared_ptr<Defined> defined;
  {
    const MutexLock lock(mutex_);
    ++launches_[name];
    ++by_part_[stream->part() == nullptr ? 0U : stream->part()->multiprocessors];
    if (const auto found = defined_.find(name); found != defined_.end()) defined = found->second;
  }
  // A launch copies its arguments, and so does a graph that records it.
  auto copied = std::make_shared<std::vector<std::vector<std::byte>>>();
  if (defined != nullptr && !defined->sizes.empty() && arguments == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (std::size_t i = 0; defined != nullptr && i < defined->sizes.size(); ++i) {
    const auto* from = static_cast<const std::byte*>(arguments[i]);
    copied->emplace_back(from, from + defined->sizes[i]);
  }
  return Process::get().submit(
      stream, CU_GRAPH_NODE_TYPE_KERNEL, name, [defined, copied](Execution& execution) {
        CUresult result = CUDA_SUCCESS;
        if (defined != nullptr) {
          std::vector<void*> pointers;
          for (auto& argument : *copied) pointers.push_back(argument.data());
          result = defined->body(pointers.data(), execution);
        }
        execution.spend(std::chrono::nanoseconds{Process::get().kernel_nanoseconds});
        return result;
      });
}

std::uint64_t Kernels::launches(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = launches_.find(name);
  return found == launches_.end() ? 0 : found->second;
}

std::uint64_t Kernels::launches_on(unsigned multiprocessors) {
  const MutexLock lock(mutex_);
  const auto found = by_part_.find(multiprocessors);
  return found == by_part_.end() ? 0 : found->second;
}

}  // namespace commensal::simulated_cuda
