// SPDX-License-Identifier: Apache-2.0
// What is remembered about ops by the pointers of their names.
#include "torch_ext/known_ops.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace commensal::known_ops_test {
namespace {

TEST(KnownOpsTest, AnOpIsUnknownUntilItIsAdded) {
  const auto ops = std::make_unique<KnownOps>();
  const char* const add = "aten::add";
  EXPECT_EQ(ops->find(add), nullptr);
  KnownOp& added = ops->add(add, OpKind::kOp);
  EXPECT_EQ(ops->find(add), &added);
  EXPECT_EQ(&ops->add(add, OpKind::kOp), &added);
  EXPECT_EQ(added.kind(), OpKind::kOp);
  EXPECT_EQ(ops->find("aten::mul"), nullptr);
}

TEST(KnownOpsTest, EqualNamesAtTwoPlacesAreTwoOps) {
  const auto ops = std::make_unique<KnownOps>();
  const char one[] = "aten::add";
  const char other[] = "aten::add";
  EXPECT_NE(&ops->add(one, OpKind::kOp), &ops->add(other, OpKind::kOp));
}

TEST(KnownOpsTest, WhatDoesNotFitSharesOneEntryOfNoKnownKind) {
  const auto ops = std::make_unique<KnownOps>();
  const std::vector<char> names(100'000);
  std::set<KnownOp*> entries;
  std::size_t without_kind = 0;
  for (const char& name : names) {
    KnownOp& op = ops->add(&name, OpKind::kTransparent);
    entries.insert(&op);
    if (op.kind() == OpKind::kUnknown) ++without_kind;
  }
  EXPECT_GT(entries.size(), KnownOps::kSlots / 2);
  EXPECT_LE(entries.size(), KnownOps::kSlots + 1);
  EXPECT_EQ(without_kind, names.size() - (entries.size() - 1));
}

TEST(KnownOpsTest, ThreadsThatAddTheSameOpsAgree) {
  const auto ops = std::make_unique<KnownOps>();
  const std::vector<char> names(1000);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const char& name : names) {
        KnownOp& op = ops->add(&name, OpKind::kOp);
        if (op.kind() != OpKind::kOp || ops->find(&name) != &op) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace commensal::known_ops_test
