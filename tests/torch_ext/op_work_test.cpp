// SPDX-License-Identifier: Apache-2.0
// Which ops are bound by arithmetic, which by memory, and which only call others.
#include "torch_ext/op_work.h"

#include <gtest/gtest.h>

#include "torch_ext/op_kind.h"

namespace commensal::op_work_test {
namespace {

TEST(OpWorkTest, ProductsAndConvolutionsCompute) {
  for (const char* name : {"aten::addmm", "aten::mm", "aten::bmm", "aten::mkldnn_convolution",
                           "aten::convolution_backward"}) {
    EXPECT_EQ(op_work(name), OpWork::kCompute) << name;
  }
}

TEST(OpWorkTest, ElementwiseOpsReductionsAndCopiesAreBoundByMemory) {
  for (const char* name : {"aten::add_", "aten::copy_", "aten::native_layer_norm", "aten::sum",
                           "aten::_softmax", "aten::threshold_backward"}) {
    EXPECT_EQ(op_work(name), OpWork::kMemory) << name;
  }
}

TEST(OpWorkTest, WhatCallsOthersOrIsNotKnownDoesNotCount) {
  for (const char* name : {"aten::linear", "aten::matmul", "aten::conv2d", "aten::layer_norm",
                           "aten::view", "add", "", "custom::mm", "aten::"}) {
    EXPECT_EQ(op_work(name), OpWork::kUnknown) << name;
  }
}

TEST(OpWorkTest, AnOpThatTouchesNoDataDoesNoWork) {
  for (const char* name : {"aten::as_strided", "aten::empty", "aten::t", "aten::reshape"}) {
    ASSERT_EQ(op_kind(name, true), OpKind::kTransparent) << name;
    EXPECT_EQ(op_work(name), OpWork::kUnknown) << name;
  }
}

TEST(OpWorkTest, KindsHaveNames) {
  EXPECT_EQ(to_string(OpWork::kCompute), "compute");
  EXPECT_EQ(to_string(OpWork::kMemory), "memory");
  EXPECT_EQ(to_string(OpWork::kUnknown), "unknown");
}

}  // namespace
}  // namespace commensal::op_work_test
