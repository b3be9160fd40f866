// SPDX-License-Identifier: Apache-2.0
// Checks when a thread enters and leaves the gate as its events nest.
#include "torch_ext/op_nesting.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace commensal::op_nesting_test {
namespace {

// Plays events as the callback does, and writes down what the gate is told.
class OpNestingTest : public ::testing::Test {
 protected:
  void begin(OpKind kind, const std::string& name = "region", bool shielded = false) {
    running_.push_back(kind);
    if (nesting_.is_inside()) {
      nesting_.begin_nested();
    } else {
      note(nesting_.begin_outermost(kind, ops_[name], shielded));
    }
  }

  void end() {
    const OpKind kind = running_.back();
    running_.pop_back();
    if (nesting_.is_nested()) {
      nesting_.end_nested();
    } else {
      note(nesting_.end_outermost(nesting_.is_outside() && kind == OpKind::kRegion));
    }
  }

  void begin_part(const std::string& name) { note(nesting_.begin_part(ops_[name])); }
  void end_part() { note(nesting_.end_part()); }

  std::vector<std::string> log_;

 private:
  void note(const GateCalls& calls) {
    if (calls.leave) log_.push_back("leave " + name_of(calls.leave));
    if (calls.enter) log_.push_back("enter " + name_of(calls.enter));
  }
  std::string name_of(OpEstimate op) {
    for (auto& [name, known] : ops_) {
      if (OpEstimate(known) == op) return name;
    }
    return "no op";
  }

  std::map<std::string, OpDuration> ops_;

  OpNesting nesting_;
  std::vector<OpKind> running_;
};

using Log = std::vector<std::string>;

TEST_F(OpNestingTest, OnlyTheOutermostOpEnters) {
  begin(OpKind::kOp, "relu");
  begin(OpKind::kOp, "clamp_min");
  end();
  end();
  EXPECT_EQ(log_, (Log{"enter relu", "leave relu"}));
}

TEST_F(OpNestingTest, OpsInsideATransparentEventEnterOneByOne) {
  begin(OpKind::kTransparent);
  begin(OpKind::kOp, "a");
  end();
  begin(OpKind::kOp, "b");
  end();
  end();
  EXPECT_EQ(log_, (Log{"enter a", "leave a", "enter b", "leave b"}));
}

TEST_F(OpNestingTest, EveryKindIsNestedInsideAnOp) {
  begin(OpKind::kOp, "custom");
  for (const OpKind kind :
       {OpKind::kTransparent, OpKind::kOp, OpKind::kCollective, OpKind::kRegion}) {
    begin(kind);
    end();
  }
  EXPECT_EQ(log_, Log{"enter custom"});
  end();
  EXPECT_EQ(log_, (Log{"enter custom", "leave custom"}));
}

TEST_F(OpNestingTest, NothingInsideACollectiveEnters) {
  begin(OpKind::kCollective);
  begin(OpKind::kOp);
  end();
  end();
  EXPECT_EQ(log_, Log{});
}

TEST_F(OpNestingTest, NothingOnAShieldedThreadEnters) {
  begin(OpKind::kOp, "op", true);
  end();
  begin(OpKind::kRegion, "op", true);
  end();
  EXPECT_EQ(log_, Log{});
}

TEST_F(OpNestingTest, ARegionWithoutOpsIsMeteredToItsEnd) {
  begin(OpKind::kRegion);
  begin(OpKind::kTransparent);
  end();
  EXPECT_EQ(log_, Log{"enter region"});
  end();
  EXPECT_EQ(log_.back(), "leave region");
}

TEST_F(OpNestingTest, AnOpInsideARegionIsMeteredByItself) {
  begin(OpKind::kRegion);
  begin(OpKind::kOp, "mm");
  end();
  end();
  EXPECT_EQ(log_, (Log{"enter region", "leave region", "enter mm", "leave mm"}));
}

TEST_F(OpNestingTest, ACollectiveInsideARegionIsNotMetered) {
  begin(OpKind::kRegion);
  begin(OpKind::kCollective);
  EXPECT_EQ(log_.back(), "leave region");
}

TEST_F(OpNestingTest, RegionsNest) {
  begin(OpKind::kRegion);
  begin(OpKind::kRegion);
  end();
  begin(OpKind::kOp, "mm");
  end();
  end();
  EXPECT_EQ(log_, (Log{"enter region", "leave region", "enter region", "leave region", "enter mm",
                       "leave mm"}));
}

// C15: the copy within an op.
TEST_F(OpNestingTest, C15_APartOfAnOpIsMeteredByItself) {
  begin(OpKind::kOp, "_to_copy");
  begin_part("copy");
  end_part();
  begin_part("copy");  // of a list
  end_part();
  end();
  EXPECT_EQ(log_, (Log{"enter _to_copy", "leave _to_copy", "enter copy", "leave copy", "enter copy",
                       "leave copy"}));
  begin(OpKind::kOp, "mm");
  end();
  EXPECT_EQ(log_.back(), "leave mm");
}

TEST_F(OpNestingTest, C15_APartOfWhatDoesNotWaitDoesNotWait) {
  begin_part("copy");  // the callback was switched on a moment ago
  begin(OpKind::kCollective);
  begin_part("copy");
  end_part();
  end();
  begin(OpKind::kOp, "op", true);
  begin_part("copy");
  end_part();
  end();
  EXPECT_EQ(log_, Log{});
}

}  // namespace
}  // namespace commensal::op_nesting_test
