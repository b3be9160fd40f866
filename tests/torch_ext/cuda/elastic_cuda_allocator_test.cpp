// SPDX-License-Identifier: Apache-2.0
// Which blocks are ours and which the delegate's; what PyTorch is told of both together.
#include "torch_ext/cuda/elastic_cuda_allocator.h"

#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/allocator/moving_source.h"
#include "tests/torch_ext/cuda/fake_cuda_calls.h"
#include "tests/torch_ext/cuda/mock_cuda_allocator.h"

namespace commensal::elastic_cuda_allocator_test {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::NiceMock;
using ::testing::Return;

const c10::MempoolId_t kNoPool{0, 0};
const c10::MempoolId_t kGraph{5, 0};

int g_native_frees = 0;
void native_free(void* block) {
  ++g_native_frees;
  std::free(block);
}
void foreign_free(void* /*block*/) {}

class FakeDeviceMemory final : public MemoryProvider {
 public:
  ElasticAllocator* of(int device) override {
    if (device == refused) return nullptr;
    return &made(device).allocator;
  }
  std::string reason(int /*device*/) override { return "refused by a test"; }
  void on_pressure(int device, std::function<std::string(Bytes)> helper) override {
    made(device).allocator.on_pressure(std::move(helper));
  }
  bool begun() noexcept override { return has_begun; }
  void let_in(int device, int user) override {
    if (user == unwelcome) throw SourceError("refused by a test");
    allowed.emplace_back(device, user);
  }
  AllocationContext context() noexcept override { return {Phase::kUnknown, tag}; }
  void delegated(int device, Bytes held) noexcept override {
    made(device).allocator.count_outside(held);
  }
  FakeMemorySource& source(int device) { return made(device).source.fake(); }

  int refused = -1;
  int unwelcome = -1;
  bool has_begun = true;
  std::vector<std::pair<int, int>> allowed;  // device, user
  TagId tag = 0;
  ElasticAllocatorOptions options = [] {
    ElasticAllocatorOptions usual;
    usual.alignment = 512_B;
    return usual;
  }();

 private:
  struct Made {
    explicit Made(const ElasticAllocatorOptions& options) : allocator(source, options) {}
    MovingSource source;
    ElasticAllocator allocator;
  };
  Made& made(int device) {
    const MutexLock lock(mutex_);
    auto& slot = made_[device];
    if (slot == nullptr) slot = std::make_unique<Made>(options);
    return *slot;
  }
  Mutex mutex_;
  std::map<int, std::unique_ptr<Made>> made_;
};

class ElasticCudaAllocatorTest : public ::testing::Test {
 protected:
  ElasticCudaAllocatorTest() {
    g_native_frees = 0;
    ON_CALL(native_, raw_deleter()).WillByDefault(Return(&native_free));
    ON_CALL(native_, allocate(_)).WillByDefault([](std::size_t size) {
      void* const block = size == 0 ? nullptr : std::malloc(size);
      return c10::DataPtr(block, block, &native_free, c10::Device(c10::DeviceType::CUDA, 0));
    });
    ON_CALL(native_, raw_alloc_with_stream(_, _)).WillByDefault([](std::size_t size, cudaStream_t) {
      return std::malloc(size);
    });
    ON_CALL(native_, raw_delete(_)).WillByDefault([](void* block) { native_free(block); });
    ON_CALL(native_, getMemoryFraction(_)).WillByDefault([this](c10::DeviceIndex) {
      return fraction_;
    });
    ON_CALL(native_, setMemoryFraction(_, _))
        .WillByDefault([this](double fraction, c10::DeviceIndex) { fraction_ = fraction; });
    ON_CALL(native_, getDeviceStats(_)).WillByDefault([this](c10::DeviceIndex) { return theirs_; });
  }

  ElasticAllocator& memory() { return *memory_.of(0); }
  [[nodiscard]] bool ours(const c10::DataPtr& block) { return memory().owns(block.get()); }
  static c10::cuda::CUDAStream stream(std::uintptr_t number) {
    return c10::cuda::getStreamFromExternal(FakeCudaCalls::handle(number), 0);
  }
  void begin_capture(bool claims = true) {
    // As PyTorch does it: its filter tells whether a stream is captured, which begins afterwards.
    auto captures = std::make_shared<bool>(false);
    allocator_.beginAllocateToPool(0, kGraph, [captures](cudaStream_t) { return *captures; });
    *captures = claims;
  }
  void end_capture() { allocator_.endAllocateToPool(0, kGraph); }
  static c10::CachingAllocator::Stat all(const c10::CachingDeviceAllocator::StatArray& stat) {
    return stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  }

  NiceMock<MockCudaAllocator> native_;
  MockCudaAllocator::DeviceStats theirs_;
  double fraction_ = 1.0;
  FakeCudaCalls calls_;
  FakeDeviceMemory memory_;
  ElasticCudaAllocator allocator_{native_, calls_, memory_};
};

// --- whose a block is ----------------------------------------------------------------------

TEST_F(ElasticCudaAllocatorTest, AnOrdinaryBlockIsOurs) {
  EXPECT_CALL(native_, allocate(_)).Times(0);
  calls_.device = 2;
  {
    const c10::DataPtr block = allocator_.allocate(1000);
    EXPECT_TRUE(memory_.of(2)->owns(block.get()));
    EXPECT_EQ(block.get(), block.get_context());
    EXPECT_EQ(block.get_deleter(), allocator_.raw_deleter());
    EXPECT_EQ(block.device(), c10::Device(c10::DeviceType::CUDA, 2));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % 512, 0U);
  }
  EXPECT_EQ(memory_.of(2)->stats().live, Bytes{});
  EXPECT_EQ(g_native_frees, 0);
}

TEST_F(ElasticCudaAllocatorTest, NothingAskedForIsANullPointerWithTheDeleter) {
  const c10::DataPtr block = allocator_.allocate(0);
  EXPECT_EQ(block.get(), nullptr);
  EXPECT_EQ(block.get_deleter(), allocator_.raw_deleter());
  EXPECT_EQ(block.device().type(), c10::DeviceType::CUDA);
  EXPECT_EQ(allocator_.raw_alloc(0), nullptr);
}

TEST_F(ElasticCudaAllocatorTest, WhatAFilterClaimsIsTheDelegatesAndCarriesOurDeleter) {
  begin_capture();
  {
    const c10::DataPtr block = allocator_.allocate(1000);
    EXPECT_FALSE(ours(block));
    EXPECT_EQ(block.get_deleter(), allocator_.raw_deleter());
  }
  EXPECT_EQ(g_native_frees, 1);  // by the address
  end_capture();
  EXPECT_TRUE(ours(allocator_.allocate(1000)));
}

TEST_F(ElasticCudaAllocatorTest, FiltersSeeTheStreamAndNest) {
  const auto claims_7 = [](cudaStream_t at) { return at == FakeCudaCalls::handle(7); };
  const c10::MempoolId_t other{0, 9};
  allocator_.beginAllocateToPool(0, kGraph, claims_7);
  allocator_.beginAllocateToPool(0, other, claims_7);
  EXPECT_TRUE(ours(allocator_.allocate(1000)));
  calls_.stream = FakeCudaCalls::handle(7);
  EXPECT_FALSE(ours(allocator_.allocate(1000)));
  end_capture();
  EXPECT_FALSE(ours(allocator_.allocate(1000)));
  void* const raw = allocator_.raw_alloc_with_stream(1000, FakeCudaCalls::handle(8));
  EXPECT_TRUE(memory().owns(raw));  // the stream that is given, not the current one
  allocator_.raw_delete(raw);
  allocator_.endAllocateToPool(0, other);
  EXPECT_TRUE(ours(allocator_.allocate(1000)));
  EXPECT_FALSE(allocator_.capturing());
}

TEST_F(ElasticCudaAllocatorTest, FiltersOfOneDeviceClaimNothingOfAnother) {
  begin_capture();
  calls_.device = 1;
  const c10::DataPtr block = allocator_.allocate(1000);
  EXPECT_TRUE(memory_.of(1)->owns(block.get()));
}

TEST_F(ElasticCudaAllocatorTest, RawBlocksGoBackByTheirAddress) {
  EXPECT_CALL(native_, raw_delete(_)).Times(1);
  void* const own = allocator_.raw_alloc(1000);
  EXPECT_TRUE(memory().owns(own));
  begin_capture();
  void* const theirs = allocator_.raw_alloc(1000);
  EXPECT_FALSE(memory().owns(theirs));
  end_capture();
  allocator_.raw_delete(own);
  allocator_.raw_delete(theirs);
  allocator_.raw_delete(nullptr);
  EXPECT_EQ(memory().stats().live, Bytes{});
}

TEST_F(ElasticCudaAllocatorTest, ADeviceThatIsNotOursIsTheDelegates) {
  memory_.refused = 1;
  calls_.device = 1;
  EXPECT_CALL(native_, allocate(1000)).Times(2);
  for (int i = 0; i < 2; ++i) (void)allocator_.allocate(1000);
  EXPECT_EQ(g_native_frees, 2);
  EXPECT_EQ(all(allocator_.getDeviceStats(1).allocation).current, 0);
}

TEST_F(ElasticCudaAllocatorTest, BeforeItHasBegunEveryBlockIsTheDelegates) {
  memory_.has_begun = false;  // a helper that may become a rank
  c10::DataPtr early = allocator_.allocate(1000);
  EXPECT_FALSE(ours(early));
  memory_.has_begun = true;
  EXPECT_TRUE(ours(allocator_.allocate(1000)));
  early.clear();
  EXPECT_EQ(g_native_frees, 1);
}

// PyTorch's own has another deleter while caching is off.
TEST_F(ElasticCudaAllocatorTest, P24_ABlockGoesBackByTheFunctionThatItWasMadeWith) {
  static int uncached_frees = 0;
  uncached_frees = 0;
  const c10::DeleterFnPtr uncached = [](void* block) {
    ++uncached_frees;
    std::free(block);
  };
  ON_CALL(native_, raw_deleter()).WillByDefault(Return(uncached));
  ON_CALL(native_, allocate(_)).WillByDefault([&](std::size_t size) {
    void* const block = std::malloc(size);
    return c10::DataPtr(block, block, uncached, c10::Device(c10::DeviceType::CUDA, 0));
  });
  allocator_.enable(false);
  EXPECT_EQ(allocator_.raw_deleter(), uncached);
  c10::DataPtr block = allocator_.allocate(1000);
  allocator_.enable(true);
  ON_CALL(native_, raw_deleter()).WillByDefault(Return(&native_free));
  block.clear();
  EXPECT_EQ(uncached_frees, 1);
  EXPECT_EQ(g_native_frees, 0);
}

TEST_F(ElasticCudaAllocatorTest, SwitchedOffItServesNothing) {
  EXPECT_CALL(native_, enable(false));
  allocator_.enable(false);
  EXPECT_FALSE(ours(allocator_.allocate(1000)));
  EXPECT_CALL(native_, enable(true));
  allocator_.enable(true);
  EXPECT_TRUE(ours(allocator_.allocate(1000)));
}

TEST_F(ElasticCudaAllocatorTest, ACheckpointsBlocksGetTheDeleterToo) {
  EXPECT_CALL(native_, setCheckpointPoolState(0, _)).WillOnce([](auto, auto) {
    MockCudaAllocator::CheckpointDelta delta;
    void* const block = std::malloc(8);
    delta.dataptrs_allocd.emplace_back(block, block, &native_free,
                                       c10::Device(c10::DeviceType::CUDA, 0));
    delta.ptrs_freed.push_back(block);
    return delta;
  });
  {
    const auto delta = allocator_.setCheckpointPoolState(0, nullptr);
    ASSERT_EQ(delta.dataptrs_allocd.size(), 1U);
    EXPECT_EQ(delta.dataptrs_allocd[0].get_deleter(), allocator_.raw_deleter());
    EXPECT_EQ(delta.ptrs_freed.size(), 1U);
  }
  EXPECT_EQ(g_native_frees, 1);
}

TEST_F(ElasticCudaAllocatorTest, ThereIsOneInAProcess) {
  EXPECT_THROW(ElasticCudaAllocator(native_, calls_, memory_), std::logic_error);
}

TEST_F(ElasticCudaAllocatorTest, BlocksMayDieOnAnyThread) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      std::vector<c10::DataPtr> blocks;
      for (std::size_t size = 1; size < 2000; ++size) {
        blocks.push_back(allocator_.allocate(size * 64));
        std::memset(blocks.back().get(), 1, size * 64);
        if (blocks.size() > 20) blocks.erase(blocks.begin(), blocks.begin() + 10);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto stats = allocator_.getDeviceStats(0);
  EXPECT_EQ(all(stats.allocation).current, 0);
  EXPECT_EQ(all(stats.allocated_bytes).current, 0);
  EXPECT_EQ(all(stats.allocation).allocated, 4 * 1999);
  EXPECT_EQ(all(stats.allocation).freed, 4 * 1999);
  EXPECT_EQ(memory().stats().live, Bytes{});
}

// --- streams -------------------------------------------------------------------------------

TEST_F(ElasticCudaAllocatorTest, ABlockThatAnotherStreamUsesIsNotServedAgainBefore) {
  c10::DataPtr block = allocator_.allocate(1 << 20);
  void* const address = block.get();
  allocator_.recordStream(block, stream(7));
  block.clear();
  const c10::DataPtr meanwhile = allocator_.allocate(1 << 20);
  EXPECT_NE(meanwhile.get(), address);
  calls_.pass(FakeCudaCalls::handle(7));
  const c10::DataPtr after = allocator_.allocate(1 << 20);
  EXPECT_EQ(after.get(), address);
}

TEST_F(ElasticCudaAllocatorTest, ItsOwnStreamNeedsNoRecord) {
  calls_.stream = FakeCudaCalls::handle(7);
  c10::DataPtr block = allocator_.allocate(1 << 20);
  void* const address = block.get();
  allocator_.recordStream(block, stream(7));
  block.clear();
  EXPECT_EQ(calls_.calls, 0);
  EXPECT_EQ(allocator_.allocate(1 << 20).get(), address);
}

TEST_F(ElasticCudaAllocatorTest, ADelegatesBlockIsRecordedWithTheDelegatesDeleter) {
  begin_capture();
  const c10::DataPtr block = allocator_.allocate(1000);
  EXPECT_CALL(native_, recordStream(_, ::testing::An<c10::cuda::CUDAStream>()))
      .WillOnce([&](const c10::DataPtr& shown, c10::cuda::CUDAStream) {
        EXPECT_EQ(shown.get(), block.get());
        EXPECT_EQ(shown.get_deleter(), &native_free);
      });
  allocator_.recordStream(block, stream(7));
  EXPECT_EQ(g_native_frees, 0);
}

TEST_F(ElasticCudaAllocatorTest, AForeignBlockIsShownAsItIs) {
  int something = 0;
  const c10::DataPtr block(&something, &something, &foreign_free,
                           c10::Device(c10::DeviceType::CUDA, 0));
  EXPECT_CALL(native_, recordStream(::testing::Ref(block), ::testing::An<c10::cuda::CUDAStream>()));
  allocator_.recordStream(block, stream(7));
  allocator_.recordStream(c10::DataPtr(), stream(7));  // null: nothing
}

TEST_F(ElasticCudaAllocatorTest, DuringACaptureNothingOfOursReachesTheRuntime) {
  c10::DataPtr block = allocator_.allocate(1 << 20);
  void* const address = block.get();
  allocator_.recordStream(block, stream(7));
  begin_capture(false);  // of another thread
  block.clear();
  EXPECT_NE(allocator_.allocate(1 << 20).get(), address);
  EXPECT_CALL(native_, emptyCache(kNoPool)).Times(1);
  allocator_.emptyCache(kNoPool);
  EXPECT_EQ(calls_.calls, 0);
  EXPECT_GT(memory().stats().device, Bytes{});  // to unmap waits for the device
  end_capture();
  (void)allocator_.allocate(1 << 20);
  EXPECT_GT(calls_.calls, 0);
}

// F5: torch.cuda.use_mem_pool, a collective's buffers and warm-ups claim what a thread allocates.
TEST_F(ElasticCudaAllocatorTest, APoolIsNoCapture) {
  c10::DataPtr block = allocator_.allocate(1 << 20);
  allocator_.recordStream(block, stream(7));
  allocator_.beginAllocateToPool(0, {0, 9}, [](cudaStream_t) { return true; });
  EXPECT_FALSE(allocator_.capturing());
  EXPECT_FALSE(ours(allocator_.allocate(1000)));  // it is the delegate's all the same
  block.clear();
  allocator_.emptyCache(kNoPool);
  EXPECT_EQ(memory().stats().device, Bytes{});
  begin_capture();  // within it
  EXPECT_TRUE(allocator_.capturing());
  end_capture();
  EXPECT_FALSE(allocator_.capturing());
  allocator_.endAllocateToPool(0, {0, 9});
  EXPECT_TRUE(ours(allocator_.allocate(1000)));
}

// Inference servers take the graph's pool away during a capture, for memory that NCCL registers.
TEST_F(ElasticCudaAllocatorTest, APoolThatBeginsDuringACaptureIsPartOfIt) {
  begin_capture();
  calls_.captured = true;
  end_capture();
  for (const c10::MempoolId_t& pool : {c10::MempoolId_t{0, 9}, kGraph}) {
    allocator_.beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    EXPECT_TRUE(allocator_.capturing());
    allocator_.endAllocateToPool(0, pool);
  }
  EXPECT_FALSE(allocator_.capturing());
}

TEST_F(ElasticCudaAllocatorTest, APoolOfWhichNothingIsKnownCountsAsACapture) {
  allocator_.beginAllocateToPool(0, {0, 9}, [](cudaStream_t) -> bool {
    throw std::runtime_error("of a stream it cannot ask");
  });
  EXPECT_TRUE(allocator_.capturing());
  allocator_.endAllocateToPool(0, {0, 9});
}

// --- when memory is short ------------------------------------------------------------------

// F13: what looks for the largest batch that fits has to be told of the end.
TEST_F(ElasticCudaAllocatorTest, MoreThanTheCardIsOutOfMemoryWhateverTheSlowerTierHas) {
  memory_.options.limit = 16_MiB;
  calls_.total = 64U << 20U;
  std::vector<c10::DataPtr> blocks;
  const auto add = [&](std::size_t mib) { blocks.push_back(allocator_.allocate(mib << 20U)); };
  for (int i = 0; i < 6; ++i) add(10);
  EXPECT_GE(memory().stats().host, 40_MiB) << "above the limit the slower tier serves";
  try {
    add(10);
    FAIL() << "70 MiB on a card of 64";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDA out of memory. Tried to allocate 10.00 MiB. GPU 0 "
                                        "has a total capacity of 64.00 MiB of which"));
    EXPECT_THAT(error.what(), HasSubstr("not for more than the GPU's own memory in all"));
  }
  blocks.pop_back();
  EXPECT_NO_THROW(add(10));
}

TEST_F(ElasticCudaAllocatorTest, ATagThatIsAwayLeavesRoomForOthers) {
  memory_.options.limit = 64_MiB;
  calls_.total = 64U << 20U;
  memory_.tag = memory().open_tag("weights");
  const c10::DataPtr weights = allocator_.allocate(40U << 20U);
  memory_.tag = 0;
  EXPECT_THROW((void)allocator_.allocate(40U << 20U), c10::OutOfMemoryError);
  (void)memory().park_tag(memory().find_tag("weights"));
  EXPECT_NO_THROW((void)allocator_.allocate(40U << 20U));
}

TEST_F(ElasticCudaAllocatorTest, InATrialTheLimitIsTheEnd) {
  memory_.options.limit = 16_MiB;
  c10::DataPtr weights = allocator_.allocate(8U << 20U);
  allocator_.begin_trial();
  try {
    (void)allocator_.allocate(10U << 20U);
    FAIL() << "18 MiB under 16";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDA out of memory. Tried to allocate 10.00 MiB"));
    EXPECT_THAT(error.what(), HasSubstr("not while the program looks for what fits"));
  }
  EXPECT_NO_THROW((void)allocator_.allocate(4U << 20U));
  allocator_.end_trial();
  EXPECT_NO_THROW((void)allocator_.allocate(10U << 20U));
}

TEST_F(ElasticCudaAllocatorTest, WhatHasNoRoomAnywayIsTriedAsItRuns) {
  memory_.options.limit = 16_MiB;
  const c10::DataPtr weights = allocator_.allocate(20U << 20U);  // the limit has fallen
  allocator_.begin_trial();
  EXPECT_NO_THROW((void)allocator_.allocate(10U << 20U));
  allocator_.end_trial();
}

TEST_F(ElasticCudaAllocatorTest, OutOfMemoryIsPyTorchsOwnErrorAfterEverythingWasTried) {
  memory_.options.limit = 8_MiB;
  memory_.options.host_cap = Bytes{};
  std::vector<std::string> order;
  EXPECT_CALL(native_, emptyCache(kNoPool)).WillRepeatedly([&](auto) {
    order.emplace_back("cache");
  });
  allocator_.attachOutOfMemoryObserver(
      [&](std::int64_t device, std::size_t asked, std::size_t total, std::size_t) {
        EXPECT_EQ(device, 0);
        EXPECT_EQ(asked, 64U << 20U);
        EXPECT_EQ(total, calls_.total);
        order.emplace_back("observer");
      });
  try {
    (void)allocator_.allocate(64U << 20U);
    FAIL() << "64 MiB within 8";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDA out of memory. Tried to allocate 64.00 MiB"));
    EXPECT_THAT(error.what(), HasSubstr("limit 8 MiB"));
  }
  ASSERT_GE(order.size(), 2U);
  EXPECT_EQ(order.front(), "cache");
  EXPECT_EQ(order.back(), "observer");
  EXPECT_EQ(allocator_.getDeviceStats(0).num_ooms, 1);
  EXPECT_NO_THROW((void)allocator_.allocate(1U << 20U));
}

// --- pools that are lent (use_on_oom) --------------------------------------------------------

class LentPoolTest : public ElasticCudaAllocatorTest {
 protected:
  LentPoolTest() {
    memory_.options.limit = 8_MiB;
    memory_.options.host_cap = Bytes{};
    ON_CALL(native_, snapshot(kLent, false)).WillByDefault([this](auto, auto) {
      c10::CachingDeviceAllocator::BlockInfo block;
      block.size = 32U << 20U;
      block.active = taken_;
      c10::CachingDeviceAllocator::SegmentInfo segment;
      segment.is_large = true;
      segment.blocks = {block};
      MockCudaAllocator::SnapshotInfo info;
      info.segments = {segment};
      return info;
    });
    ON_CALL(native_, getPoolUseCount(_, _)).WillByDefault(Return(1));
  }
  [[nodiscard]] bool served() {
    try {
      const c10::DataPtr block = allocator_.allocate(20U << 20U);
      EXPECT_FALSE(ours(block));
      EXPECT_EQ(block.get_deleter(), allocator_.raw_deleter());
      return true;
    } catch (const c10::OutOfMemoryError&) {
      return false;
    }
  }

  const c10::MempoolId_t kLent{0, 7};
  bool taken_ = false;
};

TEST_F(LentPoolTest, ServesWhatOurMemoryCannot) {
  EXPECT_CALL(native_, beginAllocateToPool(0, kLent, _)).Times(0);
  EXPECT_FALSE(served());  // not lent
  EXPECT_CALL(native_, setUseOnOOM(0, kLent, true));
  allocator_.setUseOnOOM(0, kLent, true);
  {
    const ::testing::InSequence order;
    EXPECT_CALL(native_, beginAllocateToPool(0, kLent, _)).WillOnce([](auto, auto, auto claims) {
      EXPECT_TRUE(claims(nullptr));
      std::thread([&] { EXPECT_FALSE(claims(nullptr)); }).join();
    });
    EXPECT_CALL(native_, raw_alloc_with_stream(20U << 20U, nullptr));
    EXPECT_CALL(native_, endAllocateToPool(0, kLent));
    EXPECT_CALL(native_, releasePool(0, kLent));
  }
  EXPECT_TRUE(served());
  EXPECT_EQ(g_native_frees, 1);
  EXPECT_TRUE(ours(allocator_.allocate(1U << 20U)));  // what fits is ours
  EXPECT_FALSE(allocator_.capturing());
}

TEST_F(LentPoolTest, IsLeftAloneWithoutRoomWhileInUseAndOnceItIsGone) {
  EXPECT_CALL(native_, raw_alloc_with_stream(_, _)).Times(0);
  allocator_.setUseOnOOM(0, kLent, true);
  taken_ = true;
  EXPECT_FALSE(served());
  taken_ = false;
  allocator_.beginAllocateToPool(0, kLent, [](cudaStream_t) { return false; });  // another thread's
  EXPECT_FALSE(served());
  allocator_.endAllocateToPool(0, kLent);
  calls_.stream = FakeCudaCalls::handle(7);  // its blocks are another stream's
  EXPECT_FALSE(served());
  calls_.stream = nullptr;
  calls_.device = 1;
  EXPECT_FALSE(served());
  calls_.device = 0;
  allocator_.releasePool(0, kLent);
  EXPECT_FALSE(served());
  allocator_.setUseOnOOM(0, kLent, true);
  allocator_.setUseOnOOM(0, kLent, false);
  EXPECT_FALSE(served());
}

TEST_F(LentPoolTest, ServesWhatAFractionForbids) {
  memory_.options.limit = 1_GiB;
  allocator_.setUseOnOOM(0, kLent, true);
  (void)allocator_.allocate(1000);
  allocator_.setMemoryFraction(8.0 / 1024, 0);
  EXPECT_TRUE(served());
}

TEST_F(LentPoolTest, GivesItsUseBackWhenTheDelegateFails) {
  allocator_.setUseOnOOM(0, kLent, true);
  EXPECT_CALL(native_, raw_alloc_with_stream(_, _)).WillOnce([](auto, auto) -> void* {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "another thread was faster");
  });
  EXPECT_CALL(native_, endAllocateToPool(0, kLent));
  EXPECT_CALL(native_, releasePool(0, kLent));
  EXPECT_FALSE(served());
}

TEST_F(ElasticCudaAllocatorTest, WhatOnlyWaitsForAStreamServesBeforeItFails) {
  memory_.options.limit = 8_MiB;
  memory_.options.host_cap = Bytes{};
  c10::DataPtr block = allocator_.allocate(8U << 20U);
  allocator_.recordStream(block, stream(7));
  block.clear();
  const c10::DataPtr again = allocator_.allocate(8U << 20U);
  EXPECT_EQ(calls_.waits, 1);
  EXPECT_TRUE(ours(again));
  EXPECT_EQ(allocator_.getDeviceStats(0).num_alloc_retries, 1);
  EXPECT_EQ(allocator_.getDeviceStats(0).num_ooms, 0);
}

// What the allocator of elastic memory throws is no error of PyTorch's: scripts would not find it.
TEST_F(ElasticCudaAllocatorTest, P10_ExhaustedMemoryIsPyTorchsErrorAndNoOther) {
  memory_.options.limit = 8_MiB;
  memory_.options.host_cap = Bytes{};
  EXPECT_THROW((void)allocator_.allocate(64U << 20U), c10::OutOfMemoryError);
  EXPECT_THROW((void)allocator_.raw_alloc(64U << 20U), c10::OutOfMemoryError);
}

TEST_F(ElasticCudaAllocatorTest, P10_WithoutTheTranslationItIsAPlainError) {
  memory_.options.limit = 8_MiB;
  memory_.options.host_cap = Bytes{};
  try {
    (void)memory().allocate(64_MiB);
    FAIL() << "64 MiB within 8";
  } catch (const std::exception& error) {
    EXPECT_EQ(dynamic_cast<const c10::OutOfMemoryError*>(&error), nullptr);
  }
}

TEST_F(ElasticCudaAllocatorTest, AboveTheLimitTheSlowerTierServes) {
  memory_.options.limit = 8_MiB;
  const c10::DataPtr block = allocator_.allocate(64U << 20U);
  EXPECT_TRUE(ours(block));
  EXPECT_GE(memory().stats().host, 56_MiB);
}

TEST_F(ElasticCudaAllocatorTest, AFractionIsABoundThatEvenTheSlowerTierKeeps) {
  EXPECT_CALL(native_, setMemoryFraction(0.125, 0));
  calls_.total = 128U << 20U;
  allocator_.setMemoryFraction(0.125, 0);
  c10::DataPtr block = allocator_.allocate(8U << 20U);
  EXPECT_THROW((void)allocator_.allocate(12U << 20U), c10::OutOfMemoryError);
  block.clear();  // cached now, and given back for it
  EXPECT_NO_THROW((void)allocator_.allocate(12U << 20U));
  EXPECT_CALL(native_, setMemoryFraction(1.0, 0));
  allocator_.setMemoryFraction(1.0, 0);
  EXPECT_NO_THROW((void)allocator_.allocate(64U << 20U));
}

// The fraction is of what both hold together.
TEST_F(ElasticCudaAllocatorTest, P25_AFractionCountsTheDelegatesMemoryToo) {
  calls_.total = 128U << 20U;
  (void)allocator_.allocate(1000);
  EXPECT_CALL(native_, setMemoryFraction(0.5, 0));
  allocator_.setMemoryFraction(0.5, 0);
  EXPECT_EQ(allocator_.getMemoryFraction(0), 0.5);
  theirs_.reserved_bytes[0] = {.current = 40 << 20, .peak = 40 << 20, .allocated = 40 << 20};
  EXPECT_THROW((void)allocator_.allocate(32U << 20U), c10::OutOfMemoryError);
  const c10::DataPtr block = allocator_.allocate(16U << 20U);
  // And the delegate gets what ours leave, before a capture begins; not during one.
  const double left = 0.5 - static_cast<double>(memory().stats().device.count()) / (128 << 20);
  EXPECT_CALL(native_, setMemoryFraction(::testing::DoubleNear(left, 1e-6), 0)).Times(1);
  begin_capture();
  allocator_.beginAllocateToPool(0, {0, 9}, [](cudaStream_t) { return false; });
  EXPECT_EQ(allocator_.getMemoryFraction(0), 0.5);  // as the program set it
}

// The twin: PyTorch's own fraction alone bounds nothing of ours.
TEST_F(ElasticCudaAllocatorTest, P25_TheDelegatesFractionAloneDoesNotCountOurs) {
  calls_.total = 128U << 20U;
  const c10::DataPtr first = allocator_.allocate(1000);
  native_.setMemoryFraction(0.25, 0);
  const c10::DataPtr block = allocator_.allocate(100U << 20U);
  EXPECT_TRUE(ours(block));
}

TEST_F(ElasticCudaAllocatorTest, AFractionFromBeforeHoldsFromTheFirstBlockOn) {
  calls_.total = 128U << 20U;
  fraction_ = 0.125;
  EXPECT_EQ(allocator_.getMemoryFraction(0), 0.125);
  EXPECT_THROW((void)allocator_.allocate(20U << 20U), c10::OutOfMemoryError);
  EXPECT_NO_THROW((void)allocator_.allocate(8U << 20U));
  EXPECT_EQ(allocator_.getMemoryFraction(0), 0.125);
}

TEST_F(ElasticCudaAllocatorTest, P27_WhatTheDelegateCachesIsGivenBackBeforeMemoryMoves) {
  (void)allocator_.allocate(1000);
  theirs_.reserved_bytes[0] = {.current = 40 << 20, .peak = 40 << 20, .allocated = 40 << 20};
  theirs_.active_bytes[0] = {.current = 8 << 20, .peak = 8 << 20, .allocated = 8 << 20};
  theirs_.inactive_split_bytes[0] = {.current = 2 << 20, .peak = 2 << 20, .allocated = 2 << 20};
  EXPECT_CALL(native_, emptyCache(kNoPool)).Times(1);
  begin_capture();
  allocator_.give_back_delegates_cache();  // would break it
  end_capture();
  allocator_.give_back_delegates_cache();
  theirs_.reserved_bytes[0].current = 10 << 20;
  allocator_.give_back_delegates_cache();  // all of it is used, or shares a segment with what is
}

TEST_F(ElasticCudaAllocatorTest, EmptyCacheIsForBoth) {
  (void)allocator_.allocate(4U << 20U);
  EXPECT_GT(memory().stats().device, Bytes{});
  EXPECT_CALL(native_, emptyCache(kNoPool));
  allocator_.emptyCache(kNoPool);
  EXPECT_EQ(memory().stats().device, Bytes{});
  (void)allocator_.allocate(4U << 20U);
  EXPECT_CALL(native_, emptyCache(kGraph));
  allocator_.emptyCache(kGraph);  // a pool's: not ours
  EXPECT_GT(memory().stats().device, Bytes{});
}

TEST_F(ElasticCudaAllocatorTest, TheDelegateMayHaveOurUnusedMemory) {
  (void)allocator_.allocate(4U << 20U);
  const auto callback = c10::FreeCudaMemoryCallbacksRegistry()->Create("commensal_give_up_cache");
  ASSERT_NE(callback, nullptr);
  EXPECT_TRUE(callback->Execute());
  EXPECT_EQ(memory().stats().device, Bytes{});
  EXPECT_FALSE(callback->Execute());  // nothing left
}

TEST_F(ElasticCudaAllocatorTest, FreeMemoryIsSeenThroughTheLimit) {
  calls_.free = 100U << 20U;
  calls_.total = 1U << 30U;
  EXPECT_EQ(allocator_.getMemoryInfo(0), std::make_pair(calls_.free, calls_.total));
  const c10::DataPtr block = allocator_.allocate(4U << 20U);
  (void)memory().set_limit(64_MiB);
  const auto [free, total] = allocator_.getMemoryInfo(0);
  EXPECT_EQ(total, 64U << 20U);
  EXPECT_EQ(free, (64_MiB - memory().stats().device).count());
  std::size_t largest = 0;
  EXPECT_CALL(native_, cacheInfo(0, &largest)).WillOnce([](auto, std::size_t* most) { *most = 5; });
  allocator_.cacheInfo(0, &largest);
  EXPECT_EQ(largest, free);
}

// --- what PyTorch is told ------------------------------------------------------------------

TEST_F(ElasticCudaAllocatorTest, StatisticsAreOfBothTogether) {
  theirs_.allocated_bytes[0] = {.current = 1000, .peak = 5000, .allocated = 9000, .freed = 8000};
  c10::DataPtr block = allocator_.allocate(1000);
  c10::DataPtr large = allocator_.allocate(3U << 20U);
  auto stats = allocator_.getDeviceStats(0);
  const std::int64_t own = 1024 + (3 << 20);
  EXPECT_EQ(all(stats.allocated_bytes).current, 1000 + own);
  EXPECT_EQ(all(stats.allocated_bytes).allocated, 9000 + own);
  EXPECT_EQ(all(stats.allocated_bytes).freed, 8000);
  EXPECT_EQ(all(stats.requested_bytes).current, 1000 + (3 << 20));
  EXPECT_EQ(all(stats.allocation).current, 2);
  EXPECT_EQ(stats.allocation[1].current, 1);  // small
  EXPECT_EQ(stats.allocation[2].current, 1);  // large
  EXPECT_GE(all(stats.reserved_bytes).current, own);
  large.clear();
  stats = allocator_.getDeviceStats(0);
  EXPECT_EQ(all(stats.allocated_bytes).current, 1000 + 1024);
  EXPECT_EQ(all(stats.allocated_bytes).freed, 8000 + (3 << 20));
}

TEST_F(ElasticCudaAllocatorTest, ThePeakIsOfTheSum) {
  c10::DataPtr own = allocator_.allocate(1U << 20U);
  own.clear();
  EXPECT_EQ(all(allocator_.getDeviceStats(0).allocated_bytes).peak, 1 << 20);
  // The delegate serves as much while ours has nothing: no higher.
  theirs_.allocated_bytes[0] = {.current = 1 << 20, .peak = 1 << 20, .allocated = 1 << 20};
  begin_capture();
  const c10::DataPtr theirs = allocator_.allocate(1U << 20U);
  end_capture();
  EXPECT_EQ(all(allocator_.getDeviceStats(0).allocated_bytes).peak, 1 << 20);
  own = allocator_.allocate(1U << 20U);  // and now beside it
  EXPECT_EQ(all(allocator_.getDeviceStats(0).allocated_bytes).peak, 2 << 20);
  own.clear();
  EXPECT_CALL(native_, resetPeakStats(0));
  allocator_.resetPeakStats(0);
  EXPECT_EQ(all(allocator_.getDeviceStats(0).allocated_bytes).peak, 1 << 20);
  EXPECT_CALL(native_, resetAccumulatedStats(0));
  allocator_.resetAccumulatedStats(0);
  theirs_.allocated_bytes[0].allocated = 0;
  EXPECT_EQ(all(allocator_.getDeviceStats(0).allocated_bytes).allocated, 0);
}

TEST_F(ElasticCudaAllocatorTest, ReservedMemoryHasAPeakOfItsOwn) {
  (void)allocator_.allocate(32U << 20U);
  EXPECT_CALL(native_, emptyCache(kNoPool));
  allocator_.emptyCache(kNoPool);
  EXPECT_EQ(all(allocator_.getDeviceStats(0).reserved_bytes).current, 0);
  EXPECT_GE(all(allocator_.getDeviceStats(0).reserved_bytes).peak, 32 << 20);
  allocator_.resetPeakStats(0);
  EXPECT_EQ(all(allocator_.getDeviceStats(0).reserved_bytes).peak, 0);
}

TEST_F(ElasticCudaAllocatorTest, ABlockHeldBackIsActiveAndNotAllocated) {
  c10::DataPtr block = allocator_.allocate(1U << 20U);
  allocator_.recordStream(block, stream(7));
  block.clear();
  const auto stats = allocator_.getDeviceStats(0);
  EXPECT_EQ(all(stats.allocated_bytes).current, 0);
  EXPECT_EQ(all(stats.requested_bytes).current, 1 << 20);  // as PyTorch's own
  EXPECT_EQ(all(stats.active_bytes).current, 1 << 20);
  EXPECT_EQ(all(stats.active).current, 1);
}

TEST_F(ElasticCudaAllocatorTest, ASnapshotsBlocksAddUpToTheirSegments) {
  EXPECT_CALL(native_, snapshot(kNoPool, true)).WillOnce([](auto, auto) {
    MockCudaAllocator::SnapshotInfo theirs;
    theirs.segments.resize(1);
    return theirs;
  });
  const c10::DataPtr kept = allocator_.allocate(3000);
  calls_.stream = FakeCudaCalls::handle(9);
  const c10::DataPtr side = allocator_.allocate(5U << 20U);
  c10::DataPtr waits = allocator_.allocate(1U << 20U);
  void* const waiting = waits.get();
  allocator_.recordStream(waits, stream(7));
  waits.clear();
  const auto snapshot = allocator_.snapshot(kNoPool, true);
  ASSERT_EQ(snapshot.segments.size(), 3U);  // the delegate's first
  std::size_t found = 0;
  for (std::size_t i = 1; i < snapshot.segments.size(); ++i) {
    const auto& segment = snapshot.segments[i];
    std::size_t sum = 0;
    std::size_t address = segment.address;
    for (const auto& block : segment.blocks) {
      sum += block.size;
      if (address == reinterpret_cast<std::size_t>(kept.get())) {
        EXPECT_TRUE(block.allocated && block.active);
        EXPECT_EQ(block.requested_size, 3000U);
        EXPECT_EQ(block.size, 3072U);
        EXPECT_EQ(segment.stream, nullptr);
        ++found;
      }
      if (address == reinterpret_cast<std::size_t>(waiting)) {
        EXPECT_TRUE(!block.allocated && block.active);
        EXPECT_EQ(segment.stream, FakeCudaCalls::handle(9));
        ++found;
      }
      address += block.size;
    }
    EXPECT_EQ(sum, segment.total_size);
    EXPECT_TRUE(segment.is_expandable);
  }
  EXPECT_EQ(found, 2U);
}

TEST_F(ElasticCudaAllocatorTest, ASnapshotOfAPoolIsTheDelegatesAlone) {
  (void)allocator_.allocate(3000);
  EXPECT_CALL(native_, snapshot(kGraph, false)).WillOnce([](auto, auto) {
    return MockCudaAllocator::SnapshotInfo{};
  });
  EXPECT_TRUE(allocator_.snapshot(kGraph, false).segments.empty());
}

// NCCL, with TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK, follows segments and registers those
// that there are, as a snapshot shows them.
TEST_F(ElasticCudaAllocatorTest, WhatIsShownToWhoRegistersMemoryStays) {
  ON_CALL(native_, snapshot(_, _)).WillByDefault([](auto, auto) {
    return MockCudaAllocator::SnapshotInfo{};
  });
  const c10::DataPtr block = allocator_.allocate(4U << 20U);
  (void)allocator_.snapshot(kNoPool, true);  // for people
  EXPECT_EQ(memory().stats().kept, 0_B);
  EXPECT_CALL(native_, attachAllocatorTraceTracker(_));
  allocator_.attachAllocatorTraceTracker([](const auto&) {});
  EXPECT_EQ(memory().stats().kept, 0_B);
  for (int i = 0; i < 2; ++i) (void)allocator_.snapshot(kNoPool, true);
  EXPECT_EQ(memory().stats().kept, 4_MiB);
  const c10::DataPtr later = allocator_.allocate(4U << 20U);  // nobody was told
  const LimitTicket ticket = memory().set_limit(1_MiB);
  EXPECT_EQ(ticket.deferred, 3_MiB);
  EXPECT_EQ(ticket.reason,
            "stays where it is: 4 MiB (a library that registers memory was told of it)");
  EXPECT_EQ(memory_.source(0).tier_at(block.get()), Tier::kDevice);
  EXPECT_EQ(memory_.source(0).tier_at(later.get()), Tier::kHost);
}

TEST_F(ElasticCudaAllocatorTest, WhatTheDelegateHoldsCountsAgainstTheLimit) {
  const c10::DataPtr block = allocator_.allocate(8U << 20U);
  begin_capture();
  const auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  theirs_.reserved_bytes[kAll].current = 20 << 20;
  const c10::DataPtr captured = allocator_.allocate(512);
  end_capture();
  EXPECT_EQ(memory().stats().outside, 20_MiB);
  EXPECT_TRUE(memory().set_limit(24_MiB).complete());
  EXPECT_LE(memory().stats().device, 4_MiB);
  EXPECT_LE(allocator_.getMemoryInfo(0).first, (4_MiB).count());
}

TEST_F(ElasticCudaAllocatorTest, ABlockHasTheTagOfItsRegion) {
  memory_.tag = memory().open_tag("weights");
  c10::DataPtr tagged = allocator_.allocate(3000);
  memory_.tag = 0;
  const c10::DataPtr plain = allocator_.allocate(3000);
  EXPECT_EQ(memory().tags().at(0).live, 3072_B);
  EXPECT_TRUE(memory().park_tag(1).complete());
  EXPECT_EQ(memory_.source(0).tier_at(tagged.get()), Tier::kHost);
  EXPECT_EQ(memory_.source(0).tier_at(plain.get()), Tier::kDevice);
  EXPECT_EQ(all(allocator_.getDeviceStats(0).allocated_bytes).current, 2 * 3072);
  tagged.clear();
  EXPECT_EQ(memory().tags().at(0).live, 0_B);
}

TEST_F(ElasticCudaAllocatorTest, TheHistoryTellsOurBlocksInPyTorchsFormat) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  struct Stack final : c10::GatheredContext {};
  const auto gather = []() -> std::shared_ptr<c10::GatheredContext> {
    return std::make_shared<Stack>();
  };
  (void)allocator_.allocate(512);  // not recorded
  allocator_.recordHistory(true, gather, 100, c10::CachingDeviceAllocator::RecordContext::ALL,
                           false, {});
  std::string compiled = "a graph";
  allocator_.pushCompileContext(compiled);
  allocator_.setUserMetadata("mine");
  c10::DataPtr block = allocator_.allocate(1000);
  const auto address = reinterpret_cast<std::size_t>(block.get());
  allocator_.popCompileContext();
  EXPECT_CALL(native_, snapshot(kNoPool, true)).WillRepeatedly([](auto, auto) {
    return MockCudaAllocator::SnapshotInfo{};
  });
  auto snapshot = allocator_.snapshot(kNoPool, true);
  bool with_stack = false;
  for (const auto& segment : snapshot.segments) {
    for (const auto& entry : segment.blocks) with_stack |= entry.context_when_allocated != nullptr;
  }
  EXPECT_TRUE(with_stack);
  block.clear();
  snapshot = allocator_.snapshot(kNoPool, true);
  ASSERT_EQ(snapshot.device_traces.size(), 1U);
  const auto& trace = snapshot.device_traces[0];
  ASSERT_EQ(trace.size(), 3U);
  EXPECT_EQ(trace[0].action_, Entry::ALLOC);
  EXPECT_EQ(trace[1].action_, Entry::FREE_REQUESTED);
  EXPECT_EQ(trace[2].action_, Entry::FREE_COMPLETED);
  for (const Entry& entry : trace) {
    EXPECT_EQ(entry.addr_, address);
    EXPECT_EQ(entry.size_, 1000U);  // as asked, as PyTorch's own has it
    EXPECT_NE(entry.context_, nullptr);
    EXPECT_EQ(entry.user_metadata_, "mine");
  }
  EXPECT_EQ(trace[0].compile_context_, "a graph");
  EXPECT_EQ(trace[1].compile_context_, "");
  const std::time_t now = std::time(nullptr);
  EXPECT_NEAR(static_cast<double>(trace[0].time_.t_) / 1e6, static_cast<double>(now), 60.0);
  allocator_.recordHistory(false, nullptr, 0, c10::CachingDeviceAllocator::RecordContext::NEVER,
                           true, {});
  (void)allocator_.allocate(1000);
  snapshot = allocator_.snapshot(kNoPool, true);
  EXPECT_TRUE(snapshot.device_traces.empty() || snapshot.device_traces[0].empty());
}

TEST_F(ElasticCudaAllocatorTest, TheHistoryIsBoundedAndSkipsWhatItIsToldTo) {
  allocator_.recordHistory(true, nullptr, 4, c10::CachingDeviceAllocator::RecordContext::NEVER,
                           false, {"free_requested"});
  for (int i = 0; i < 10; ++i) (void)allocator_.allocate(1000);
  EXPECT_CALL(native_, snapshot(kNoPool, true)).WillOnce([](auto, auto) {
    return MockCudaAllocator::SnapshotInfo{};
  });
  const auto snapshot = allocator_.snapshot(kNoPool, true);
  ASSERT_EQ(snapshot.device_traces.size(), 1U);
  ASSERT_EQ(snapshot.device_traces[0].size(), 4U);
  for (const auto& entry : snapshot.device_traces[0]) {
    EXPECT_NE(entry.action_, c10::CachingDeviceAllocator::TraceEntry::FREE_REQUESTED);
  }
}

TEST_F(ElasticCudaAllocatorTest, WhatIsNotedBeforeTheFirstBlockIsInTheHistoryToo) {
  EXPECT_CALL(native_, isHistoryEnabled()).WillOnce(Return(true));
  EXPECT_TRUE(allocator_.isHistoryEnabled());
  const std::vector<std::pair<std::string, std::string>> annotation{{"name", "a step"}};
  EXPECT_CALL(native_, recordAnnotation(annotation));
  allocator_.recordAnnotation(annotation);
  allocator_.recordHistory(true, nullptr, 10, c10::CachingDeviceAllocator::RecordContext::NEVER,
                           false, {});
  allocator_.setUserMetadata("mine");
  std::string compiled = "a graph";
  allocator_.pushCompileContext(compiled);
  (void)allocator_.allocate(1000);
  std::thread other([&] { (void)allocator_.allocate(1000); });
  other.join();
  allocator_.popCompileContext();
  EXPECT_CALL(native_, snapshot(kNoPool, true)).WillOnce([](auto, auto) {
    return MockCudaAllocator::SnapshotInfo{};
  });
  const auto snapshot = allocator_.snapshot(kNoPool, true);
  ASSERT_EQ(snapshot.device_traces.size(), 1U);
  ASSERT_EQ(snapshot.device_traces[0].size(), 7U);  // the first one's begin with a chunk
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(snapshot.device_traces[0][i].user_metadata_, "mine");
    EXPECT_EQ(snapshot.device_traces[0][i].compile_context_, i < 4 ? "a graph" : "");
  }
}

// What a snapshot's segments hold is what came and did not go again, and blocks lie on it.
void expect_segments_add_up(const MockCudaAllocator::SnapshotInfo& snapshot) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  std::map<std::size_t, std::size_t> mapped;  // 64 KiB each
  constexpr std::size_t kStep = 64U << 10U;
  for (const Entry& entry : snapshot.device_traces.at(0)) {
    const bool came = entry.action_ == Entry::SEGMENT_MAP;
    if (came || entry.action_ == Entry::SEGMENT_UNMAP) {
      for (std::size_t at = entry.addr_; at < entry.addr_ + entry.size_; at += kStep) {
        if (came) {
          EXPECT_TRUE(mapped.emplace(at, kStep).second);
        } else {
          EXPECT_EQ(mapped.erase(at), 1U);
        }
      }
    } else if (entry.action_ == Entry::ALLOC) {
      EXPECT_TRUE(mapped.contains(entry.addr_ / kStep * kStep));
      EXPECT_TRUE(mapped.contains((entry.addr_ + entry.size_ - 1) / kStep * kStep));
    }
  }
  std::size_t reserved = 0;
  for (const auto& segment : snapshot.segments) {
    reserved += segment.total_size;
    EXPECT_TRUE(mapped.contains(segment.address));
  }
  EXPECT_EQ(mapped.size() * kStep, reserved);
}

TEST_F(ElasticCudaAllocatorTest, TheHistoryTellsWhichChunksComeAndGo) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  struct Stack final : c10::GatheredContext {};
  const auto gather = []() -> std::shared_ptr<c10::GatheredContext> {
    return std::make_shared<Stack>();
  };
  ON_CALL(native_, snapshot(_, _)).WillByDefault([](auto, auto) {
    return MockCudaAllocator::SnapshotInfo{};
  });
  allocator_.recordHistory(true, gather, 1000, c10::CachingDeviceAllocator::RecordContext::ALL,
                           false, {});
  c10::DataPtr block = allocator_.allocate(4U << 20U);
  calls_.stream = FakeCudaCalls::handle(7);
  c10::DataPtr on_side = allocator_.allocate(1000);
  calls_.stream = nullptr;
  auto snapshot = allocator_.snapshot(kNoPool, true);
  expect_segments_add_up(snapshot);
  ASSERT_EQ(snapshot.device_traces[0].size(), 4U);
  for (const std::size_t at : {0U, 2U}) {
    const Entry& came = snapshot.device_traces[0][at];
    EXPECT_EQ(came.action_, Entry::SEGMENT_MAP);
    EXPECT_NE(came.context_, nullptr);  // who needed it
    EXPECT_EQ(came.stream_, at == 0 ? nullptr : FakeCudaCalls::handle(7));
  }
  block.clear();
  allocator_.emptyCache(kNoPool);
  snapshot = allocator_.snapshot(kNoPool, true);
  EXPECT_EQ(snapshot.device_traces[0].back().action_, Entry::SEGMENT_UNMAP);
  EXPECT_EQ(snapshot.device_traces[0].back().size_, 4U << 20U);
  expect_segments_add_up(snapshot);
  on_side.clear();
  (void)memory().release_cached();  // by a limit, say: the next one who asks is told
  snapshot = allocator_.snapshot(kNoPool, true);
  EXPECT_TRUE(snapshot.segments.empty());
  expect_segments_add_up(snapshot);
  const std::size_t told = snapshot.device_traces[0].size();
  EXPECT_EQ(allocator_.snapshot(kNoPool, true).device_traces[0].size(), told);  // once
}

TEST_F(ElasticCudaAllocatorTest, ChunksFromBeforeTheRecordingAreNotToldAndKindsAreSkipped) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  ON_CALL(native_, snapshot(_, _)).WillByDefault([](auto, auto) {
    return MockCudaAllocator::SnapshotInfo{};
  });
  const auto segments_told = [&] {
    const auto snapshot = allocator_.snapshot(kNoPool, true);
    std::vector<Entry::Action> told;
    if (snapshot.device_traces.empty()) return told;
    for (const Entry& entry : snapshot.device_traces[0]) {
      if (entry.action_ == Entry::SEGMENT_MAP || entry.action_ == Entry::SEGMENT_UNMAP) {
        told.push_back(entry.action_);
      }
    }
    return told;
  };
  const auto record = [&](bool on, const std::vector<std::string>& skipped) {
    allocator_.recordHistory(on, nullptr, 100, c10::CachingDeviceAllocator::RecordContext::NEVER,
                             true, skipped);
  };
  (void)allocator_.allocate(4U << 20U);
  record(true, {});
  (void)allocator_.allocate(4U << 20U);  // where the first one was
  EXPECT_TRUE(segments_told().empty());
  allocator_.emptyCache(kNoPool);
  EXPECT_THAT(segments_told(), ElementsAre(Entry::SEGMENT_UNMAP));
  record(false, {});
  (void)allocator_.allocate(4U << 20U);  // while nothing is recorded
  record(true, {"segment_map"});
  allocator_.emptyCache(kNoPool);
  (void)allocator_.allocate(4U << 20U);
  EXPECT_THAT(segments_told(), ElementsAre(Entry::SEGMENT_UNMAP));
}

TEST_F(ElasticCudaAllocatorTest, TrackersHearOfOurBlocksAndOfTheDelegatesAndOfNoSegment) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  std::vector<Entry::Action> heard;
  allocator_.recordHistory(true, nullptr, 10, c10::CachingDeviceAllocator::RecordContext::NEVER,
                           false, {});
  EXPECT_CALL(native_, attachAllocatorTraceTracker(_));
  allocator_.attachAllocatorTraceTracker(
      [&](const Entry& entry) { heard.push_back(entry.action_); });
  (void)allocator_.allocate(1000);
  EXPECT_THAT(heard, ElementsAre(Entry::ALLOC, Entry::FREE_REQUESTED, Entry::FREE_COMPLETED));
}

// --- other processes and devices -----------------------------------------------------------

TEST_F(ElasticCudaAllocatorTest, OurBlocksAreNotSharedAndSaySo) {
  const c10::DataPtr block = allocator_.allocate(1000);
  try {
    (void)allocator_.shareIpcHandle(block.get());
    FAIL() << "shared";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be shared with another process"));
  }
  std::size_t size = 0;
  EXPECT_THROW((void)allocator_.getBaseAllocation(block.get(), &size), c10::Error);
  int theirs = 0;
  EXPECT_CALL(native_, getBaseAllocation(&theirs, &size)).WillOnce(Return(&theirs));
  EXPECT_EQ(allocator_.getBaseAllocation(&theirs, &size), &theirs);
  EXPECT_CALL(native_, shareIpcHandle(&theirs));
  (void)allocator_.shareIpcHandle(&theirs);
}

// F16: what is to be shared goes to PyTorch's own memory, unless a graph knows where it is.
TEST_F(ElasticCudaAllocatorTest, ABlockOfOursMayLeaveUntilAGraphIsCaptured) {
  const c10::DataPtr block = allocator_.allocate(1000);
  int theirs = 0;
  EXPECT_FALSE(allocator_.may_leave(&theirs));
  allocator_.beginAllocateToPool(0, {0, 9}, [](cudaStream_t) { return true; });  // no graph
  allocator_.endAllocateToPool(0, {0, 9});
  EXPECT_TRUE(allocator_.may_leave(block.get()));
  ElasticCudaAllocator::serve_by_delegate(true);
  EXPECT_FALSE(ours(allocator_.allocate(1000)));
  std::thread([&] { EXPECT_TRUE(ours(allocator_.allocate(1000))); }).join();
  ElasticCudaAllocator::serve_by_delegate(false);
  EXPECT_TRUE(ours(allocator_.allocate(1000)));
  begin_capture();
  end_capture();
  EXPECT_FALSE(allocator_.may_leave(block.get()));
}

TEST_F(ElasticCudaAllocatorTest, OthersBlocksAreImportedByTheDelegate) {
  const auto imported = std::make_shared<int>(7);
  EXPECT_CALL(native_, getIpcDevPtr("a handle")).WillOnce(Return(imported));
  EXPECT_EQ(allocator_.getIpcDevPtr("a handle"), imported);
}

TEST_F(ElasticCudaAllocatorTest, APeerGetsAccessToOurMemoryToo) {
  EXPECT_CALL(native_, enablePeerAccess(0, 1)).Times(1);
  EXPECT_CALL(native_, enablePeerAccess(1, 0)).Times(1);
  (void)allocator_.allocate(1000);    // of device 0
  allocator_.enablePeerAccess(1, 0);  // device 1 reaches it
  EXPECT_THAT(memory_.allowed, ElementsAre(std::pair(0, 1)));
  allocator_.enablePeerAccess(0, 1);  // there is no memory of device 1 yet
  EXPECT_EQ(memory_.allowed.size(), 1U);
  calls_.device = 1;
  (void)allocator_.allocate(1000);
  EXPECT_THAT(memory_.allowed, ElementsAre(std::pair(0, 1), std::pair(1, 0)));
}

TEST_F(ElasticCudaAllocatorTest, AccessThatIsRefusedIsAnErrorWithItsReason) {
  (void)allocator_.allocate(1000);
  memory_.unwelcome = 1;
  try {
    allocator_.enablePeerAccess(1, 0);
    FAIL() << "let in";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("GPU 1 gets no access to memory of GPU 0: refused"));
  }
  memory_.unwelcome = -1;
  allocator_.enablePeerAccess(1, 0);  // PyTorch asks again before the next copy
  EXPECT_THAT(memory_.allowed, ElementsAre(std::pair(0, 1)));
}

TEST_F(ElasticCudaAllocatorTest, CopiesOfOurBlocksAreOurs) {
  const c10::DataPtr block = allocator_.allocate(1000);
  char theirs[8];
  EXPECT_EQ(allocator_.memcpyAsync(block.get(), 0, theirs, 0, 8, nullptr, false), cudaSuccess);
  EXPECT_EQ(calls_.copies, 1);
  EXPECT_CALL(native_, memcpyAsync(_, 0, _, 1, 8, nullptr, true))
      .WillOnce(Return(cudaErrorInvalidValue));
  EXPECT_EQ(allocator_.memcpyAsync(theirs, 0, theirs + 1, 1, 8, nullptr, true),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace commensal::elastic_cuda_allocator_test
