// SPDX-License-Identifier: Apache-2.0
// Which failures are whose, and how often and when they are tried again.
#include "coordinator/cluster/failure_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace commensal::cluster::failure_rules_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

FailureVerdict ended(int code, const std::string& output = "", std::int32_t ranks = 1) {
  return classify({.vanished = false,
                   .exit_code = code,
                   .reason = "ended with " + std::to_string(code),
                   .ranks = ranks,
                   .output = output});
}

TEST(FailureRulesTest, WithoutEvidenceItIsTheUsers) {
  const FailureVerdict verdict = ended(1, "Traceback\nAssertionError\n");
  EXPECT_EQ(verdict.kind, FailureClass::kUser);
  EXPECT_EQ(verdict.why, "ended with 1");
  EXPECT_EQ(ended(137).kind, FailureClass::kUser);
}

TEST(FailureRulesTest, WhatNobodyCanExplainIsTheMachines) {
  const FailureVerdict verdict =
      classify({.vanished = true, .exit_code = {}, .reason = "its keeper is gone", .output = ""});
  EXPECT_EQ(verdict.kind, FailureClass::kInfrastructure);
  EXPECT_EQ(verdict.why, "its keeper is gone");
}

TEST(FailureRulesTest, WordsOfDriversAndLibrariesTell) {
  for (const char* words :
       {"RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "NVRM: GPU has fallen off the bus.",
        "torch.distributed.DistBackendError: NCCL error, ncclSystemError: System call failed",
        "OSError: [Errno 116] Stale file handle: '/data/train'",
        "OSError: [Errno 5] Input/output error"}) {
    EXPECT_EQ(ended(1, words).kind, FailureClass::kInfrastructure) << words;
  }
  EXPECT_THAT(ended(1, "OSError: [Errno 5] Input/output error").why,
              HasSubstr("\"Input/output error\""));
}

TEST(FailureRulesTest, ErrorsOfTheProgramOnADeviceAreItsOwn) {
  for (const char* words :
       {"CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "torch.OutOfMemoryError: CUDA out of memory", "NCCL error, ncclInvalidUsage"}) {
    EXPECT_EQ(ended(1, words, 4).kind, FailureClass::kUser) << words;
  }
}

TEST(FailureRulesTest, RanksThatWaitInVainAreSemanticInGangsOnly) {
  const std::string words = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)";
  EXPECT_EQ(ended(134, words, 4).kind, FailureClass::kSemantic);
  EXPECT_EQ(ended(134, words, 1).kind, FailureClass::kUser);
}

TEST(FailureRulesTest, OfSeveralWordsTheLastOnesCount) {
  const std::string io = "Input/output error (tried again)\n";
  const std::string peer = "Connection closed by peer\n";
  EXPECT_EQ(ended(1, io + peer, 2).kind, FailureClass::kSemantic);
  EXPECT_EQ(ended(1, peer + io, 2).kind, FailureClass::kInfrastructure);
}

TEST(FailureRulesTest, AProgramMaySayItself) {
  EXPECT_EQ(ended(75).kind, FailureClass::kInfrastructure);
  EXPECT_THAT(ended(75).why, HasSubstr("75"));
}

TEST(FailureRulesTest, ALimitOrAMissingProgramIsTheUsersWhateverItPrinted) {
  for (const int code : {124, 126, 127}) {
    EXPECT_EQ(ended(code, "Input/output error").kind, FailureClass::kUser) << code;
  }
}

TEST(FailureRulesTest, ABusErrorIsTheMachines) {
  EXPECT_EQ(ended(135).kind, FailureClass::kInfrastructure);
}

TEST(FailureRulesTest, WaitsDoubleUpToTheLongest) {
  RetryRules rules;
  rules.infrastructure = 20;
  const FailureVerdict verdict{FailureClass::kInfrastructure, "the node is down"};
  EXPECT_EQ(decide_retry(verdict, 0, rules).wait, 10s);
  EXPECT_EQ(decide_retry(verdict, 1, rules).wait, 20s);
  EXPECT_EQ(decide_retry(verdict, 3, rules).wait, 80s);
  EXPECT_EQ(decide_retry(verdict, 19, rules).wait, 1h);
  rules.infrastructure = 4'000'000'000;
  EXPECT_EQ(decide_retry(verdict, 3'999'999'999, rules).wait, 1h);
}

TEST(FailureRulesTest, EachClassHasItsCap) {
  const RetryRules rules;
  EXPECT_TRUE(decide_retry({FailureClass::kInfrastructure, "x"}, 2, rules).wait);
  EXPECT_FALSE(decide_retry({FailureClass::kInfrastructure, "x"}, 3, rules).wait);
  EXPECT_TRUE(decide_retry({FailureClass::kSemantic, "x"}, 0, rules).wait);
  EXPECT_FALSE(decide_retry({FailureClass::kSemantic, "x"}, 1, rules).wait);
  EXPECT_FALSE(decide_retry({FailureClass::kUser, "x"}, 0, rules).wait);
}

TEST(FailureRulesTest, DecisionsSayWhy) {
  const RetryRules rules;
  const std::string again =
      decide_retry({FailureClass::kInfrastructure, "the node is down"}, 1, rules).reason;
  EXPECT_EQ(again, "is tried again after 20 s, 2 of 3: infrastructure failure: the node is down");
  EXPECT_EQ(decide_retry({FailureClass::kUser, "x"}, 0, rules).reason,
            "user failures are not tried again");
  EXPECT_EQ(decide_retry({FailureClass::kSemantic, "x"}, 1, rules).reason,
            "semantic failure, and it was tried again 1 times");
}

TEST(FailureRulesTest, TheEndsOfFilesAreRead) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("commensal-ends-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream{folder / "long"} << std::string(1000, 'x') + "end";
  std::ofstream{folder / "short"} << "ab";
  std::ofstream{folder / "empty"};
  EXPECT_EQ(
      ends_of_files(
          {folder / "long", folder / "missing", folder / "empty", folder / "short", folder}, 5),
      "xxendab");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace commensal::cluster::failure_rules_test
