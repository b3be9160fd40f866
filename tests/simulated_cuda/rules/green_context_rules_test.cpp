// SPDX-License-Identifier: Apache-2.0
// The documented rules of multiprocessors as a resource, and of green contexts.
#include "tests/simulated_cuda/rules/driver_test.h"

namespace commensal::simulated_cuda::green_context_rules_test {
namespace {

class GreenContextRules : public DriverTest {
 protected:
  CUdevResource whole() {
    CUdevResource resource{};
    EXPECT_EQ(cuDeviceGetDevResource(device_, &resource, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    return resource;
  }

  /// One group of at least so many multiprocessors.
  CUdevResource group(unsigned least) {
    const CUdevResource input = whole();
    CUdevResource made{};
    unsigned groups = 1;
    EXPECT_EQ(cuDevSmResourceSplitByCount(&made, &groups, &input, nullptr, 0, least), CUDA_SUCCESS);
    EXPECT_EQ(groups, 1U);
    return made;
  }

  CUgreenCtx make_green(unsigned least) {
    CUdevResource part = group(least);
    CUdevResourceDesc descriptor = nullptr;
    EXPECT_EQ(cuDevResourceGenerateDesc(&descriptor, &part, 1), CUDA_SUCCESS);
    CUgreenCtx green = nullptr;
    EXPECT_EQ(cuGreenCtxCreate(&green, descriptor, device_, CU_GREEN_CTX_DEFAULT_STREAM),
              CUDA_SUCCESS);
    return green;
  }

  static CUstream make_stream_of(CUgreenCtx green) {
    CUstream stream = nullptr;
    EXPECT_EQ(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    return stream;
  }

  bool rules_of_sm_90() {
    int major = 0;
    EXPECT_EQ(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device_),
              CUDA_SUCCESS);
    return major >= 9;
  }
};

// cuDeviceGetDevResource: all multiprocessors, and in which steps they are divided. "On Compute
// Architecture 9.0+: The minimum count is 8 SMs and must be a multiple of 8."
TEST_F(GreenContextRules, ADeviceTellsItsMultiprocessors) {
  int count = 0;
  ASSERT_EQ(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_),
            CUDA_SUCCESS);
  const CUdevResource resource = whole();
  EXPECT_EQ(resource.type, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(resource.sm.smCount, static_cast<unsigned>(count));
  if (rules_of_sm_90()) {
    EXPECT_EQ(resource.sm.minSmPartitionSize, 8U);
    EXPECT_EQ(resource.sm.smCoscheduledAlignment, 8U);
  }
}

// "... often rounding up and aligning the minCount".
TEST_F(GreenContextRules, AGroupIsRoundedUp) {
  if (!rules_of_sm_90()) GTEST_SKIP() << "sizes of compute capability 9.0";
  EXPECT_EQ(group(0).sm.smCount, 8U);
  EXPECT_EQ(group(8).sm.smCount, 8U);
  EXPECT_EQ(group(9).sm.smCount, 16U);
  EXPECT_EQ(group(64).sm.smCount, 64U);
}

// "If result is NULL, the API simulates a split"; else it makes as many groups as fit, at most as
// many as there is room for. "the remaining is placed in here".
TEST_F(GreenContextRules, ASplitMakesEqualGroupsAndLeavesTheRest) {
  const CUdevResource input = whole();
  unsigned possible = 0;
  ASSERT_EQ(cuDevSmResourceSplitByCount(nullptr, &possible, &input, nullptr, 0, 16), CUDA_SUCCESS);
  EXPECT_GE(possible, 2U);
  CUdevResource groups[2] = {};
  CUdevResource rest{};
  unsigned made = 2;
  ASSERT_EQ(cuDevSmResourceSplitByCount(groups, &made, &input, &rest, 0, 16), CUDA_SUCCESS);
  EXPECT_EQ(made, 2U);
  EXPECT_EQ(groups[0].sm.smCount, groups[1].sm.smCount);
  EXPECT_EQ(groups[0].sm.smCount + groups[1].sm.smCount + rest.sm.smCount, input.sm.smCount);
}

// "Value of minCount must be between 0 and the SM count specified in input": a card answers that
// such groups cannot be made.
TEST_F(GreenContextRules, WrongArgumentsOfASplitAreRefused) {
  const CUdevResource input = whole();
  CUdevResource made{};
  unsigned groups = 1;
  EXPECT_EQ(cuDevSmResourceSplitByCount(&made, &groups, &input, nullptr, 0, input.sm.smCount + 1),
            CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  EXPECT_EQ(cuDevSmResourceSplitByCount(&made, nullptr, &input, nullptr, 0, 8),
            CUDA_ERROR_INVALID_VALUE);
  CUdevResource none{};
  EXPECT_NE(cuDevSmResourceSplitByCount(&made, &groups, &none, nullptr, 0, 8), CUDA_SUCCESS);
  EXPECT_NE(cuDeviceGetDevResource(device_, &made, CU_DEV_RESOURCE_TYPE_INVALID), CUDA_SUCCESS);
}

// "the output results cannot be split again without first creating a descriptor and a green context
// with that descriptor."
TEST_F(GreenContextRules, AGroupIsSplitAgainOnlyAsAGreenContexts) {
  if (!rules_of_sm_90()) GTEST_SKIP() << "sizes of compute capability 9.0";
  const CUdevResource part = group(32);
  CUdevResource smaller{};
  unsigned groups = 1;
  EXPECT_NE(cuDevSmResourceSplitByCount(&smaller, &groups, &part, nullptr, 0, 8), CUDA_SUCCESS);
  const CUgreenCtx green = make_green(32);
  CUdevResource own{};
  ASSERT_EQ(cuGreenCtxGetDevResource(green, &own, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  EXPECT_EQ(own.sm.smCount, 32U);
  groups = 1;
  EXPECT_EQ(cuDevSmResourceSplitByCount(&smaller, &groups, &own, nullptr, 0, 8), CUDA_SUCCESS);
  EXPECT_EQ(smaller.sm.smCount, 8U);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
}

// CU_GREEN_CTX_DEFAULT_STREAM: "Required". CU_STREAM_NON_BLOCKING: "This must be specified".
TEST_F(GreenContextRules, RequiredFlagsAreRequired) {
  CUdevResource part = group(8);
  CUdevResourceDesc descriptor = nullptr;
  ASSERT_EQ(cuDevResourceGenerateDesc(&descriptor, &part, 1), CUDA_SUCCESS);
  CUgreenCtx green = nullptr;
  EXPECT_EQ(cuGreenCtxCreate(&green, descriptor, device_, 0), CUDA_ERROR_INVALID_VALUE);
  const CUresult made_of_nothing =
      cuGreenCtxCreate(&green, nullptr, device_, CU_GREEN_CTX_DEFAULT_STREAM);
  if (passed_on_a_card(made_of_nothing)) {  // H200, driver 580
    EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  } else {
    EXPECT_EQ(made_of_nothing, CUDA_ERROR_INVALID_VALUE);
  }
  ASSERT_EQ(cuGreenCtxCreate(&green, descriptor, device_, CU_GREEN_CTX_DEFAULT_STREAM),
            CUDA_SUCCESS);
  CUstream stream = nullptr;
  EXPECT_EQ(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
}

// Streams of a green context are used as any other while the primary context is current.
TEST_F(GreenContextRules, ItsStreamsWorkWhileThePrimaryContextIsCurrent) {
  const CUgreenCtx green = make_green(16);
  const CUstream stream = make_stream_of(green);
  const Allocated memory(4096);
  Pinned result(4);
  const CUevent event = make_event();
  EXPECT_EQ(cuMemsetD32Async(memory.at(), 7, 1, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(nullptr, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(result.as(), memory.at(), 4, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(*result.as<std::uint32_t>(), 7U);
  CUgreenCtx told = nullptr;
  EXPECT_EQ(cuStreamGetGreenCtx(stream, &told), CUDA_SUCCESS);
  EXPECT_EQ(told, green);
  EXPECT_EQ(cuStreamGetGreenCtx(nullptr, &told), CUDA_SUCCESS);
  EXPECT_EQ(told, nullptr);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
}

// "should perform no implicit synchronization with the default stream".
TEST_F(GreenContextRules, TheDefaultStreamDoesNotWaitForItsStreams) {
  const CUgreenCtx green = make_green(8);
  const CUstream stream = make_stream_of(green);
  {
    const Allocated memory(4096);
    const Plug plug(stream);
    EXPECT_EQ(cuMemsetD32Async(memory.at(), 1, 1, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
}

// cuCtxRecordEvent: with the primary context "hEvent will capture all the activities of the primary
// context and its green contexts".
TEST_F(GreenContextRules, AnEventOfThePrimaryContextWaitsForItsGreenContexts) {
  const CUgreenCtx green = make_green(8);
  const CUstream stream = make_stream_of(green);
  const CUevent event = make_event();
  {
    const Plug plug(stream);
    EXPECT_EQ(cuCtxRecordEvent(context_, event), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  }
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
}

// cuCtxFromGreenCtx: "it can then be used to set the context current". Stream 0 is then the green
// context's own.
TEST_F(GreenContextRules, AConvertedOneIsMadeCurrent) {
  const CUgreenCtx green = make_green(8);
  CUcontext converted = nullptr;
  ASSERT_EQ(cuCtxFromGreenCtx(&converted, green), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxPushCurrent(converted), CUDA_SUCCESS);
  CUdevice device = -1;
  EXPECT_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, device_);
  CUgreenCtx told = nullptr;
  EXPECT_EQ(cuStreamGetGreenCtx(nullptr, &told), CUDA_SUCCESS);
  EXPECT_EQ(told, green);
  CUcontext popped = nullptr;
  EXPECT_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, converted);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
}

// "any subsequent API calls involving these streams (including cuStreamDestroy) will return
// CUDA_ERROR_CONTEXT_IS_DESTROYED."
TEST_F(GreenContextRules, StreamsOfADestroyedOneAreRefused) {
  const CUgreenCtx green = make_green(8);
  const CUstream stream = make_stream_of(green);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

// cuGreenCtxCreate "will retain the primary context on device dev".
TEST_F(GreenContextRules, ItKeepsThePrimaryContext) {
  const CUgreenCtx green = make_green(8);
  ASSERT_EQ(cuDevicePrimaryCtxRelease(device_), CUDA_SUCCESS);
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(device_, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 1);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, device_), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
}

}  // namespace
}  // namespace commensal::simulated_cuda::green_context_rules_test
