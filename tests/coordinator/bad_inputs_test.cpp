// SPDX-License-Identifier: Apache-2.0
// Which records are suspects, which are listed, and what is refused.
#include "coordinator/cluster/bad_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>

#include "coordinator/cluster/input_files.h"

namespace commensal::cluster::bad_inputs_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr WallTime kNow{1'790'000'000'000ms};

Attempt attempt(int job, std::uint32_t number = 1) { return {JobId{std::to_string(job)}, number}; }

class BadInputsTest : public ::testing::Test {
 protected:
  static InputKey key(const std::string& record, const std::string& dataset = "d",
                      const std::string& tenant = "t") {
    return {tenant, dataset, record};
  }
  const BadInput& skips(int job, const InputKey& which) {
    return inputs_.report(which, "bad magic", {attempt(job), false, false}, kNow, changes_);
  }
  const BadInput& fails_at(int job, const InputKey& which, std::uint32_t number = 1) {
    return inputs_.report(which, "bad magic", {attempt(job, number), true, false}, kNow, changes_);
  }
  std::vector<std::string> listed(const std::string& tenant = "t", bool suspects = false) {
    std::vector<std::string> names;
    for (const BadInput* input :
         inputs_.list(tenant, std::nullopt, std::nullopt, suspects, 1 << 20).inputs) {
      names.push_back(input->key.dataset + "/" + input->key.record);
    }
    return names;
  }
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "not refused";
  }

  BadInputs inputs_;
  InputChanges changes_;
};

TEST_F(BadInputsTest, WhatAJobLeftOutIsListedAtOnce) {
  const BadInput& input = skips(1, key("r"));
  EXPECT_TRUE(input.listed);
  EXPECT_EQ(input.reason, "bad magic");
  EXPECT_EQ(input.since, kNow);
  EXPECT_THAT(listed(), ElementsAre("d/r"));
  ASSERT_EQ(changes_.put.size(), 1U);
  EXPECT_EQ(changes_.put[0], input);
}

TEST_F(BadInputsTest, ARecordAtWhichOneJobFailedIsASuspect) {
  EXPECT_FALSE(fails_at(1, key("r")).listed);
  inputs_.over(attempt(1), true, changes_);
  EXPECT_THAT(listed(), IsEmpty());
  EXPECT_THAT(listed("t", true), ElementsAre("d/r"));
}

TEST_F(BadInputsTest, ARecordAtWhichSeveralAttemptsFailedIsListed) {
  fails_at(1, key("r"));
  inputs_.over(attempt(1), true, changes_);
  fails_at(2, key("r"));
  EXPECT_THAT(listed(), IsEmpty()) << "it may still be a machine's failure";
  inputs_.over(attempt(2), true, changes_);
  EXPECT_THAT(listed(), ElementsAre("d/r"));
  EXPECT_TRUE(changes_.put.back().listed);
}

TEST_F(BadInputsTest, AttemptsOfOneJobCountEach) {
  fails_at(1, key("r"), 1);
  inputs_.over(attempt(1, 1), true, changes_);
  fails_at(1, key("r"), 2);
  inputs_.over(attempt(1, 2), true, changes_);
  EXPECT_THAT(listed(), ElementsAre("d/r"));
}

TEST_F(BadInputsTest, OneAttemptCountsOnceHoweverOftenItSaysIt) {
  for (int i = 0; i < 5; ++i) fails_at(1, key("r"));
  EXPECT_EQ(changes_.put.size(), 1U);
  inputs_.over(attempt(1), true, changes_);
  inputs_.over(attempt(1), true, changes_);
  EXPECT_THAT(listed(), IsEmpty());
}

TEST_F(BadInputsTest, AMachinesFailureProvesNothing) {
  for (int job = 1; job < 9; ++job) {
    fails_at(job, key("r"));
    inputs_.over(attempt(job), false, changes_);
  }
  EXPECT_THAT(listed("t", true), IsEmpty());
  EXPECT_THAT(changes_.removed, ::testing::Each(key("r")));
  EXPECT_EQ(changes_.removed.size(), 8U);
}

TEST_F(BadInputsTest, AFailureThatProvesNothingLeavesWhatOthersSaid) {
  fails_at(1, key("r"));
  inputs_.over(attempt(1), true, changes_);
  fails_at(2, key("r"));
  inputs_.over(attempt(2), false, changes_);
  ASSERT_EQ(changes_.put.back().reports.size(), 1U);
  EXPECT_EQ(changes_.put.back().reports[0].attempt, attempt(1));
  EXPECT_TRUE(changes_.put.back().reports[0].counted);
  skips(3, key("s"));
  fails_at(4, key("s"));
  inputs_.over(attempt(4), false, changes_);
  EXPECT_THAT(listed(), ElementsAre("d/s")) << "it stays listed";
}

TEST_F(BadInputsTest, HowManyFailuresItTakesIsARule) {
  inputs_ = BadInputs{{.failures = 1}};
  fails_at(1, key("r"));
  inputs_.over(attempt(1), true, changes_);
  EXPECT_THAT(listed(), ElementsAre("d/r"));
}

TEST_F(BadInputsTest, TenantsAndDataSetsAreApart) {
  skips(1, key("r", "d", "t"));
  skips(2, key("r", "e", "t"));
  skips(3, key("q", "d", "u"));
  EXPECT_THAT(listed("t"), ElementsAre("d/r", "e/r"));
  EXPECT_THAT(listed("u"), ElementsAre("d/q"));
  const auto one = inputs_.list("t", "e", std::nullopt, false, 1000);
  ASSERT_EQ(one.inputs.size(), 1U);
  EXPECT_EQ(one.inputs[0]->key, key("r", "e"));
}

TEST_F(BadInputsTest, PeopleListAndForget) {
  EXPECT_TRUE(inputs_.add(key("r"), "seen by Ann", kNow, changes_).listed);
  EXPECT_EQ(changes_.put.size(), 1U);
  inputs_.add(key("r"), "seen by Bob", kNow, changes_);
  EXPECT_EQ(changes_.put.size(), 1U) << "it is so already";
  EXPECT_TRUE(inputs_.remove(key("r"), changes_));
  EXPECT_THAT(changes_.removed, ElementsAre(key("r")));
  EXPECT_FALSE(inputs_.remove(key("r"), changes_));
  EXPECT_THAT(listed("t", true), IsEmpty());
  EXPECT_TRUE(skips(1, key("r")).listed) << "a job may report it again";
}

TEST_F(BadInputsTest, ASuspectThatIsForgottenIsNotJudgedAnyMore) {
  fails_at(1, key("r"));
  inputs_.remove(key("r"), changes_);
  changes_ = {};
  inputs_.over(attempt(1), true, changes_);
  EXPECT_THAT(changes_.put, IsEmpty());
  EXPECT_THAT(changes_.removed, IsEmpty());
}

TEST_F(BadInputsTest, WhatWasWrittenDownGoesOnAsBefore) {
  fails_at(1, key("r"));
  inputs_.over(attempt(1), true, changes_);
  fails_at(2, key("r"));
  BadInputs later;
  later.restore(changes_.put.back());
  later.over(attempt(1), true, changes_);  // told again: it is counted already
  EXPECT_FALSE(changes_.put.back().listed);
  later.over(attempt(2), true, changes_);
  EXPECT_TRUE(changes_.put.back().listed);
}

TEST_F(BadInputsTest, RefusesWhatIsNoName) {
  EXPECT_EQ(refusal([&] { skips(1, key("")); }), "the name of a record is not empty");
  EXPECT_EQ(refusal([&] { skips(1, key("r", "")); }), "the name of a data set is not empty");
  EXPECT_EQ(refusal([&] { skips(1, key(std::string(513, 'x'))); }),
            "the name of a record has at most 512 bytes, not 513");
  EXPECT_EQ(refusal([&] { skips(1, key("a\nb")); }),
            "the name of a record holds no control characters, but there is one (code 10) at "
            "byte 1");
  EXPECT_THAT(refusal([&] { inputs_.add(key("r"), "\x1b[31mred", kNow, changes_); }),
              HasSubstr("code 27"));
  EXPECT_EQ(refusal([&] { inputs_.add(key("r"), std::string(1001, 'x'), kNow, changes_); }),
            "a reason has at most 1000 bytes, not 1001");
  EXPECT_THAT(listed("t", true), IsEmpty());
  EXPECT_THAT(changes_.put, IsEmpty());
}

TEST_F(BadInputsTest, IsBounded) {
  for (std::size_t i = 0; i < BadInputs::kMostRecords; ++i) skips(1, key(std::to_string(i)));
  EXPECT_THAT(refusal([&] { skips(1, key("one more")); }), HasSubstr("has 20000 records already"));
  skips(1, key("one more", "d", "another tenant"));
  for (int job = 2; job < 100; ++job) skips(job, key("7"));
  EXPECT_EQ(skips(1, key("7")).reports.size(), BadInputs::kMostReports);
  inputs_.remove(key("8"), changes_);
  EXPECT_TRUE(skips(1, key("one more")).listed);
}

TEST_F(BadInputsTest, ALongListComesInParts) {
  std::vector<std::string> all;
  for (int i = 100; i < 200; ++i) {
    all.push_back(std::to_string(i));
    skips(1, key(all.back()));
  }
  std::vector<std::string> found;
  std::optional<InputKey> after;
  for (bool more = true; more;) {
    const auto part = inputs_.list("t", "d", after, false, 1000);
    ASSERT_FALSE(part.inputs.empty());
    ASSERT_LT(part.inputs.size(), 20U);
    for (const BadInput* input : part.inputs) found.push_back(input->key.record);
    after = part.inputs.back()->key;
    more = part.more;
  }
  EXPECT_EQ(found, all);
  EXPECT_EQ(inputs_.list("t", "d", std::nullopt, false, 0).inputs.size(), 1U) << "at least one";
}

TEST_F(BadInputsTest, TheVersionSaysWhetherTheListIsAnother) {
  EXPECT_EQ(inputs_.version("t"), 0U);
  fails_at(1, key("r"));
  EXPECT_EQ(inputs_.version("t"), 0U) << "suspects are not given to jobs";
  skips(2, key("s"));
  const auto with_one = inputs_.version("t");
  EXPECT_GT(with_one, 0U);
  skips(3, key("s"));
  EXPECT_EQ(inputs_.version("t"), with_one);
  inputs_.remove(key("s"), changes_);
  EXPECT_GT(inputs_.version("t"), with_one);
  EXPECT_EQ(inputs_.version("u"), 0U);
}

// --- files -------------------------------------------------------------------------------------

class InputFilesTest : public ::testing::Test {
 protected:
  InputFilesTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~InputFilesTest() override { std::filesystem::remove_all(folder_); }

  static std::string text(const std::filesystem::path& file) {
    std::ifstream in{file};
    return {std::istreambuf_iterator<char>{in}, {}};
  }

  std::filesystem::path folder_ = std::filesystem::temp_directory_path() /
                                  ("commensal-inputs-" + std::to_string(getpid()) + "-" +
                                   ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(InputFilesTest, WritesATenantsFileWhenItsListIsAnother) {
  InputFiles files{folder_ / "inputs"};
  int asked = 0;
  const auto content = [&] { return nlohmann::json{{"asked", ++asked}}; };
  const auto file = files.file("../a/b", 3, content);
  EXPECT_EQ(file.parent_path(), folder_ / "inputs") << "whatever the tenant is called";
  EXPECT_EQ(text(file), R"({"asked":1})");
  EXPECT_EQ(files.file("../a/b", 3, content), file);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(text(files.file("../a/b", 4, content)), R"({"asked":2})");
  EXPECT_NE(files.file("other", 4, content), file);
  std::filesystem::remove(file);
  EXPECT_EQ(text(files.file("../a/b", 4, content)), R"({"asked":4})") << "it was taken away";
}

TEST_F(InputFilesTest, WritesNothingWhereThereIsNothing) {
  const auto never = []() -> nlohmann::json { throw std::logic_error("asked"); };
  EXPECT_TRUE(InputFiles{folder_ / "inputs"}.file("t", 0, never).empty());
  EXPECT_TRUE(InputFiles{{}}.file("t", 1, never).empty());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "inputs"));
}

TEST_F(InputFilesTest, SaysWhyItCannotBeWritten) {
  std::ofstream{folder_ / "inputs"} << "a file";
  InputFiles files{folder_ / "inputs"};
  try {
    (void)files.file("t", 1, [] { return nlohmann::json::object(); });
    FAIL() << "it was written";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the list of bad inputs was not written: "));
  }
}

}  // namespace
}  // namespace commensal::cluster::bad_inputs_test
