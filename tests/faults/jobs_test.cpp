// SPDX-License-Identifier: Apache-2.0
// Jobs that behave as no job should: they never step, leave by _exit in the middle of a step, fork
// and die, become another program. A real daemon, real sessions; contents, leases and a retry.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>

#include "tests/coordinator/fake_job.h"

namespace commensal::node::jobs_test {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMiB = 1U << 20U;

/// A process of tests/faults/session_job.cpp; killed in the destructor.
class SessionJob {
 public:
  SessionJob(const DaemonFolder& folder, const std::string& id, const std::string& behaviour) {
    std::array<int, 2> input{};
    std::array<int, 2> output{};
    if (::pipe2(input.data(), O_CLOEXEC) != 0 || ::pipe2(output.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("cannot make pipes");
    }
    input_.reset(input[1]);
    output_.reset(output[0]);
    const wire::UniqueFd child_input{input[0]};
    const wire::UniqueFd child_output{output[1]};
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(child_input.get(), STDIN_FILENO);
      ::dup2(child_output.get(), STDOUT_FILENO);
      ::execl(SESSION_JOB, SESSION_JOB, folder.path().c_str(), id.c_str(), behaviour.c_str(),
              nullptr);
      ::_exit(127);
    }
  }
  ~SessionJob() { kill(); }
  SessionJob(const SessionJob&) = delete;
  SessionJob& operator=(const SessionJob&) = delete;

  /// Reads until a line holds `wanted`; false at the end of its output.
  bool says(const std::string& wanted) {
    for (;;) {
      const std::size_t end = read_.find('\n');
      if (end != std::string::npos) {
        const std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        if (line.find("content lost") != std::string::npos) ADD_FAILURE() << line;
        if (line == wanted) return true;
        continue;
      }
      std::array<char, 256> buffer{};
      const ssize_t n = ::read(output_.get(), buffer.data(), buffer.size());
      if (n <= 0) return false;
      read_.append(buffer.data(), static_cast<std::size_t>(n));
    }
  }
  void go_on() { (void)!::write(input_.get(), "x", 1); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = -1;
  wire::UniqueFd input_;
  wire::UniqueFd output_;
  std::string read_;
};

class StrangeJobs : public ::testing::Test {
 protected:
  void SetUp() override {
    const Finished started = folder_.start({"--memory-budget", "512MiB", "--silence", "2"});
    ASSERT_EQ(started.code, 0) << started.output;
  }
  [[nodiscard]] json job(const std::string& id) const {
    const json status = folder_.status();
    for (const json& each : status["jobs"]) {
      if (each["job"]["id"] == id && each["ended"] == false) return each;
    }
    return {};
  }
  [[nodiscard]] std::uint64_t free_bytes() const {
    return folder_.status()["devices"][0]["free_bytes"].get<std::uint64_t>();
  }
  bool gone(const std::string& id) {
    return eventually([&] { return job(id).is_null() && free_bytes() == 512 * kMiB; });
  }
  /// Lowers a job's limit and waits until that much is really left.
  bool shrinks(const std::string& id, std::uint64_t mib) {
    wire::SetRequest request;
    request.job = id;
    request.terms.memory = MemoryRange{{}, Bytes{mib * kMiB}};
    EXPECT_EQ(std::get<wire::SetReply>(folder_.client().request(request)).outcome,
              wire::Outcome::kApplied);
    return eventually([&] {
      const json now = job(id);
      return !now.is_null() && now["lease"]["charged_bytes"] == mib * kMiB &&
             now["memory"]["device_bytes"].get<std::uint64_t>() <= mib * kMiB;
    });
  }
  /// The retry: a job that behaves gets the device, shrinks, and keeps its content.
  void expect_the_next_works() {
    SessionJob next{folder_, "next", "steps"};
    ASSERT_TRUE(next.says("lives"));
    EXPECT_TRUE(eventually([&] {
      const json now = job("next");
      return !now.is_null() && now["lease"]["granted_bytes"] == 512 * kMiB;
    }));
    EXPECT_TRUE(shrinks("next", 16));
    EXPECT_TRUE(next.says("content is right"));
  }

  DaemonFolder folder_;
};

TEST_F(StrangeJobs, Law2_OneThatNeverStepsGivesMemoryBackAllTheSame) {
  SessionJob still{folder_, "still", "never_steps"};
  ASSERT_TRUE(still.says("lives"));
  EXPECT_TRUE(shrinks("still", 16)) << job("still").dump();
  EXPECT_TRUE(still.says("content is right"));
  EXPECT_TRUE(shrinks("still", 256));
  EXPECT_TRUE(still.says("content is right"));
  still.kill();
  EXPECT_TRUE(gone("still"));
  expect_the_next_works();
}

TEST_F(StrangeJobs, OneThatLeavesByExitInTheMiddleOfAStepReturnsItsLease) {
  SessionJob leaver{folder_, "leaver", "exits"};
  ASSERT_TRUE(leaver.says("exits"));
  EXPECT_TRUE(eventually([&] { return !job("leaver").is_null(); }));
  leaver.go_on();
  EXPECT_EQ(leaver.wait(), 3);
  EXPECT_TRUE(gone("leaver"));
  expect_the_next_works();
}

TEST_F(StrangeJobs, Law2_AForkedChildKeepsItsSnapshotAndNoLease) {
  SessionJob parent{folder_, "parent", "forks"};
  ASSERT_TRUE(parent.says("lives"));
  EXPECT_EQ(job("parent")["members"].size(), 1U) << "the child is no member";
  EXPECT_TRUE(shrinks("parent", 16));
  EXPECT_TRUE(parent.says("content is right"));
  parent.kill();
  EXPECT_TRUE(gone("parent")) << "although the child lives";
  expect_the_next_works();
  EXPECT_TRUE(parent.says("child: content is right"));
}

TEST_F(StrangeJobs, OneThatBecomesAnotherProgramReturnsItsLease) {
  SessionJob turncoat{folder_, "turncoat", "execs"};
  ASSERT_TRUE(turncoat.says("execs"));
  EXPECT_TRUE(eventually([&] { return !job("turncoat").is_null(); }));
  turncoat.go_on();
  EXPECT_TRUE(gone("turncoat")) << "its process lives, but nothing of the job";
  EXPECT_EQ(::kill(turncoat.pid(), 0), 0);
  expect_the_next_works();
}

TEST_F(StrangeJobs, OneThatStartsItsProgramAgainIsTheSameJob) {
  SessionJob again{folder_, "again", "execs_again"};
  ASSERT_TRUE(again.says("execs"));
  again.go_on();
  ASSERT_TRUE(again.says("lives"));
  EXPECT_EQ(job("again")["members"].size(), 1U);
  EXPECT_EQ(job("again")["lease"]["granted_bytes"], 512 * kMiB);
  EXPECT_TRUE(shrinks("again", 16));
  EXPECT_TRUE(again.says("content is right"));
  again.kill();
  EXPECT_TRUE(gone("again"));
}

}  // namespace
}  // namespace commensal::node::jobs_test
