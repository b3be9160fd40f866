// SPDX-License-Identifier: Apache-2.0
// Checks which events count as ops that may wait.
#include "torch_ext/op_kind.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace commensal::op_kind_test {
namespace {

TEST(OpKindTest, OpsOnDataCount) {
  for (const std::string_view name : {"aten::add", "aten::convolution", "aten::copy_",
                                      "aten::viewer", "aten::zeros", "mylib::fused_step"}) {
    EXPECT_EQ(op_kind(name, true), OpKind::kOp) << name;
  }
}

TEST(OpKindTest, OpsThatTouchNoDataAreTransparent) {
  for (const std::string_view name :
       {"aten::view", "aten::as_strided", "aten::reshape", "aten::_conj", "aten::vsplit",
        "aten::empty", "aten::is_leaf", "aten::item", "profiler::_record_function_enter_new"}) {
    EXPECT_EQ(op_kind(name, true), OpKind::kTransparent) << name;
  }
}

TEST(OpKindTest, CollectivesAreToldApartByNamespace) {
  for (const std::string_view name : {"c10d::allreduce_", "_c10d_functional::wait_tensor",
                                      "_c10d_functional::all_gather_into_tensor"}) {
    EXPECT_EQ(op_kind(name, true), OpKind::kCollective) << name;
  }
}

TEST(OpKindTest, WrappersAreTransparentWhateverTheirName) {
  for (const std::string_view name :
       {"autograd::engine::evaluate_function: AddmmBackward0", "CheckpointFunction",
        "TorchDynamo Cache Lookup", "CompiledFunction", "MyFunction", "c10d::not_an_op",
        "torch::distributed::reducer::mul_out", ""}) {
    EXPECT_EQ(op_kind(name, false), OpKind::kTransparent) << name;
  }
}

TEST(OpKindTest, CompiledRegionsWaitAtTheirEntry) {
  for (const std::string_view name :
       {"Torch-Compiled Region: 0/0", "Torch-Compiled Region",
        "autograd::engine::evaluate_function: CompiledFunctionBackward"}) {
    EXPECT_EQ(op_kind(name, false), OpKind::kRegion) << name;
    EXPECT_TRUE(is_compiled_region(name)) << name;
  }
}

TEST(OpKindTest, CommunicationRangesAreToldByPrefix) {
  EXPECT_TRUE(is_communication_range("gloo:all_reduce"));
  EXPECT_TRUE(is_communication_range("nccl:broadcast"));
  EXPECT_FALSE(is_communication_range("Optimizer.step#Adam.step"));
  EXPECT_FALSE(is_communication_range("my gloo: range"));
}

TEST(OpKindTest, MessagesBetweenTwoRanksAreNoCollectives) {
  for (const char* all : {"gloo:all_reduce", "gloo:barrier", "gloo:broadcast", "nccl:all_gather"}) {
    EXPECT_TRUE(is_collective_range(all)) << all;
  }
  for (const char* two : {"gloo:send", "gloo:recv", "gloo:recvAnySource", "nccl:send 0->1"}) {
    EXPECT_FALSE(is_collective_range(two)) << two;
    EXPECT_TRUE(is_communication_range(two)) << two;
  }
  EXPECT_FALSE(is_collective_range("Optimizer.step#Adam.step"));
}

// Its twin: by its kind an allocation waits at no gate, which is right on a CPU.
TEST(OpKindTest, C14_AnAllocationIsToldFromWhatTouchesNoData) {
  for (const char* const name : {"aten::empty", "aten::empty_strided", "aten::empty_like"}) {
    EXPECT_TRUE(only_allocates(name)) << name;
    EXPECT_EQ(op_kind(name, true), OpKind::kTransparent) << name;
  }
  for (const char* const name : {"aten::view", "aten::zeros", "aten::new_empty", "empty"}) {
    EXPECT_FALSE(only_allocates(name)) << name;
  }
}

}  // namespace
}  // namespace commensal::op_kind_test
