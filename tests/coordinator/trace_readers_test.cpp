// SPDX-License-Identifier: Apache-2.0
// Traces and clusters from files: what is read, and how what is wrong is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "coordinator/engines/simulator/cluster_file.h"
#include "coordinator/engines/simulator/jobs_file.h"
#include "coordinator/engines/simulator/readers/trace_reader.h"

namespace commensal::simulator::trace_readers_test {
namespace {

using policies::AskedClass;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() {
    std::string name = (std::filesystem::temp_directory_path() / "traces-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
    folder_ = name;
  }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  /// Writes a file and returns its path.
  std::string file(const std::string& text) {
    const std::string path = folder_ / "given";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  /// What reading a trace says; empty if it is read.
  std::string refused(const std::string& text, std::string_view format) {
    try {
      (void)read_trace(file(text), format, {});
    } catch (const BadTrace& error) {
      return error.what();
    }
    return "";
  }

  std::string refused_cluster(const std::string& text) {
    try {
      (void)read_cluster(file(text));
    } catch (const BadCluster& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(FilesTest, ReadsOurOwnFormatWithColumnsInAnyOrder) {
  const Trace trace =
      read_trace(file("gpus,job,submit,duration,class,tenant,note\n2,a,0.5,10,opportunistic,t1,x\n"
                      "1,\"b,c\",3,4,,,y\n"),
                 "commensal", {});
  ASSERT_EQ(trace.jobs.size(), 2U);
  EXPECT_EQ(trace.jobs[0].name, "a");
  EXPECT_EQ(trace.jobs[0].gpus, 2);
  EXPECT_EQ(trace.jobs[0].submit, 0.5);
  EXPECT_EQ(trace.jobs[0].tenant, "t1");
  EXPECT_EQ(trace.jobs[0].asked, AskedClass::kOpportunistic);
  EXPECT_EQ(trace.jobs[1].name, "b,c");
  EXPECT_EQ(trace.jobs[1].asked, AskedClass::kGuaranteed);
}

TEST_F(FilesTest, OurOwnFormatSaysAllThatAJobMayAskFor) {
  const std::string heading =
      "job,submit,duration,gpus,gpu_milli,gpu_types,min_gpus,max_gpus,cores,memory_gib,user,group,"
      "name,"
      "request,entrypoint,weight,busy,iterations,iteration_seconds,batch_size\n";
  const Trace trace = read_trace(
      file(
          heading +
          "a,0,9,2,250,v100|t4,1,4,1.5,0.5,ann,g7,night run,half a GPU,train.py,2,0.4,90,0.1,32\n" +
          "b,0,9,2,,,,,,,,,,,,,,,,\n"),
      "commensal", {});
  const TraceJob& job = trace.jobs[0];
  EXPECT_EQ(job.gpu_milli, 250);
  EXPECT_THAT(job.gpu_types, ElementsAre("v100", "t4"));
  EXPECT_EQ(job.min_gpus, 1);
  EXPECT_EQ(job.max_gpus, 4);
  EXPECT_EQ(job.cpu_milli, 1500);
  EXPECT_EQ(job.memory_mib, 512);
  EXPECT_EQ(job.user, "ann");
  EXPECT_EQ(job.group, "g7");
  EXPECT_EQ(job.title, "night run");
  EXPECT_EQ(job.request, "half a GPU");
  EXPECT_EQ(job.entrypoint, "train.py");
  EXPECT_EQ(job.weight, 2);
  EXPECT_EQ(job.busy, 0.4);
  EXPECT_EQ(job.iterations, 90);
  EXPECT_EQ(job.iteration_seconds, 0.1);
  EXPECT_EQ(job.batch_size, 32);
  const TraceJob& plain = trace.jobs[1];
  EXPECT_EQ(plain.gpu_milli, policies::kWholeGpu);
  EXPECT_EQ(plain.min_gpus, 2);
  EXPECT_EQ(plain.max_gpus, 2);
  EXPECT_EQ(plain.weight, 1);
  EXPECT_LT(plain.busy, 0);
}

TEST_F(FilesTest, AStepOfPaiIsAsLongAsThatOfItsSlowestWorker) {
  const std::string heading = ",worker,gpu,time,batch_time_norm\n";
  const Trace trace = read_trace(file(heading + "0,0,25,1,400\n1,1,25,1,500\n2,0,25,9,1000\n"),
                                 "pai-minibatch", {});
  ASSERT_EQ(trace.jobs.size(), 1U);
  EXPECT_EQ(trace.jobs[0].name, "given");
  EXPECT_EQ(trace.jobs[0].gpus, 2);
  EXPECT_EQ(trace.jobs[0].gpu_milli, 250);
  EXPECT_EQ(trace.jobs[0].iterations, 2);
  EXPECT_EQ(trace.jobs[0].duration, 1.5);
  EXPECT_THAT(refused(heading + "0,0,25,1,1001\n", "pai-minibatch"),
              HasSubstr("line 2, column batch_time_norm: more than 1000: \"1001\""));
  EXPECT_THAT(refused(heading + "0,0,25,1,1\n0,1,50,1,1\n", "pai-minibatch"),
              HasSubstr("line 3, column gpu: unlike other workers: \"50\""));
  EXPECT_THAT(refused(heading, "pai-minibatch"), HasSubstr("no job in it"));
}

TEST_F(FilesTest, StepsOfPaiAreLongerTheMoreTheyVary) {
  const Trace trace = read_trace(file(",0,1,2\njob_00,0,0,\njob_01,0.5,,\n"), "pai-variation", {});
  ASSERT_EQ(trace.jobs.size(), 2U);
  EXPECT_EQ(trace.jobs[0].duration, 2);
  EXPECT_EQ(trace.jobs[1].iterations, 1);
  EXPECT_NEAR(trace.jobs[1].duration, 1.7694, 1e-9);
  EXPECT_THAT(refused(",0,1\njob_00,x,0\n", "pai-variation"),
              HasSubstr("line 2, column 0: no number: \"x\""));
  EXPECT_THAT(refused(",0,1\nj,1,0\nj,1,0\n", "pai-variation"), HasSubstr("a second job"));
  EXPECT_THAT(refused(",0,1\nj,1,0,0\n", "pai-variation"), HasSubstr("more values than columns"));
}

TEST_F(FilesTest, NamesColumnAndValueOfWhatCannotBeAskedFor) {
  const auto with = [&](const std::string& column, const std::string& value) {
    return refused("job,submit,duration,gpus," + column + "\na,0,1,2," + value + "\n", "commensal");
  };
  EXPECT_THAT(with("gpu_milli", "1001"), HasSubstr("column gpu_milli: more than a whole GPU"));
  EXPECT_THAT(with("gpu_milli", "0"), HasSubstr("column gpu_milli: less than 1: \"0\""));
  EXPECT_THAT(with("min_gpus", "3"), HasSubstr("column min_gpus: more than gpus, 2: \"3\""));
  EXPECT_THAT(with("max_gpus", "1"), HasSubstr("column max_gpus: less than gpus, 2: \"1\""));
  EXPECT_THAT(with("cores", "-1"), HasSubstr("column cores: negative: \"-1\""));
  EXPECT_THAT(with("memory_gib", "1e300"), HasSubstr("column memory_gib: too large"));
  EXPECT_THAT(with("weight", "0"), HasSubstr("column weight: not above zero"));
  EXPECT_THAT(with("busy", "1.1"), HasSubstr("column busy: more than 1"));
}

TEST_F(FilesTest, ReadsDatesOfPhillyFromItsEarliestJob) {
  const Trace trace = read_trace(file("timestamp,duration,num_gpus,gpu_time,cluster\n"
                                      "2017-10-09 07:01:55,66.0,1,66.0,vc1\n"
                                      "2017-10-09 06:01:55,5.0,8,40.0,vc2\n\n"),
                                 "philly", {});
  ASSERT_EQ(trace.jobs.size(), 2U);
  EXPECT_EQ(trace.jobs[0].submit, 3600);
  EXPECT_EQ(trace.jobs[1].submit, 0);
  EXPECT_EQ(trace.jobs[1].tenant, "vc2");
  EXPECT_THAT(refused("timestamp,duration,num_gpus,cluster\n2017-10-09,66.0,1,vc1\n", "philly"),
              AllOf(HasSubstr("line 2, column timestamp"), HasSubstr("\"2017-10-09\"")));
}

TEST_F(FilesTest, ReadsClassesOfChronusAndSecondsOfShockwave) {
  const Trace chronus =
      read_trace(file("job_id,user,num_gpu,submit_time,iterations,model_name,duration,best_effort\n"
                      "7,vc,1,10,3,vgg16,20,1\n"),
                 "chronus", {});
  EXPECT_EQ(chronus.jobs[0].asked, AskedClass::kOpportunistic);
  const std::string heading = "job_type,total_steps,num_gpu,priority_weight,slo,extra,arrival_s\n";
  const Trace shockwave =
      read_trace(file(heading + "LM,134583,2,1,-1,gns|1418,55\n"), "shockwave", {});
  EXPECT_EQ(shockwave.jobs[0].duration, 1418);
  EXPECT_EQ(shockwave.jobs[0].submit, 55);
  EXPECT_THAT(refused(heading + "LM,134583,2,1,-1,,55\n", "shockwave"),
              HasSubstr("column extra: no mode|seconds: \"\""));
  EXPECT_THAT(refused(heading + "LM,134583,2,1,-1,gns|soon,55\n", "shockwave"),
              HasSubstr("column extra: no number: \"soon\""));
}

TEST_F(FilesTest, NamesFileLineColumnAndValueOfABadRow) {
  const std::string heading = "job,submit,duration,gpus\na,0,1,1\n";
  EXPECT_THAT(refused(heading + "b,-5,1,1\n", "commensal"),
              AllOf(StartsWith(folder_.string()), HasSubstr("line 3, column submit: negative"),
                    HasSubstr("\"-5\"")));
  EXPECT_THAT(refused(heading + "b,5,later,1\n", "commensal"),
              HasSubstr("column duration: no number: \"later\""));
  EXPECT_THAT(refused(heading + "b,5,nan,1\n", "commensal"), HasSubstr("no number: \"nan\""));
  EXPECT_THAT(refused(heading + "b,5,1,0\n", "commensal"), HasSubstr("gpus: less than 1: \"0\""));
  EXPECT_THAT(refused(heading + "b,5,1,1.5\n", "commensal"), HasSubstr("no whole number: \"1.5\""));
  EXPECT_THAT(refused(heading + "b,5,1\n", "commensal"),
              HasSubstr("line 3: fewer values than columns"));
  EXPECT_THAT(refused(heading + "b,5,1,2,3\n", "commensal"),
              HasSubstr("line 3: more values than columns"));
  EXPECT_THAT(refused("job,submit,duration,gpus,class\na,0,1,1,best\n", "commensal"),
              HasSubstr("neither guaranteed, opportunistic nor auto: \"best\""));
}

TEST_F(FilesTest, RefusesTwoJobsWithOneId) {
  EXPECT_THAT(refused("job,submit,duration,gpus\na,0,1,1\nb,0,1,1\na,2,1,1\n", "commensal"),
              HasSubstr("line 4, column job: a second job with this id: \"a\""));
}

TEST_F(FilesTest, RefusesFilesWithoutAJobOrWithoutAColumn) {
  EXPECT_THAT(refused("job,submit,duration,gpus\n", "commensal"), HasSubstr("no job in it"));
  EXPECT_THAT(refused("job,submit,gpus\na,0,1\n", "commensal"), HasSubstr("no column duration"));
  EXPECT_THROW((void)read_trace(folder_ / "absent", "commensal", {}), BadTrace);
}

TEST_F(FilesTest, SkipsBadRowsAndCountsThem) {
  const Trace trace =
      read_trace(file("job,submit,duration,gpus\na,0,1,1\nb,x,1,1\na,0,1,1\nc,1,1\nd,1,1,1\n"),
                 "commensal", {.skip_bad_rows = true, .profiles = {}});
  EXPECT_EQ(trace.jobs.size(), 2U);
  EXPECT_EQ(trace.skipped_rows, 3U);
}

TEST_F(FilesTest, TellsTheFormatByTheColumns) {
  EXPECT_EQ(guess_format(file("job_id,submission_time,duration,num_gpu\n")), "itp");
  EXPECT_EQ(guess_format(file("num_gpu,job_id,submit_time,iterations,model_name,duration\n")),
            "tiresias");
  EXPECT_EQ(guess_format(file("job_id,num_gpu,submit_time,iterations,model_name,duration,"
                              "iteration_time,resource_time_0,priority\n")),
            "muri");
  EXPECT_EQ(guess_format(file("job,submit,duration,gpus\n")), "commensal");
  EXPECT_EQ(guess_format(file(",worker,gpu,time,batch_time_norm\n")), "pai-minibatch");
  EXPECT_EQ(guess_format(file(",0,1,2\n")), "pai-variation");
  EXPECT_THROW((void)guess_format(file("when,how,long\n")), BadTrace);
  EXPECT_THROW((void)guess_format(file("")), BadTrace);
}

TEST_F(FilesTest, AnUnknownFormatIsRefusedWithTheNearest) {
  try {
    (void)read_trace(file(""), "phily", {});
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("no trace format phily; did you mean philly?"));
  }
}

TEST_F(FilesTest, ReadsAClusterOfSeveralTypes) {
  const auto [nodes, tenants] = read_cluster(file(R"({"gpu_types": ["v100", "t4"], "nodes": [
      {"count": 2, "gpus": 8, "gpu_type": "v100", "rack": 3, "cores": 96, "memory_gib": 512},
      {"name": "small", "gpus": 1, "gpu_type": "t4"}],
      "tenants": [{"name": "vision", "quota": 12}, {"name": "speech"}]})"));
  ASSERT_EQ(tenants.size(), 2U);
  EXPECT_EQ(tenants[0], (policies::Tenant{.name = "vision", .quota = 12}));
  EXPECT_EQ(tenants[1], (policies::Tenant{.name = "speech", .quota = {}}));
  ASSERT_EQ(nodes.size(), 3U);
  EXPECT_EQ(nodes[1].gpus, 8);
  EXPECT_EQ(nodes[1].rack, 3);
  EXPECT_EQ(nodes[1].cpu_milli, 96'000);
  EXPECT_EQ(nodes[1].memory_mib, 512 * 1024);
  EXPECT_NE(nodes[0].name, nodes[1].name);
  EXPECT_EQ(nodes[2].name, "small");
  EXPECT_EQ(nodes[2].gpu_type, "t4");
}

TEST_F(FilesTest, NamesFileKeyAndValueOfABadCluster) {
  EXPECT_THAT(
      refused_cluster(R"({"gpu_types": ["v100"], "nodes": [{"gpus": 8, "gpu_type": "v10"}]})"),
      AllOf(StartsWith(folder_.string()), HasSubstr("nodes[0]"), HasSubstr("gpu_type = \"v10\"")));
  EXPECT_THAT(refused_cluster(R"({"nodes": [{"gpus": 8, "colour": 1}]})"), HasSubstr("colour = 1"));
  EXPECT_THAT(refused_cluster(R"({"nodes": [{"gpus": -1}]})"), HasSubstr("gpus = -1"));
  EXPECT_THAT(refused_cluster(R"({"nodes": [{"gpus": "8"}]})"), HasSubstr("gpus = \"8\""));
  EXPECT_THAT(refused_cluster(R"({"nodes": [{"gpus": 1e300}]})"), HasSubstr("gpus ="));
  EXPECT_THAT(refused_cluster(R"({"nodes": 3})"), HasSubstr("nodes = 3"));
  EXPECT_THAT(refused_cluster(R"({"nodes": []})"), HasSubstr("no node with a GPU"));
  const std::string nodes = R"({"nodes": [{"gpus": 1}], "tenants": )";
  EXPECT_THAT(refused_cluster(nodes + R"([{"quota": 1}]})"),
              AllOf(HasSubstr("tenants[0]"), HasSubstr("\"name\"")));
  EXPECT_THAT(refused_cluster(nodes + R"([{"name": "a", "quota": -1}]})"), HasSubstr("quota = -1"));
  EXPECT_THAT(refused_cluster(nodes + R"([{"name": "a"}, {"name": "a"}]})"),
              AllOf(HasSubstr("tenants[1]"), HasSubstr("second"), HasSubstr("\"a\"")));
  EXPECT_THAT(refused_cluster("{"), HasSubstr("is not JSON"));
  EXPECT_THROW((void)read_cluster(folder_ / "absent"), BadCluster);
}

TEST_F(FilesTest, WritesJobsWholeAndQuotesWhatNeedsIt) {
  Trace trace;
  trace.jobs.resize(1);
  trace.jobs[0].name = "a,\"b\"";
  Outcome outcome;
  outcome.jobs.push_back(
      {.row = 0, .submit = 1, .first_start = 2, .end = 5.5, .waited = 1, .gpus = 4});
  write_jobs(folder_ / "out.csv", "fifo", trace, outcome);
  std::ifstream in(folder_ / "out.csv");
  std::string heading;
  std::string row;
  std::getline(in, heading);
  std::getline(in, row);
  EXPECT_EQ(row, "fifo,\"a,\"\"b\"\"\",,guaranteed,4,1,2,5.5,4.5,1,0,");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  EXPECT_THROW(write_jobs(folder_ / "absent" / "out.csv", "fifo", trace, outcome),
               std::system_error);
}

}  // namespace
}  // namespace commensal::simulator::trace_readers_test
