// SPDX-License-Identifier: Apache-2.0
// Real programs: what they say, when they do not end, and what is kept from them.
#include "coordinator/engines/slurm/command_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "coordinator/cluster/engine.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::slurm::command_runner_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> shell(const std::string& text) { return {"/bin/sh", "-c", text}; }

constexpr auto kLong = 60s;

std::string refusal(CommandRunner& runner, const std::vector<std::string>& words,
                    std::chrono::milliseconds deadline = kLong) {
  try {
    (void)runner.run(words, deadline);
  } catch (const EngineFailed& error) {
    return error.what();
  }
  return "not refused";
}

TEST(CommandRunnerTest, BothStreamsAndTheExitCode) {
  ProcessRunner runner;
  const auto result = runner.run(shell("echo out; echo err >&2; exit 7"), kLong);
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.errors, "err\n");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(runner.run(shell("kill -TERM $$"), kLong).exit_code, 128 + SIGTERM);
}

TEST(CommandRunnerTest, NoShellSeesTheWords) {
  ProcessRunner runner;
  const auto result = runner.run({"/usr/bin/printf", "%s|", "a b", "$(id)", "'\"", "*", ""}, kLong);
  EXPECT_EQ(result.output, "a b|$(id)|'\"|*||");
}

TEST(CommandRunnerTest, ItReadsNothingAndMayPrintMuch) {
  ProcessRunner runner;
  EXPECT_EQ(runner.run({"/bin/cat"}, kLong).output, "");
  const auto result =
      runner.run(shell("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"), kLong);
  EXPECT_EQ(result.output.size(), 3'000'000U);
  EXPECT_EQ(result.errors.size(), 3'000'000U);
}

TEST(CommandRunnerTest, OneThatIsNotThereIsNamed) {
  ProcessRunner runner;
  EXPECT_THAT(refusal(runner, {"/no/such/sbatch", "x"}),
              AllOf(HasSubstr("cannot run /no/such/sbatch"), HasSubstr("No such file")));
  EXPECT_THAT(refusal(runner, {}), HasSubstr("without words"));
}

TEST(CommandRunnerTest, OneThatHangsIsEndedWithAllThatItStarted) {
  std::string file = (std::filesystem::temp_directory_path() / "commensal-run-XXXXXX").native();
  const int fd = ::mkstemp(file.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  ProcessRunner runner;
  EXPECT_THAT(refusal(runner, shell("trap '' TERM; sleep 1000 & echo $! > " + file + "; wait"), 1s),
              HasSubstr("/bin/sh did not answer within 1 s"));
  int pid = 0;
  std::ifstream{file} >> pid;
  std::filesystem::remove(file);
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(eventually([&] {  // gone, or dead and nobody has asked for it
    std::string stat;
    std::getline(std::ifstream{"/proc/" + std::to_string(pid) + "/stat"}, stat);
    return stat.empty() || stat.find(") Z") != std::string::npos;
  }));
}

TEST(CommandRunnerTest, OneThatClosesItsOutputAndHangsIsEndedToo) {
  ProcessRunner runner;
  EXPECT_THAT(refusal(runner, shell("exec >&- 2>&-; sleep 1000"), 200ms),
              HasSubstr("did not answer"));
}

TEST(CommandRunnerTest, OneThatSaysTooMuchIsEnded) {
  ProcessRunner runner{100'000};
  EXPECT_THAT(refusal(runner, shell("cat /dev/zero")), HasSubstr("said more than 100000 bytes"));
  EXPECT_THAT(refusal(runner, shell("cat /dev/zero >&2")), HasSubstr("more than 100000 bytes"));
}

TEST(CommandRunnerTest, VariablesThatSteerSlurmAreKeptFromIt) {
  for (const char* name : {"SLURM_JOB_ID", "SBATCH_PARTITION", "SQUEUE_FORMAT", "SINFO_FORMAT",
                           "SCANCEL_BATCH", "SLURM_CLUSTERS"}) {
    EXPECT_TRUE(steers_slurm(name)) << name;
  }
  for (const char* name : {"SLURM_CONF", "PATH", "SLURMX", "HOME"}) {
    EXPECT_FALSE(steers_slurm(name)) << name;
  }
  ASSERT_EQ(::setenv("SBATCH_PARTITION", "elsewhere", 1), 0);
  ASSERT_EQ(::setenv("SLURM_CONF", "/etc/here", 1), 0);
  ProcessRunner runner;
  const std::string said = runner.run({"/usr/bin/env"}, kLong).output;
  EXPECT_THAT(said, AllOf(HasSubstr("SLURM_CONF=/etc/here"), Not(HasSubstr("elsewhere"))));
  ::unsetenv("SBATCH_PARTITION");
  ::unsetenv("SLURM_CONF");
}

}  // namespace
}  // namespace commensal::cluster::slurm::command_runner_test
