// SPDX-License-Identifier: Apache-2.0
// The options of the engine for Slurm, and who is asked for the class of its jobs.
#include "coordinator/cluster/slurm_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "coordinator/cluster/command_line.h"

namespace commensal::cluster::slurm_cluster_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CommandLine parse(std::vector<std::string> words) {
  return parse_command_line(std::move(words), "test");
}

TEST(SlurmClusterTest, TheEngineIsThisMachineUnlessSlurmIsNamed) {
  EXPECT_EQ(parse({}).options->engine, "local");
  const auto line = parse({"--engine", "slurm", "--slurm-bin", "/usr", "--slurm-guaranteed", "gold",
                           "--slurm-opportunistic", "free", "--slurm-option=--account=a",
                           "--slurm-option=--qos=b"});
  ASSERT_TRUE(line.options.has_value()) << line.text;
  EXPECT_EQ(line.options->engine, "slurm");
  EXPECT_EQ(line.options->slurm.programs, "/usr");
  EXPECT_EQ(line.options->slurm.guaranteed_partition, "gold");
  EXPECT_EQ(line.options->slurm.opportunistic_partition, "free");
  EXPECT_THAT(line.options->slurm.submit_options, ElementsAre("--account=a", "--qos=b"));
}

TEST(SlurmClusterTest, WrongOptionsAreNamed) {
  for (const auto& [words, named] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--engine", "pbs"}, "pbs"},
           {{"--slurm-bin", "/no/such"}, "/no/such"},
           {{"--policy", "gavel"},
            "policy gavel is for commensal simulate: it needs throughputs of each model"},
           {{"--policy", "optimus"}, "step times by numbers of GPUs"}}) {
    const auto line = parse(words);
    EXPECT_FALSE(line.options.has_value());
    EXPECT_EQ(line.code, node::ExitCode::kUsage);
    EXPECT_THAT(line.text, HasSubstr(named));
  }
}

std::string made_folder() {
  std::string folder = (std::filesystem::temp_directory_path() / "commensal-sc-XXXXXX").native();
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  return folder;
}

TEST(SlurmClusterTest, UnderSlurmTheClassIsAskedOfSlurmFirst) {
  int asked = 0;
  const NodeClasses::Ask local = [&](const std::string&, const wire::Message&) -> wire::Message {
    ++asked;
    return wire::SetReply{};
  };
  ClusterOptions options;
  (void)class_asker(options, local)("n1", wire::SetRequest{});
  EXPECT_EQ(asked, 1);
  options.engine = "slurm";
  options.state_dir = made_folder();
  options.keeper = "/bin/true";
  const auto engine = make_engine(options);
  const auto ask = class_asker(options, local);
  const wire::Message unknown = ask("n1", wire::SetRequest{});
  ASSERT_TRUE(std::holds_alternative<wire::Error>(unknown));
  EXPECT_EQ(std::get<wire::Error>(unknown).code, "malformed");
  wire::SetRequest request;
  request.job = "job-7.1";
  request.job_class = JobClass::kGuaranteed;
  const wire::Message answer = ask("n1", request);  // of which the engine knows nothing
  ASSERT_TRUE(std::holds_alternative<wire::SetReply>(answer));
  EXPECT_EQ(std::get<wire::SetReply>(answer).outcome, wire::Outcome::kRefused);
  EXPECT_EQ(std::get<wire::SetReply>(answer).reason, "it has ended");
  EXPECT_EQ(asked, 1);
  std::filesystem::remove_all(options.state_dir);
}

TEST(SlurmClusterTest, IdsOfNodesStandForAttempts) {
  for (const Attempt& attempt : {Attempt{JobId{"7"}, 1}, Attempt{JobId{"a.2-b"}, 12}}) {
    EXPECT_EQ(attempt_of_node_job(node_job_id(attempt)), attempt);
  }
  for (const char* id :
       {"", "7", "job-7", "job-.1", "job-7.x", "job-7.12345678901", "my job-7.1"}) {
    EXPECT_FALSE(attempt_of_node_job(id).has_value()) << id;
  }
}

TEST(SlurmClusterTest, TheEngineIsMadeWithoutSlurm) {
  const std::string folder = made_folder();
  ClusterOptions options;
  options.engine = "slurm";
  options.state_dir = folder;
  options.keeper = "/bin/true";
  options.slurm.programs = folder;  // nothing is there
  const auto engine = make_engine(options);
  EXPECT_EQ(engine->name(), "slurm");
  try {
    (void)engine->nodes();
    FAIL() << "has nodes";
  } catch (const EngineFailed& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(folder + "/sinfo"), HasSubstr("No such file")));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace commensal::cluster::slurm_cluster_test
