// SPDX-License-Identifier: Apache-2.0
// A job parked off a GPU is back on it before its next op's kernel is submitted.
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "allocator/cuda/cuda_memory_source.h"
#include "allocator/elastic_allocator.h"
#include "tests/allocator/cuda/cuda_machine.h"
#include "torch_ext/gate/gate.h"

namespace commensal::doze_on_cuda_test {
namespace {

class QuietDevice final : public DeviceObserver {
 public:
  DeviceObservation observe(TimePoint now) const noexcept override {
    DeviceObservation seen;
    seen.now = now;
    return seen;
  }
};

/// What the session's client thread does: brings memory back when an op has come.
class Keeper {
 public:
  Keeper(ElasticAllocator& allocator, Gate& gate)
      : thread_([this, &allocator, &gate] {
          CudaMachine::get().enter();
          std::unique_lock lock(mutex_);
          came_.wait(lock, [this] { return needed_; });
          lock.unlock();
          (void)allocator.grow(Bytes{UINT64_MAX});
          gate.wake();
        }) {}
  ~Keeper() {
    need();
    thread_.join();
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  void need() {
    {
      const std::lock_guard lock(mutex_);
      needed_ = true;
    }
    came_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  bool needed_ = false;
  std::thread thread_;
};

TEST(DozeOnCudaTest, Law2_AKernelFindsParkedMemoryOnTheDevice) {
  COMMENSAL_NEEDS_CUDA();
  CudaMachine& machine = CudaMachine::get();
  machine.enter();
  CudaMemorySource source{CudaMemorySource::Options{}};
  if (source.capacity(Tier::kHost).is_zero()) GTEST_SKIP() << source.host_tier_reason();
  const Bytes before = machine.simulated() ? machine.used() : Bytes{};
  ElasticAllocatorOptions options;
  options.fence_deadline = std::chrono::seconds{5};
  options.move_deadline = std::chrono::seconds{60};
  ElasticAllocator allocator(source, options);
  auto* const block = static_cast<std::byte*>(allocator.allocate(6_MiB));
  constexpr std::size_t kWords = (std::size_t{6} << 20U) / 4;
  std::vector<std::uint32_t> words(kWords, 7);
  CudaMachine::access().store(block, words.data(), kWords * 4);
  (void)allocator.set_limit(64_MiB);

  const QuietDevice device;
  Gate gate(make_pacing_law("open"), device);
  Keeper keeper(allocator, gate);
  gate.on_needed([&keeper] { keeper.need(); });
  gate.doze();
  ASSERT_TRUE(allocator.park().complete());
  EXPECT_EQ(allocator.stats().device, 0_B);
  if (machine.simulated()) {
    EXPECT_EQ(machine.used(), before);
  }

  OpDuration op;
  EXPECT_FALSE(gate.try_enter_op(op));
  gate.wait_op(op);
  // Here the op submits its kernel.
  EXPECT_GE(allocator.stats().device, 6_MiB);
  EXPECT_EQ(allocator.stats().parked, 0_B);
  HeldStream stream;
  stream.pull();
  machine.fill(to_cuda(block), 9, kWords / 2, stream.stream());
  EXPECT_EQ(CudaDriver::get().cuStreamSynchronize(stream.stream()), CUDA_SUCCESS);
  gate.leave_op(op);
  CudaMachine::access().load(words.data(), block, kWords * 4);
  for (std::size_t i = 0; i < kWords; ++i) ASSERT_EQ(words[i], i < kWords / 2 ? 9U : 7U) << i;
  EXPECT_TRUE(allocator.deallocate(block));
}

TEST(DozeOnCudaTest, Law2_NoOpPassesWhileMemoryIsAwayNotEvenOneThatIsSummoned) {
  COMMENSAL_NEEDS_CUDA();
  CudaMachine::get().enter();
  CudaMemorySource::Options options;
  options.map_host = false;
  CudaMemorySource source(options);
  ElasticAllocatorOptions limits;
  limits.fence_deadline = std::chrono::seconds{5};
  limits.move_deadline = std::chrono::seconds{60};
  ElasticAllocator allocator(source, limits);
  void* const block = allocator.allocate(6_MiB);
  (void)allocator.set_limit(64_MiB);

  const QuietDevice device;
  const auto summoned = []() noexcept { return true; };
  OpDuration op;
  for (const bool for_all : {false, true}) {
    Gate gate(make_pacing_law("open"), device);
    Keeper keeper(allocator, gate);
    if (for_all) gate.on_needed([&keeper] { keeper.need(); });
    gate.doze(for_all);
    ASSERT_TRUE(allocator.park(Parking::kUntouched).complete());
    EXPECT_GE(allocator.stats().away, 6_MiB);
    EXPECT_FALSE(gate.try_enter_op(op));
    gate.wait_op(op, summoned);
    EXPECT_EQ(allocator.stats().away.is_zero(), for_all) << "the twin goes through the closed gate";
    gate.leave_op(op);
    (void)allocator.grow(64_MiB);
  }
  EXPECT_TRUE(allocator.deallocate(block));
}

}  // namespace
}  // namespace commensal::doze_on_cuda_test
