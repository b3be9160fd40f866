// SPDX-License-Identifier: Apache-2.0
// Which output of which jobs is deleted when, and what never is.
#include "coordinator/cluster/log_retention.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "coordinator/cluster/log_name.h"
#include "coordinator/cluster/store.h"

namespace commensal::cluster::log_retention_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using std::chrono::days;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const WallTime kNow{days{20'000}};

WallTime ago(days time) { return kNow - time; }
JobEnd ended(days time) { return {false, ago(time)}; }

/// Clocks that have agreed until now.
CountedTime agreed(std::chrono::milliseconds time = days{300}) {
  CountedTime counted;
  (void)counted.look({kNow - time, 1h, "boot"});
  (void)counted.look({kNow, 1h + time, "boot"});
  return counted;
}

TEST(JudgeLogTest, OutputGoesOnceItsJobEndedLongAgo) {
  const LogVerdict verdict = judge_log({ago(days{100}), ended(days{91})}, agreed(), days{90});
  EXPECT_TRUE(verdict.goes);
  EXPECT_THAT(verdict.reason, HasSubstr("91 days ago, kept are 90"));
  EXPECT_TRUE(judge_log({ago(days{100}), ended(days{90})}, agreed(), days{90}).goes);
}

TEST(JudgeLogTest, OutputStaysUntilThen) {
  EXPECT_FALSE(judge_log({ago(days{100}), ended(days{89})}, agreed(), days{90}).goes);
  EXPECT_FALSE(judge_log({kNow - (24h * 90 - 1ms), ended(days{200})}, agreed(), days{90}).goes);
}

TEST(JudgeLogTest, AJobThatLivesKeepsAllItPrinted) {
  EXPECT_FALSE(judge_log({ago(days{5000}), {true, {}}}, agreed(), days{1}).goes);
}

TEST(JudgeLogTest, AJobThatNobodyKnowsIsJudgedByItsLastLine) {
  EXPECT_TRUE(judge_log({ago(days{91}), {}}, agreed(), days{90}).goes);
  EXPECT_FALSE(judge_log({ago(days{89}), {}}, agreed(), days{90}).goes);
}

TEST(JudgeLogTest, WhatIsFromTheFutureStays) {
  const LogVerdict verdict =
      judge_log({ago(days{100}), ended(days{-1})}, agreed(), days{0} + days{1});
  EXPECT_FALSE(verdict.goes);
  EXPECT_THAT(verdict.reason, HasSubstr("later than now"));
  EXPECT_FALSE(judge_log({ago(days{-400}), ended(days{300})}, agreed(), days{1}).goes);
}

TEST(JudgeLogTest, ZeroDaysKeepAll) {
  EXPECT_FALSE(judge_log({ago(days{9000}), ended(days{9000})}, agreed(), days{0}).goes);
}

TEST(JudgeLogTest, NothingGoesBeforeTheClocksHaveAgreedForADay) {
  const LogFacts facts{ago(days{100}), ended(days{100})};
  EXPECT_TRUE(judge_log(facts, agreed(24h), days{90}).goes);
  const LogVerdict verdict = judge_log(facts, agreed(24h - 1ms), days{90});
  EXPECT_FALSE(verdict.goes);
  EXPECT_THAT(verdict.reason, HasSubstr("have not agreed for a day"));
}

TEST(JobOfLogTest, NamesOfLogsNameTheirJob) {
  EXPECT_EQ(job_of_log("7-1-0.log"), JobId{"7"});
  EXPECT_EQ(job_of_log("123-12-15.log.3"), JobId{"123"});
}

TEST(JobOfLogTest, OtherNamesAreNobodys) {
  for (const char* name : {"", "7", "7.log", "7-1.log", "7-1-0.log.", "7-1-0.log.x", "7-1-0.log~",
                           "x7-1-0.log", "07-1-0.log", "-1-0.log", "7-1-0.logs", "7-1-0.log.1.2",
                           "7--0.log", "7-1-.log", "7-1-0.log.1~"}) {
    EXPECT_EQ(job_of_log(name), std::nullopt) << name;
  }
}

class LogRetentionTest : public ::testing::Test {
 protected:
  LogRetentionTest() {
    std::string name = (fs::temp_directory_path() / "commensal-logs-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp");
    }
    folder_ = name;
    options_ = {.folder = folder_ / "logs", .keep = days{90}, .at_once = 256, .rest = 1h};
    fs::create_directory(options_.folder);
  }
  ~LogRetentionTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, WallTime time) {
    const fs::path file = options_.folder / name;
    std::ofstream{file} << "line\n";
    const auto since = time.time_since_epoch();
    const timespec when{std::chrono::duration_cast<std::chrono::seconds>(since).count(), 0};
    const timespec times[2]{when, when};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator{options_.folder}) {
      found.insert(entry.path().filename());
    }
    return found;
  }
  LogRetention make() {
    return {options_,
            [this](const JobId& job) {
              asked_.push_back(job.str());
              if (store_fails_) throw StoreFailed(StoreFailed::Why::kOther, "cannot be read today");
              const auto found = jobs_.find(job.str());
              return found == jobs_.end() ? JobEnd{} : found->second;
            },
            {.read = [this] { return clocks_; },
             .counted = CountedTime{kept_},
             .keep = [this](const std::string& text) { kept_ = text; }},
            log_};
  }
  /// Steps until it rests, as the loop does. @return how many steps.
  int round(LogRetention& retention) {
    int steps = 0;
    do {
      retention.step(now_);
      ++steps;
      now_ = std::max(now_, std::min(retention.next_wake(), now_ + 1s));
    } while (retention.next_wake() <= now_);
    return steps;
  }

  fs::path folder_;
  LogRetention::Options options_;
  std::map<std::string, JobEnd> jobs_;
  std::vector<std::string> asked_;
  bool store_fails_ = false;
  ClockReading clocks_{kNow, 1h + days{300}, "boot"};
  std::string kept_ = agreed().text();  ///< what is known of the clocks at the next start
  TimePoint now_{1h};
  std::ostringstream said_;
  std::shared_ptr<spdlog::logger> log_ = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(said_));
};

TEST_F(LogRetentionTest, OldOutputOfEndedJobsGoesAndNothingElse) {
  jobs_ = {{"1", ended(days{100})}, {"2", {true, {}}}, {"3", ended(days{2})}};
  for (const char* name : {"1-1-0.log", "1-1-0.log.2", "1-2-7.log"}) write(name, ago(days{100}));
  for (const char* name : {"2-1-0.log", "3-1-0.log", "notes.txt", "1-1-0.log.gz"}) {
    write(name, ago(days{100}));
  }
  write("9-1-0.log", ago(days{100}));  // of a job that nobody knows
  write("1-3-0.log", ago(days{1}));
  LogRetention retention = make();
  round(retention);
  EXPECT_EQ(names(), (std::set<std::string>{"2-1-0.log", "3-1-0.log", "notes.txt", "1-1-0.log.gz",
                                            "1-3-0.log"}));
  EXPECT_THAT(said_.str(), HasSubstr("deleted 4 files of output"));
}

TEST_F(LogRetentionTest, LinksAndFoldersStay) {
  write("elsewhere", ago(days{100}));
  fs::rename(options_.folder / "elsewhere", folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", options_.folder / "1-1-0.log");
  fs::create_directory(options_.folder / "2-1-0.log");
  LogRetention retention = make();
  round(retention);
  EXPECT_EQ(names(), (std::set<std::string>{"1-1-0.log", "2-1-0.log"}));
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere"));
}

TEST_F(LogRetentionTest, TheStoreIsAskedAboutOldFilesOnly) {
  jobs_ = {{"1", ended(days{100})}};
  write("1-1-0.log", ago(days{100}));
  write("2-1-0.log", ago(days{3}));
  LogRetention retention = make();
  round(retention);
  EXPECT_EQ(asked_, std::vector<std::string>{"1"});
}

TEST_F(LogRetentionTest, AStepIsBoundedAndARoundComesToItsEnd) {
  options_.at_once = 3;
  for (int job = 1; job <= 10; ++job) write(std::to_string(job) + "-1-0.log", ago(days{100}));
  LogRetention retention = make();
  retention.step(now_);
  EXPECT_EQ(names().size(), 7U);
  EXPECT_GT(retention.next_wake(), now_);
  EXPECT_LT(retention.next_wake(), now_ + 1s);
  now_ = retention.next_wake();
  EXPECT_GE(round(retention), 3);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(LogRetentionTest, ItRestsBetweenRounds) {
  LogRetention retention = make();
  const TimePoint began = now_;
  retention.step(now_);
  EXPECT_EQ(retention.next_wake(), began + 1h);
  write("1-1-0.log", ago(days{100}));
  retention.step(began + 59min);
  EXPECT_EQ(names().size(), 1U);
  retention.step(began + 1h);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(LogRetentionTest, ZeroDaysMeanNever) {
  options_.keep = days{0};
  write("1-1-0.log", ago(days{9000}));
  LogRetention retention = make();
  EXPECT_EQ(retention.next_wake(), TimePoint::max());
  retention.step(now_);
  EXPECT_EQ(names().size(), 1U);
}

TEST_F(LogRetentionTest, WithoutTheFolderItSaysSoAndTriesAgainLater) {
  fs::remove(options_.folder);
  LogRetention retention = make();
  retention.step(now_);
  EXPECT_THAT(said_.str(), HasSubstr(options_.folder.native()));
  EXPECT_EQ(retention.next_wake(), now_ + 1h);
  fs::create_directory(options_.folder);
  write("1-1-0.log", ago(days{100}));
  retention.step(now_ + 1h);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(LogRetentionTest, WhileTheStoreCannotBeReadNothingIsDeleted) {
  store_fails_ = true;
  write("1-1-0.log", ago(days{100}));
  LogRetention retention = make();
  retention.step(now_);
  EXPECT_EQ(names().size(), 1U);
  EXPECT_THAT(said_.str(), HasSubstr("cannot be read today"));
  EXPECT_EQ(retention.next_wake(), now_ + 1h);
}

TEST_F(LogRetentionTest, AClockThatJumpsLetsNothingGo) {
  for (const days jump : {days{100}, days{-30}}) {
    SCOPED_TRACE(jump.count());
    write("1-1-0.log", ago(days{5}));
    clocks_.wall += jump;
    {
      LogRetention during = make();  // a start meanwhile
      round(during);
    }
    EXPECT_EQ(names().size(), 1U);
    clocks_.wall += 4s - jump;
    clocks_.since_boot += 4s;
    LogRetention after = make();
    round(after);
    EXPECT_EQ(names().size(), 1U);
  }
}

TEST_F(LogRetentionTest, AClockThatIsSetAheadForGoodLetsNothingGo) {
  write("1-1-0.log", ago(days{5}));
  LogRetention retention = make();
  round(retention);
  clocks_.wall += days{100};
  now_ += 1h;
  round(retention);
  for (int day = 0; day < 84; ++day) {
    clocks_.wall += days{1};
    clocks_.since_boot += days{1};
    now_ += days{1};
    round(retention);
    ASSERT_EQ(names().size(), 1U) << day;
  }
  clocks_.wall += days{1};
  clocks_.since_boot += days{1};
  now_ += days{1};
  round(retention);
  EXPECT_THAT(names(), IsEmpty()) << "90 days have passed by both clocks";
}

TEST_F(LogRetentionTest, AtAFirstStartNothingGoesForADay) {
  kept_.clear();
  write("1-1-0.log", ago(days{100}));
  LogRetention retention = make();
  round(retention);
  EXPECT_EQ(names().size(), 1U);
  clocks_.wall += days{1};
  clocks_.since_boot += days{1};
  now_ += days{1};
  LogRetention next = make();  // goes on with what the first one has seen
  round(next);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(LogRetentionTest, WhileClocksCannotBeReadOrKeptNothingIsDeleted) {
  write("1-1-0.log", ago(days{100}));
  LogRetention::Time time{.read = []() -> ClockReading { throw std::runtime_error("no clock"); },
                          .counted = agreed(),
                          .keep = [](const std::string&) {}};
  LogRetention unread{options_, [](const JobId&) { return JobEnd{}; }, time, log_};
  round(unread);
  time.read = [this] { return clocks_; };
  time.keep = [](const std::string&) {
    throw StoreFailed(StoreFailed::Why::kFull, "the disk is full");
  };
  LogRetention unkept{options_, [](const JobId&) { return JobEnd{}; }, time, log_};
  round(unkept);
  EXPECT_EQ(names().size(), 1U);
  EXPECT_THAT(said_.str(), HasSubstr("no clock"));
  EXPECT_THAT(said_.str(), HasSubstr("the disk is full"));
}

}  // namespace
}  // namespace commensal::cluster::log_retention_test
