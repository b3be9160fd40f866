// SPDX-License-Identifier: Apache-2.0
// Jobs that are made up: as many as asked for, recurring as asked, the same each time.
#include "coordinator/engines/simulator/recurrent_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "coordinator/engines/simulator/readers/trace_reader.h"

namespace commensal::simulator::recurrent_jobs_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::map<std::string, std::vector<TraceJob>> groups_of(const Trace& trace) {
  std::map<std::string, std::vector<TraceJob>> groups;
  for (const TraceJob& job : trace.jobs) groups[job.group].push_back(job);
  return groups;
}

TEST(RecurrentJobsTest, TheStatedShareIsInGroupsThatRunFiveTimesOrMore) {
  for (const double recurrence : {0.0, 0.25, 0.65, 1.0}) {
    const Trace trace = make_recurrent_jobs({.jobs = 2000, .recurrence = recurrence}, 7);
    ASSERT_EQ(trace.jobs.size(), 2000U);
    std::size_t recurrent = 0;
    for (const auto& [group, runs] : groups_of(trace)) {
      EXPECT_TRUE(runs.size() == 1 || runs.size() >= 5) << group;
      if (runs.size() > 1) recurrent += runs.size();
    }
    EXPECT_EQ(recurrent, static_cast<std::size_t>(std::llround(2000 * recurrence)));
  }
}

TEST(RecurrentJobsTest, RunsOfAGroupDifferByTheStatedNoise) {
  for (const double noise : {0.0, 0.3}) {
    const Trace trace = make_recurrent_jobs(
        {.jobs = 5000, .recurrence = 1, .noise = noise, .median_seconds = 50'000}, 3);
    double squares = 0;
    double count = 0;
    for (const auto& [group, runs] : groups_of(trace)) {
      const std::int32_t usual =
          std::min_element(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
            return a.gpus < b.gpus;
          })->gpus;
      std::vector<double> logs;
      double sum = 0;
      for (const TraceJob& run : runs) {
        if (run.gpus != usual || run.duration >= 7 * 86'400) continue;
        logs.push_back(std::log(run.duration));
        sum += logs.back();
      }
      for (const double log : logs) {
        squares += std::pow(log - sum / static_cast<double>(logs.size()), 2);
      }
      count += static_cast<double>(logs.size()) - 1;
      EXPECT_EQ(runs.front().user, runs.back().user);
      EXPECT_EQ(runs.front().title, runs.back().title);
    }
    EXPECT_NEAR(std::sqrt(squares / count), noise, 0.02);
  }
}

TEST(RecurrentJobsTest, TheLoadIsThatOfTheStatedGpus) {
  const Trace trace = make_recurrent_jobs({.jobs = 3000, .gpus = 32, .load = 0.8}, 5);
  double service = 0;
  double last = 0;
  for (const TraceJob& job : trace.jobs) {
    service += job.duration * job.gpus;
    EXPECT_GE(job.submit, last);
    last = job.submit;
    EXPECT_LE(job.gpus, 16);
  }
  EXPECT_NEAR(service / (32 * last), 0.8, 0.01);
}

class RecurrentFileTest : public ::testing::Test {
 protected:
  RecurrentFileTest() {
    std::string name = (std::filesystem::temp_directory_path() / "recurrent-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
    folder_ = name;
  }
  ~RecurrentFileTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  static std::string text(const std::string& file) {
    std::ostringstream all;
    all << std::ifstream(file).rdbuf();
    return all.str();
  }

  std::filesystem::path folder_;
};

TEST_F(RecurrentFileTest, EqualSeedsGiveEqualFilesAndOthersDoNot) {
  write_trace(path("a.csv"), make_recurrent_jobs({.jobs = 300}, 1));
  write_trace(path("b.csv"), make_recurrent_jobs({.jobs = 300}, 1));
  write_trace(path("c.csv"), make_recurrent_jobs({.jobs = 300}, 2));
  EXPECT_EQ(text(path("a.csv")), text(path("b.csv")));
  EXPECT_NE(text(path("a.csv")), text(path("c.csv")));
}

TEST_F(RecurrentFileTest, IsReadBackWithItsKeys) {
  const Trace made = make_recurrent_jobs({.jobs = 300}, 1);
  write_trace(path("a.csv"), made);
  EXPECT_EQ(guess_format(path("a.csv")), "commensal");
  const Trace read = read_trace(path("a.csv"), "commensal", {});
  ASSERT_EQ(read.jobs.size(), made.jobs.size());
  for (std::size_t i = 0; i < made.jobs.size(); ++i) {
    EXPECT_EQ(read.jobs[i].name, made.jobs[i].name);
    EXPECT_EQ(read.jobs[i].submit, made.jobs[i].submit);
    EXPECT_EQ(read.jobs[i].duration, made.jobs[i].duration);
    EXPECT_EQ(read.jobs[i].user, made.jobs[i].user);
    EXPECT_EQ(read.jobs[i].group, made.jobs[i].group);
    EXPECT_EQ(read.jobs[i].title, made.jobs[i].title);
  }
}

TEST_F(RecurrentFileTest, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_THAT([&] { write_trace(path("no/a.csv"), make_recurrent_jobs({.jobs = 3}, 1)); },
              ThrowsMessage<std::system_error>(HasSubstr("no/a.csv")));
}

RecurrentJobs given(const std::map<std::string, std::string>& options) {
  policies::Options all(options);
  return RecurrentJobs::from(all);
}

TEST(RecurrentOptionsTest, AreCheckedByNameAndValue) {
  EXPECT_EQ(given({{"jobs", "12"}, {"recurrence", "0.5"}}).jobs, 12);
  EXPECT_THAT(
      [] {
        (void)given({{"recurrence", "1.5"}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("recurrence is not from 0 to 1: 1.5")));
  EXPECT_THAT(
      [] {
        (void)given({{"jobs", "0.5"}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("jobs is not from 1")));
  EXPECT_THAT(
      [] {
        (void)given({{"users", "2.5"}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("users is no whole number: 2.5")));
  EXPECT_THAT(
      [] {
        (void)given({{"noise", "much"}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("noise is no number: much")));
}

}  // namespace
}  // namespace commensal::simulator::recurrent_jobs_test
