// SPDX-License-Identifier: Apache-2.0
// Figures of Pollux' simulator on its own workloads, to the last digit; and readers of its files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/readers/profile_reader.h"
#include "coordinator/engines/simulator/readers/trace_reader.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator::pollux_equality_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kUnpacked = COMMENSAL_POLLUX_UNPACKED;

std::string workload(const std::string& name) { return kUnpacked + "/workloads/" + name + ".csv"; }

std::map<std::string, double> metrics(const std::string& name, const std::string& policy_name) {
  const Trace trace = read_trace(workload(name), "pollux", {});
  const auto semantics = make_semantics("pollux", policy_name, trace);
  const auto policy = policies::make_policy(policy_name, semantics->options(policy_name));
  return metrics_of(simulate(trace, policies::Cluster(policies::equal_nodes(16, 4)), *semantics,
                             policy_name, *policy, {}));
}

TEST(PolluxEqualityTest, GivesTheFiguresOfPolluxSimulator) {
  Rows<4> row(COMMENSAL_POLLUX_EXPECTED, {"policy", "trace", "metric", "value"});
  std::map<std::pair<std::string, std::string>, std::map<std::string, double>> ours;
  int compared = 0;
  while (row.next()) {
    const std::string policy(row[0].text());
    // "pollux workload-1 load 1.0"
    const std::string name(row[1].text().substr(7, 10));
    auto& found = ours[{policy, name}];
    if (found.empty()) found = metrics(name, policy);
    EXPECT_DOUBLE_EQ(found.at(std::string(row[2].text())), row[3].number())
        << policy << " " << name << " " << row[2].text();
    ++compared;
  }
  EXPECT_EQ(compared, 30);
}

/// Step times that lie on a face between tetrahedra that do not fit together, as SciPy 1.17 gives
/// them: GPUs, batch, seconds.
TEST(PolluxEqualityTest, LooksUpStepTimesOnSciPysWay) {
  const TrainingProfiles profiles = read_profiles(kUnpacked + "/profiles");
  struct Known {
    const char* application;
    std::int32_t batch;
    std::int32_t gpus;
    double seconds;
  };
  for (const Known& known :
       {Known{"bert", 192, 29, 1.707790795713663}, Known{"bert", 192, 31, 1.8089719861745834},
        Known{"cifar10", 2048, 45, 0.22495732432917545},
        Known{"deepspeech2", 640, 21, 1.3578426701681954},
        Known{"imagenet", 400, 18, 0.4841215431690216},
        Known{"imagenet", 1600, 30, 0.5739647472605985},
        Known{"yolov3", 512, 18, 2.5685838270187373}}) {
    const TrainingProfile& profile = profiles.at(known.application);
    const auto seconds =
        profile.step_seconds(packed(known.gpus), profile.split(known.batch, known.gpus, true));
    ASSERT_TRUE(seconds);
    EXPECT_NEAR(*seconds, known.seconds, 1e-12) << known.application << " " << known.gpus;
  }
}

class PolluxReaderTest : public ::testing::Test {
 protected:
  PolluxReaderTest() {
    fs::create_directories(folder_ / "some/workloads");
    fs::copy(kUnpacked + "/profiles", folder_ / "profiles", fs::copy_options::recursive);
  }
  ~PolluxReaderTest() override { fs::remove_all(folder_); }

  std::string write(const fs::path& file, const std::string& text) {
    std::ofstream(folder_ / file) << text;
    return (folder_ / file).string();
  }
  template <typename Call>
  static std::string error_of(const Call& call) {
    try {
      call();
    } catch (const BadTrace& error) {
      return error.what();
    }
    return "no error";
  }
  std::string profiles() { return (folder_ / "profiles").string(); }

  static constexpr const char* kHeader = "name,time,application,num_replicas,batch_size\n";
  fs::path folder_ = fs::path(::testing::TempDir()) /
                     ("pollux_reader_" +
                      std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(PolluxReaderTest, FindsProfilesBesideTheTraceAndBesideItsFolder) {
  const std::string jobs = std::string(kHeader) + "a,5,ncf,1,256\n";
  EXPECT_EQ(read_trace(write("w.csv", jobs), "pollux", {}).jobs.size(), 1U);
  EXPECT_EQ(read_trace(write("some/w.csv", jobs), "pollux", {}).jobs.size(), 1U);
  const std::string far = write("some/workloads/w.csv", jobs);
  EXPECT_THAT(error_of([&] { (void)read_trace(far, "pollux", {}); }),
              HasSubstr("no folder profiles beside it"));
  const Trace trace = read_trace(far, "pollux", {.profiles = profiles()});
  EXPECT_EQ(trace.jobs[0].batch_size, 256);
  EXPECT_GT(trace.jobs[0].duration, 0);
}

TEST_F(PolluxReaderTest, NamesABadValueByFileLineAndColumn) {
  const auto read = [&](const std::string& row) {
    return error_of([&] { (void)read_trace(write("w.csv", kHeader + row), "pollux", {}); });
  };
  EXPECT_THAT(
      read("a,5,resnet,1,256\n"),
      HasSubstr("w.csv, line 2, column application: no profile of this application: \"resnet\""));
  EXPECT_THAT(read("a,-5,ncf,1,256\n"), HasSubstr("column time: negative: \"-5\""));
  EXPECT_THAT(read("a,5,ncf,0,256\n"), HasSubstr("column num_replicas: less than 1"));
  EXPECT_THAT(read("a,5,ncf,1,255\n"), HasSubstr("column batch_size: outside of the profile"));
  EXPECT_THAT(read("a,5,ncf,60,256\n"), HasSubstr("column num_replicas: no step time"));
}

TEST_F(PolluxReaderTest, NamesABadValueOfAProfile) {
  const auto read = [&] { return error_of([&] { (void)read_profiles(profiles()); }); };
  write("profiles/ncf/placements.csv", "placement,local_bsz,step_time,sync_time\n102,32,1,0.5\n");
  EXPECT_THAT(read(), HasSubstr("placements.csv, line 2, column placement: not a digit"));
  write("profiles/ncf/placements.csv",
        "placement,local_bsz,step_time,sync_time\n1,32,1,0.5\n1,32,1,0.5\n");
  EXPECT_THAT(read(), HasSubstr("line 3, column local_bsz: a second time"));
  fs::remove(folder_ / "profiles/ncf/placements.csv");
  EXPECT_THAT(read(), HasSubstr("placements.csv"));
}

TEST_F(PolluxReaderTest, RefusesProfilesThatAreNotThere) {
  EXPECT_THAT(error_of([&] { (void)find_profiles("w.csv", "/nowhere"); }),
              StartsWith("/nowhere: no folder of profiles"));
  const std::string empty = (folder_ / "some").string();
  EXPECT_THAT(error_of([&] { (void)read_profiles(empty + "/workloads"); }),
              HasSubstr("no profile in it"));
  write("profiles/ncf/validation-x.csv", "");
  EXPECT_THAT(error_of([&] { (void)read_profiles(profiles()); }),
              HasSubstr("no batch size in the name"));
}

}  // namespace
}  // namespace commensal::simulator::pollux_equality_test
