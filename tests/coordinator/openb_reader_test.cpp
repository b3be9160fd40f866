// SPDX-License-Identifier: Apache-2.0
// Pods and nodes of openb: what is read, and what of a bad row is named.
#include "coordinator/engines/simulator/readers/openb_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace commensal::simulator::openb_reader_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr const char* kColumns =
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n";

class OpenbReaderTest : public ::testing::Test {
 protected:
  ~OpenbReaderTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& content) {
    std::filesystem::create_directories(folder_);
    const auto path = folder_ / name;
    std::ofstream(path) << content;
    return path.string();
  }
  TraceJob pod(const std::string& row) {
    return read_openb(file("pods.csv", kColumns + row + "\n"), {}).jobs.at(0);
  }

  std::filesystem::path folder_ = std::filesystem::path(::testing::TempDir()) /
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(OpenbReaderTest, ReadsWhatAPodAsksFor) {
  const TraceJob job = pod("a,6000,12288,1,460,V100M16|V100M32,BE,Running,100,900,300");
  EXPECT_EQ(job.name, "a");
  EXPECT_EQ(job.cpu_milli, 6000);
  EXPECT_EQ(job.memory_mib, 12288);
  EXPECT_EQ(job.gpus, 1);
  EXPECT_EQ(job.gpu_milli, 460);
  EXPECT_THAT(job.gpu_types, ElementsAre("V100M16", "V100M32"));
  EXPECT_EQ(job.asked, policies::AskedClass::kOpportunistic);
  EXPECT_EQ(job.submit, 100);
  EXPECT_EQ(job.duration, 600);
}

TEST_F(OpenbReaderTest, APodThatNeverStartedRunsNoTime) {
  const TraceJob job = pod("a,6000,12288,0,0,,LS,Pending,100,900,");
  EXPECT_EQ(job.gpus, 0);
  EXPECT_EQ(job.duration, 0);
  EXPECT_EQ(job.asked, policies::AskedClass::kGuaranteed);
}

TEST_F(OpenbReaderTest, ReadsResourcesAlone) {
  const Trace trace = read_openb(
      file("pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,2,8,1000\n"), {});
  ASSERT_EQ(trace.jobs.size(), 1U);
  EXPECT_EQ(trace.jobs[0].gpus, 8);
  EXPECT_THAT(trace.jobs[0].gpu_types, IsEmpty());
}

TEST_F(OpenbReaderTest, NamesWhatIsWrong) {
  const auto row = [this](const char* text, const char* column, const char* what) {
    EXPECT_THAT([&] { (void)pod(text); },
                ThrowsMessage<BadTrace>(AllOf(HasSubstr("pods.csv"), HasSubstr("line 2"),
                                              HasSubstr(column), HasSubstr(what))))
        << text;
  };
  row("a,6000,1,1,1001,,LS,Running,1,2,1", "gpu_milli", "more than a whole GPU: \"1001\"");
  row("a,6000,1,2,500,,LS,Running,1,2,1", "gpu_milli", "parts of several GPUs");
  row("a,6000,1,1,0,,LS,Running,1,2,1", "gpu_milli", "nothing of a GPU");
  row("a,6000,1,0,5,,LS,Running,1,2,1", "gpu_milli", "a part of no GPU");
  row("a,-1,1,1,500,,LS,Running,1,2,1", "cpu_milli", "less than 0: \"-1\"");
  row("a,6000,1,1,500,,XX,Running,1,2,1", "qos", "\"XX\"");
  row("a,6000,1,1,500,,LS,Running,3,2,2", "deletion_time", "before it was created");
  row("a,6000,1,1,500,,LS,Running,1,2,3", "scheduled_time", "after it was deleted");
}

TEST_F(OpenbReaderTest, CountsBadRowsIfAsked) {
  const std::string name =
      file("pods.csv", std::string(kColumns) + "a,1,1,1,1001,,LS,Running,1,2,1\n" +
                           "b,1,1,1,1000,,LS,Running,1,2,1\n");
  const Trace trace = read_openb(name, {.skip_bad_rows = true, .profiles = {}});
  EXPECT_EQ(trace.jobs.size(), 1U);
  EXPECT_EQ(trace.skipped_rows, 1U);
}

TEST_F(OpenbReaderTest, ReadsNodes) {
  const auto nodes =
      read_openb_nodes(file("nodes.csv",
                            "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n"
                            "n1,32000,1024,0,\n"));
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0].name, "n0");
  EXPECT_EQ(nodes[0].gpus, 2);
  EXPECT_EQ(nodes[0].gpu_type, "P100");
  EXPECT_EQ(nodes[0].cpu_milli, 64000);
  EXPECT_EQ(nodes[0].memory_mib, 262144);
  EXPECT_NE(nodes[0].rack, nodes[1].rack);
}

TEST_F(OpenbReaderTest, NodesMustHaveAGpuAmongThem) {
  const std::string columns = "sn,cpu_milli,memory_mib,gpu,model\n";
  EXPECT_THAT([&] { (void)read_openb_nodes(file("none.csv", columns + "n1,32000,1024,0,\n")); },
              ThrowsMessage<BadTrace>(HasSubstr("none.csv: no node with a GPU")));
  EXPECT_THAT(
      [&] { (void)read_openb_nodes(file("twice.csv", columns + "n,1,1,1,T4\nn,1,1,1,T4\n")); },
      ThrowsMessage<BadTrace>(AllOf(HasSubstr("line 3"), HasSubstr("sn"))));
  EXPECT_THAT([&] { (void)read_openb_nodes(file("model.csv", columns + "n,1,1,1,\n")); },
              ThrowsMessage<BadTrace>(HasSubstr("GPUs without a model")));
}

TEST_F(OpenbReaderTest, FindsNodesBesideTheTrace) {
  const std::string pods = file("pods.csv", kColumns);
  EXPECT_EQ(openb_nodes_beside(pods), std::nullopt);
  const std::string nodes = file("openb_node_list_gpu_node.csv", "");
  EXPECT_EQ(openb_nodes_beside(pods), nodes);
}

}  // namespace
}  // namespace commensal::simulator::openb_reader_test
