// SPDX-License-Identifier: Apache-2.0
// Every call reaches the delegate with its arguments, and its result comes back.
#include "torch_ext/cuda/forwarding_allocator.h"

#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>

#include <cstring>
#include <stdexcept>

#include "tests/torch_ext/cuda/mock_cuda_allocator.h"

namespace commensal::forwarding_allocator_test {
namespace {

using ::testing::_;
using ::testing::ByMove;
using ::testing::Ref;
using ::testing::Return;
using ::testing::SaveArg;
using ::testing::StrictMock;
using ::testing::Throw;

constexpr c10::DeviceIndex kDevice = 3;
const c10::MempoolId_t kPool{5, 7};

void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }
cudaStream_t stream_handle() { return reinterpret_cast<cudaStream_t>(0x51); }

int g_native_frees = 0;
int g_other_frees = 0;
void native_free(void* /*block*/) { ++g_native_frees; }
void other_free(void* /*block*/) { ++g_other_frees; }

c10::DataPtr block_with(c10::DeleterFnPtr deleter) {
  return {address(0x1000), address(0x1000), deleter, c10::Device(c10::DeviceType::CUDA, kDevice)};
}

class ForwardingAllocatorTest : public ::testing::Test {
 protected:
  ForwardingAllocatorTest() { g_native_frees = g_other_frees = 0; }

  StrictMock<MockCudaAllocator> native_;  // a call that no test expects fails it
  ForwardingAllocator allocator_{native_};
};

TEST_F(ForwardingAllocatorTest, BlocksKeepTheDelegatesDeleter) {
  EXPECT_CALL(native_, allocate(100)).WillOnce(Return(ByMove(block_with(&native_free))));
  {
    const c10::DataPtr block = allocator_.allocate(100);
    EXPECT_EQ(block.get(), address(0x1000));
    EXPECT_EQ(block.get_deleter(), &native_free);
    EXPECT_EQ(block.device(), c10::Device(c10::DeviceType::CUDA, kDevice));
  }
  EXPECT_EQ(g_native_frees, 1);
  EXPECT_CALL(native_, raw_deleter()).WillOnce(Return(&native_free));
  EXPECT_EQ(allocator_.raw_deleter(), &native_free);
}

TEST_F(ForwardingAllocatorTest, ForwardsTheBaseAllocator) {
  const c10::DataPtr block = block_with(&native_free);
  EXPECT_CALL(native_, is_simple_data_ptr(Ref(block))).WillOnce(Return(false));
  EXPECT_FALSE(allocator_.is_simple_data_ptr(block));
  EXPECT_CALL(native_, copy_data(address(1), address(2), 3));
  allocator_.copy_data(address(1), address(2), 3);
}

TEST_F(ForwardingAllocatorTest, ForwardsRawBlocks) {
  EXPECT_CALL(native_, raw_alloc(11)).WillOnce(Return(address(0x11)));
  EXPECT_EQ(allocator_.raw_alloc(11), address(0x11));
  EXPECT_CALL(native_, raw_alloc_with_stream(12, stream_handle())).WillOnce(Return(address(0x12)));
  EXPECT_EQ(allocator_.raw_alloc_with_stream(12, stream_handle()), address(0x12));
  EXPECT_CALL(native_, raw_delete(address(0x11)));
  allocator_.raw_delete(address(0x11));
  std::size_t size = 0;
  EXPECT_CALL(native_, getBaseAllocation(address(0x12), &size)).WillOnce(Return(address(0x10)));
  EXPECT_EQ(allocator_.getBaseAllocation(address(0x12), &size), address(0x10));
}

TEST_F(ForwardingAllocatorTest, ForwardsBothKindsOfRecordStream) {
  const c10::DataPtr block = block_with(&native_free);
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromExternal(stream_handle(), kDevice);
  EXPECT_CALL(native_, recordStream(Ref(block), stream));
  allocator_.recordStream(block, stream);
  EXPECT_CALL(native_, recordStream(Ref(block), stream.unwrap()));
  allocator_.recordStream(block, stream.unwrap());
}

TEST_F(ForwardingAllocatorTest, ForwardsItsLife) {
  EXPECT_CALL(native_, init(2));
  allocator_.init(2);
  EXPECT_CALL(native_, initialized()).WillOnce(Return(true));
  EXPECT_TRUE(allocator_.initialized());
  EXPECT_CALL(native_, enable(false));
  allocator_.enable(false);
  EXPECT_CALL(native_, isEnabled()).WillOnce(Return(true));
  EXPECT_TRUE(allocator_.isEnabled());
  EXPECT_CALL(native_, name()).WillOnce(Return("native"));
  EXPECT_EQ(allocator_.name(), "native");
}

TEST_F(ForwardingAllocatorTest, ForwardsLimitsAndCaches) {
  EXPECT_CALL(native_, emptyCache(kPool));
  allocator_.emptyCache(kPool);
  EXPECT_CALL(native_, getMemoryFraction(kDevice)).WillOnce(Return(0.25));
  EXPECT_EQ(allocator_.getMemoryFraction(kDevice), 0.25);
  EXPECT_CALL(native_, setMemoryFraction(0.5, kDevice));
  allocator_.setMemoryFraction(0.5, kDevice);
  EXPECT_CALL(native_, getMemoryInfo(kDevice)).WillOnce(Return(std::pair{1UL, 2UL}));
  EXPECT_EQ(allocator_.getMemoryInfo(kDevice), std::pair(1UL, 2UL));
  std::size_t largest = 0;
  EXPECT_CALL(native_, cacheInfo(kDevice, &largest));
  allocator_.cacheInfo(kDevice, &largest);
}

TEST_F(ForwardingAllocatorTest, ForwardsStatistics) {
  MockCudaAllocator::DeviceStats stats;
  stats.num_ooms = 9;
  EXPECT_CALL(native_, getDeviceStats(kDevice)).WillOnce(Return(stats));
  EXPECT_EQ(allocator_.getDeviceStats(kDevice).num_ooms, 9);
  EXPECT_CALL(native_, resetAccumulatedStats(kDevice));
  allocator_.resetAccumulatedStats(kDevice);
  EXPECT_CALL(native_, resetPeakStats(kDevice));
  allocator_.resetPeakStats(kDevice);
  EXPECT_CALL(native_, getExpandableSegmentSizes(kDevice))
      .WillOnce(Return(std::vector<MockCudaAllocator::StreamSegmentSize>{
          {stream_handle(), /*small=*/true, 21}}));
  EXPECT_EQ(allocator_.getExpandableSegmentSizes(kDevice).at(0).total_size, 21);
}

TEST_F(ForwardingAllocatorTest, ForwardsSnapshots) {
  MockCudaAllocator::SnapshotInfo info{};  // torch leaves its flags unset
  info.segments.resize(4);
  EXPECT_CALL(native_, snapshot(kPool, false)).WillOnce(Return(info));
  EXPECT_EQ(allocator_.snapshot(kPool, false).segments.size(), 4);
}

TEST_F(ForwardingAllocatorTest, ForwardsPools) {
  std::function<bool(cudaStream_t)> filter;
  EXPECT_CALL(native_, beginAllocateToPool(kDevice, kPool, _)).WillOnce(SaveArg<2>(&filter));
  allocator_.beginAllocateToPool(kDevice, kPool,
                                 [](cudaStream_t stream) { return stream == stream_handle(); });
  EXPECT_TRUE(filter(stream_handle()));
  EXPECT_FALSE(filter(nullptr));
  EXPECT_CALL(native_, endAllocateToPool(kDevice, kPool));
  allocator_.endAllocateToPool(kDevice, kPool);
  EXPECT_CALL(native_, releasePool(kDevice, kPool));
  allocator_.releasePool(kDevice, kPool);
  EXPECT_CALL(native_, getPoolUseCount(kDevice, kPool)).WillOnce(Return(6));
  EXPECT_EQ(allocator_.getPoolUseCount(kDevice, kPool), 6);
  const auto backing = std::make_shared<StrictMock<MockCudaAllocator>>();
  EXPECT_CALL(native_, createOrIncrefPool(kDevice, kPool,
                                          std::shared_ptr<ForwardingAllocator::Base>(backing)));
  allocator_.createOrIncrefPool(kDevice, kPool, backing);
  EXPECT_CALL(native_, setUseOnOOM(kDevice, kPool, true));
  allocator_.setUseOnOOM(kDevice, kPool, true);
  EXPECT_CALL(native_, setNoSplit(kDevice, kPool));
  allocator_.setNoSplit(kDevice, kPool);
  const std::unordered_set<void*> expected{address(1), address(2)};
  EXPECT_CALL(native_, checkPoolLiveAllocations(kDevice, kPool, expected)).WillOnce(Return(true));
  EXPECT_TRUE(allocator_.checkPoolLiveAllocations(kDevice, kPool, expected));
}

TEST_F(ForwardingAllocatorTest, ForwardsCheckpoints) {
  const auto state = std::make_shared<MockCudaAllocator::AllocatorState>();
  EXPECT_CALL(native_, getCheckpointState(kDevice, kPool)).WillOnce(Return(state));
  EXPECT_EQ(allocator_.getCheckpointState(kDevice, kPool), state);
  MockCudaAllocator::CheckpointDelta delta;
  delta.ptrs_freed.push_back(address(0x31));
  delta.dataptrs_allocd.push_back(block_with(&native_free));
  EXPECT_CALL(native_, setCheckpointPoolState(kDevice, state))
      .WillOnce(Return(ByMove(std::move(delta))));
  const auto got = allocator_.setCheckpointPoolState(kDevice, state);
  EXPECT_EQ(got.ptrs_freed.at(0), address(0x31));
  EXPECT_EQ(got.dataptrs_allocd.at(0).get_deleter(), &native_free);
}

TEST_F(ForwardingAllocatorTest, ForwardsSharingBetweenProcesses) {
  EXPECT_CALL(native_, shareIpcHandle(address(0x41)))
      .WillOnce(Return(MockCudaAllocator::ShareableHandle{8, "handle"}));
  const auto shared = allocator_.shareIpcHandle(address(0x41));
  EXPECT_EQ(shared.offset, 8);
  EXPECT_EQ(shared.handle, "handle");
  const auto memory = std::make_shared<int>(1);
  EXPECT_CALL(native_, getIpcDevPtr("handle")).WillOnce(Return(memory));
  EXPECT_EQ(allocator_.getIpcDevPtr("handle"), memory);
}

TEST_F(ForwardingAllocatorTest, ForwardsHistoryAndAnnotations) {
  using c10::CachingDeviceAllocator::RecordContext;
  const c10::CachingDeviceAllocator::CreateContextFn context =
      []() -> std::shared_ptr<c10::GatheredContext> { return nullptr; };
  const std::vector<std::string> skipped{"free_requested"};
  EXPECT_CALL(native_, isHistoryEnabled()).WillOnce(Return(true));
  EXPECT_TRUE(allocator_.isHistoryEnabled());
  EXPECT_CALL(native_, recordHistory(true, context, 17, RecordContext::ALL, true, skipped));
  allocator_.recordHistory(true, context, 17, RecordContext::ALL, true, skipped);
  const MockCudaAllocator::Annotation annotation{{"key", "value"}};
  EXPECT_CALL(native_, recordAnnotation(annotation));
  allocator_.recordAnnotation(annotation);
  std::string region = "region";
  EXPECT_CALL(native_, pushCompileContext(Ref(region)));
  allocator_.pushCompileContext(region);
  EXPECT_CALL(native_, popCompileContext());
  allocator_.popCompileContext();
  EXPECT_CALL(native_, setUserMetadata("mine"));
  allocator_.setUserMetadata("mine");
  EXPECT_CALL(native_, getUserMetadata()).WillOnce(Return("mine"));
  EXPECT_EQ(allocator_.getUserMetadata(), "mine");
}

TEST_F(ForwardingAllocatorTest, ForwardsObservers) {
  MockCudaAllocator::OutOfMemoryObserver observer;
  EXPECT_CALL(native_, attachOutOfMemoryObserver(_)).WillOnce(SaveArg<0>(&observer));
  std::size_t seen = 0;
  allocator_.attachOutOfMemoryObserver(
      [&seen](std::int64_t, std::size_t, std::size_t, std::size_t free) { seen = free; });
  observer(0, 1, 2, 33);
  EXPECT_EQ(seen, 33);
  c10::CachingDeviceAllocator::AllocatorTraceTracker tracker;
  EXPECT_CALL(native_, attachAllocatorTraceTracker(_)).WillOnce(SaveArg<0>(&tracker));
  allocator_.attachAllocatorTraceTracker([](const auto& /*entry*/) {});
  EXPECT_TRUE(tracker);
}

TEST_F(ForwardingAllocatorTest, ForwardsPeersAndCopies) {
  EXPECT_CALL(native_, enablePeerAccess(kDevice, 1));
  allocator_.enablePeerAccess(kDevice, 1);
  EXPECT_CALL(native_, memcpyAsync(address(1), 0, address(2), 1, 64, stream_handle(), true))
      .WillOnce(Return(cudaErrorNotSupported));
  EXPECT_EQ(allocator_.memcpyAsync(address(1), 0, address(2), 1, 64, stream_handle(), true),
            cudaErrorNotSupported);
}

TEST_F(ForwardingAllocatorTest, LetsTheOutOfMemoryErrorThrough) {
  EXPECT_CALL(native_, allocate(_))
      .WillOnce(Throw(c10::OutOfMemoryError({"here", "file", 1}, "CUDA out of memory")));
  EXPECT_THROW((void)allocator_.allocate(1), c10::OutOfMemoryError);
}

class Derived : public ForwardingAllocator {
 public:
  using ForwardingAllocator::ForwardingAllocator;
  using ForwardingAllocator::with_native_deleter;
};

TEST_F(ForwardingAllocatorTest, ShowsTheDelegateItsOwnDeleterAndLeavesTheBlockToItsOwner) {
  const Derived derived(native_);
  EXPECT_CALL(native_, raw_deleter()).WillRepeatedly(Return(&native_free));
  {
    const c10::DataPtr block = block_with(&other_free);
    const auto check = [&](const c10::DataPtr& shown) {
      EXPECT_EQ(shown.get(), block.get());
      EXPECT_EQ(shown.get_context(), block.get_context());
      EXPECT_EQ(shown.device(), block.device());
      EXPECT_EQ(shown.get_deleter(), &native_free);
    };
    derived.with_native_deleter(block, check);
    const auto fail = [](const c10::DataPtr&) { throw std::runtime_error("no event"); };
    EXPECT_THROW(derived.with_native_deleter(block, fail), std::runtime_error);
    EXPECT_EQ(g_native_frees + g_other_frees, 0);
  }
  EXPECT_EQ(g_native_frees, 0);
  EXPECT_EQ(g_other_frees, 1);
}

// A new PyTorch may add a function with a body to the interface: the compiler accepts a class that
// does not forward it. So no entry of the vtable may be anybody's but ours.
TEST(ForwardingAllocatorVtable, HasNoFunctionOfTheBaseClass) {
#if defined(__clang__) && defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "Clang's ASan surrounds the vtable with zones, so its length is not known";
#endif
#endif
  StrictMock<MockCudaAllocator> native;
  const ForwardingAllocator allocator(native);
  void* const* vtable = nullptr;
  std::memcpy(&vtable, static_cast<const void*>(&allocator), sizeof(vtable));
  Dl_info place{};
  const ElfW(Sym)* symbol = nullptr;
  ASSERT_NE(::dladdr1(vtable, &place, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)),
                      RTLD_DL_SYMENT),
            0);
  ASSERT_NE(symbol, nullptr);
  ASSERT_STREQ(place.dli_sname, "_ZTVN9commensal19ForwardingAllocatorE");
  const std::size_t entries = symbol->st_size / sizeof(void*) - 2;  // after offset and type
  EXPECT_GE(entries, 50U);  // PyTorch 2.11: 48 functions and two destructors
  for (std::size_t index = 0; index < entries; ++index) {
    Dl_info function{};
    ASSERT_NE(::dladdr(vtable[index], &function), 0);
    ASSERT_NE(function.dli_sname, nullptr) << "entry " << index;
    EXPECT_NE(std::string(function.dli_sname).find("9commensal19ForwardingAllocator"),
              std::string::npos)
        << function.dli_sname << " is not forwarded";
  }
}

}  // namespace
}  // namespace commensal::forwarding_allocator_test
