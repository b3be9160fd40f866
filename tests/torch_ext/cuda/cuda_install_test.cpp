// SPDX-License-Identifier: Apache-2.0
// When ours takes the place of PyTorch's CUDA allocator, and when it says why not.
#include "torch_ext/cuda/cuda_install.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/torch_ext/cuda/mock_cuda_allocator.h"

namespace commensal::cuda_install_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::NiceMock;
using ::testing::Return;

constexpr std::uint8_t kOurPriority = 255;

// Works on the process's own allocator variable and leaves it as it was.
class CudaInstallTest : public ::testing::Test {
 protected:
  ~CudaInstallTest() override { set(native_); }

  static c10::cuda::CUDACachingAllocator::CUDAAllocator* current() {
    return c10::cuda::CUDACachingAllocator::allocator.load();
  }
  static void set(c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator) {
    c10::cuda::CUDACachingAllocator::allocator.store(allocator);
    c10::SetAllocator(c10::DeviceType::CUDA, allocator, kOurPriority);
  }

  c10::cuda::CUDACachingAllocator::CUDAAllocator* const native_ = current();
  NiceMock<MockCudaAllocator> other_;
};

TEST_F(CudaInstallTest, TakesBothPlacesAndAnswersWithTheNativeName) {
  ASSERT_NE(native_, nullptr);
  EXPECT_FALSE(cuda_allocator_is_ours());
  EXPECT_THAT(install_cuda_allocator(), IsEmpty());
  EXPECT_TRUE(cuda_allocator_is_ours());
  EXPECT_NE(current(), native_);
  EXPECT_EQ(c10::GetAllocator(c10::DeviceType::CUDA), current());
  EXPECT_EQ(current()->name(), "native");
  EXPECT_EQ(current()->raw_deleter(), native_->raw_deleter());
}

TEST_F(CudaInstallTest, ASecondCallDoesNothing) {
  ASSERT_THAT(install_cuda_allocator(), IsEmpty());
  const auto* const ours = current();
  EXPECT_THAT(install_cuda_allocator(), IsEmpty());
  EXPECT_EQ(current(), ours);
}

TEST_F(CudaInstallTest, P38_AnotherBackendIsRefusedWithItsName) {
  EXPECT_CALL(other_, name()).WillRepeatedly(Return("cudaMallocAsync"));
  set(&other_);
  EXPECT_THAT(install_cuda_allocator(), HasSubstr("'cudaMallocAsync'"));
  EXPECT_EQ(current(), &other_);
  EXPECT_EQ(c10::GetAllocator(c10::DeviceType::CUDA), &other_);
  EXPECT_FALSE(cuda_allocator_is_ours());
  set(native_);  // the twin: the same call where the backend is PyTorch's own
  EXPECT_THAT(install_cuda_allocator(), IsEmpty());
  EXPECT_TRUE(cuda_allocator_is_ours());
}

TEST_F(CudaInstallTest, ComesBeforeCuda) {
  EXPECT_CALL(other_, name()).WillRepeatedly(Return("native"));
  EXPECT_CALL(other_, initialized()).WillRepeatedly(Return(true));
  set(&other_);
  EXPECT_THAT(install_cuda_allocator(), HasSubstr("CUDA has been started already"));
  EXPECT_EQ(current(), &other_);
  EXPECT_FALSE(cuda_allocator_is_ours());
}

TEST_F(CudaInstallTest, KnowsWhenAnotherHasTakenItsPlace) {
  ASSERT_THAT(install_cuda_allocator(), IsEmpty());
  set(&other_);
  EXPECT_FALSE(cuda_allocator_is_ours());
}

TEST(CudaInstallComplaint, IsOneSentence) {
  EXPECT_THAT(cuda_install_complaint({.present = true, .initialized = false, .name = "native"}),
              IsEmpty());
  for (const CudaAllocatorFacts& facts :
       {CudaAllocatorFacts{.present = false, .initialized = false, .name = ""},
        CudaAllocatorFacts{.present = true, .initialized = false, .name = "pluggable"},
        CudaAllocatorFacts{.present = true, .initialized = true, .name = "native"}}) {
    const std::string complaint = cuda_install_complaint(facts);
    EXPECT_FALSE(complaint.empty());
    EXPECT_EQ(complaint.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace commensal::cuda_install_test
