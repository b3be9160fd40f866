// SPDX-License-Identifier: Apache-2.0
// The weight of a job's control group, with a kernel made up, and on this machine where it allows
// it.
#include "coordinator/node/group_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>

#include "coordinator/node/kernel_files.h"

namespace commensal::node::group_weight_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const JobId kJob{"sweep-1"};

/// A tree of files that behaves like the kernel's: a group that is made has its controller's files,
/// a process that is written to one leaves the other, and a group with processes stays.
class FakeGroups final : public GroupFiles {
 public:
  explicit FakeGroups(int version) : version_(version) {}

  std::optional<std::string> read(const fs::path& file) override { return read_file(file); }
  std::string write(const fs::path& file, const std::string& text) override {
    if (!fs::exists(file)) return "cannot write to " + file.native() + ": No such file";
    if (refused.contains(file.filename())) return "cannot write to " + file.native() + ": refused";
    if (file.filename() == "cgroup.procs") return move(file.parent_path(), text);
    std::ofstream{file} << text << "\n";
    if (file.filename() == "cpu.idle" && text == "0") {
      std::ofstream{file.parent_path() / weight()} << (version_ == 1 ? "1024\n" : "100\n");
    }
    return "";
  }
  std::string make(const fs::path& group) override {
    if (refused.contains("mkdir")) return "cannot make " + group.native() + ": refused";
    fs::create_directories(group);
    std::ofstream{group / "cgroup.procs"};
    std::ofstream{group / weight()} << (version_ == 1 ? "1024\n" : "100\n");
    if (has_idle) std::ofstream{group / "cpu.idle"} << "0\n";
    return "";
  }
  std::string remove(const fs::path& group) override {
    if (!read_file(group / "cgroup.procs").value_or("").empty()) return "busy";
    fs::remove_all(group);
    return "";
  }
  bool delegated(const fs::path& group) override { return marked.contains(group.filename()); }

  [[nodiscard]] const char* weight() const { return version_ == 1 ? "cpu.shares" : "cpu.weight"; }

  fs::path root;
  std::set<std::string> refused;
  std::set<std::string> marked;
  bool has_idle = false;

 private:
  std::string move(const fs::path& group, const std::string& pid) {
    for (const auto& entry : fs::recursive_directory_iterator{root}) {
      if (entry.path().filename() != "cgroup.procs") continue;
      std::string left;
      for (const std::string& word : words(read_file(entry.path()).value_or(""), '\n')) {
        if (word != pid) left += word + "\n";
      }
      std::ofstream{entry.path()} << left;
    }
    std::ofstream{group / "cgroup.procs", std::ios::app} << pid << "\n";
    return "";
  }
  int version_;
};

/// A machine with a hierarchy of one version, in which process 7 is a job.
class GroupWeightTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "commensal-groups-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    files_.root = root_ = pattern;
    weights_.emplace(HostRoots{root_ / "proc", root_, root_ / "sys"}, files_);
    const bool v1 = GetParam() == 1;
    write("proc/self/mountinfo", v1 ? "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                                    : "30 20 0:26 / /sys/fs/cgroup/cpu rw - cgroup2 cgroup2 rw\n");
    for (const fs::path& folder : {mount(), slice(), group()}) {
      EXPECT_EQ(files_.make(folder), "");
    }
    write("sys/fs/cgroup/cpu/user/cgroup.subtree_control", "cpu memory\n");
    place(7, "/user/job");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream{root_ / path} << text;
  }
  void place(int pid, const std::string& group) {
    write("proc/" + std::to_string(pid) + "/cgroup",
          (GetParam() == 1 ? "2:cpu:" : "0::") + group + "\n");
    EXPECT_EQ(files_.write(mount() / group.substr(1) / "cgroup.procs", std::to_string(pid)), "");
  }
  [[nodiscard]] fs::path mount() const { return root_ / "sys/fs/cgroup/cpu"; }
  [[nodiscard]] fs::path slice() const { return mount() / "user"; }
  [[nodiscard]] fs::path group() const { return slice() / "job"; }
  [[nodiscard]] fs::path made() const {
    return (GetParam() == 1 ? group() : slice()) / "commensal-sweep-1";
  }
  [[nodiscard]] std::string weight_of(const fs::path& folder) const {
    return line(folder / files_.weight());
  }
  [[nodiscard]] static std::string line(const fs::path& file) {
    std::string text = read_file(file).value_or("none");
    while (text.ends_with('\n')) text.pop_back();
    return text;
  }
  [[nodiscard]] static std::string least() { return GetParam() == 1 ? "2" : "1"; }
  [[nodiscard]] static std::string usual() { return GetParam() == 1 ? "1024" : "100"; }
  const GroupOutcome& lower(const std::set<std::int64_t>& processes = {7}, bool idle = true) {
    return weights_->lower(kJob, processes, idle);
  }

  fs::path root_;
  FakeGroups files_{GetParam()};
  std::optional<GroupWeights> weights_;
};

TEST_P(GroupWeightTest, AGroupThatIsTheJobsAloneGetsTheLeastWeightUntilItEnds) {
  write("sys/fs/cgroup/cpu/user/job/" + std::string{files_.weight()}, "77\n");
  const GroupOutcome outcome = lower();
  EXPECT_TRUE(outcome.low);
  EXPECT_EQ(outcome.group, group());
  EXPECT_EQ(outcome.reason,
            std::string{files_.weight()} + " " + least() + " for its control group");
  EXPECT_EQ(weight_of(group()), least());
  EXPECT_EQ(weight_of(slice()), usual());
  EXPECT_EQ(weights_->known(), std::set<JobId>{kJob});
  weights_->restore(kJob);
  EXPECT_EQ(weight_of(group()), "77");
  EXPECT_TRUE(weights_->known().empty());
}

TEST_P(GroupWeightTest, WhereTheKernelHasAnIdleClassOfGroupsTheGroupGoesThere) {
  files_.has_idle = true;
  EXPECT_EQ(files_.make(group()), "");
  place(7, "/user/job");
  write("sys/fs/cgroup/cpu/user/job/" + std::string{files_.weight()}, "77\n");
  EXPECT_EQ(lower().reason, "cpu.idle 1 for its control group");
  EXPECT_EQ(line(group() / "cpu.idle"), "1");
  weights_->restore(kJob);
  EXPECT_EQ(line(group() / "cpu.idle"), "0");
  EXPECT_EQ(weight_of(group()), "77") << "the kernel forgets it meanwhile";
}

TEST_P(GroupWeightTest, WhatItsOwnerMadeLightStaysSo) {
  write("sys/fs/cgroup/cpu/user/job/" + std::string{files_.weight()}, least() + "\n");
  EXPECT_TRUE(lower().low);
  weights_->restore(kJob);
  EXPECT_EQ(weight_of(group()), least());
  files_.has_idle = true;
  EXPECT_EQ(files_.make(group()), "");
  place(7, "/user/job");
  write("sys/fs/cgroup/cpu/user/job/cpu.idle", "1\n");
  EXPECT_TRUE(lower().low);
  weights_->restore(kJob);
  EXPECT_EQ(line(group() / "cpu.idle"), "1");
}

TEST_P(GroupWeightTest, TheNextCoordinatorRemovesWhatAKilledOneMade) {
  place(8, "/user/job");
  files_.marked = {"user", "job"};
  ASSERT_TRUE(lower({7}, false).low);
  place(7, "/user/" + std::string{GetParam() == 1 ? "job/" : ""} + "commensal-sweep-1");
  GroupWeights next{HostRoots{root_ / "proc", root_, root_ / "sys"}, files_};
  EXPECT_TRUE(next.lower(kJob, {7}, false).low);
  next.restore(kJob);
  EXPECT_FALSE(fs::exists(made()));
}

TEST_P(GroupWeightTest, InASharedGroupTheIdleClassIsEnough) {
  place(8, "/user/job");
  const GroupOutcome& outcome = lower();
  EXPECT_FALSE(outcome.low);
  EXPECT_EQ(outcome.reason, "shares " + group().native() +
                                " with others, behind which the kernel's idle class puts it");
  EXPECT_EQ(weight_of(group()), usual());
  weights_->restore(kJob);
  EXPECT_EQ(weight_of(group()), usual());
}

TEST_P(GroupWeightTest, AGroupBelowWithOthersIsShared) {
  EXPECT_EQ(files_.make(group() / "below"), "");
  place(8, "/user/job/below");
  EXPECT_FALSE(lower().low);
  EXPECT_THAT(lower({7, 8}).reason, HasSubstr("several control groups")) << "the job's, and apart";
}

TEST_P(GroupWeightTest, WithoutTheIdleClassItGetsAGroupOfItsOwnWhereThatIsDelegated) {
  place(8, "/user/job");
  EXPECT_THAT(lower({7}, false).reason, HasSubstr("delegated"));
  EXPECT_FALSE(fs::exists(made()));
  weights_->restore(kJob);
  files_.marked = {"user", "job"};
  const GroupOutcome outcome = lower({7}, false);
  EXPECT_TRUE(outcome.low) << outcome.reason;
  EXPECT_EQ(outcome.group, made());
  EXPECT_EQ(weight_of(made()), least());
  EXPECT_EQ(line(made() / "cgroup.procs"), "7");
  EXPECT_EQ(line(group() / "cgroup.procs"), "8");
  EXPECT_EQ(weight_of(group()), usual());
  weights_->restore(kJob);
  EXPECT_FALSE(fs::exists(made()));
  EXPECT_EQ(line(group() / "cgroup.procs"), "8\n7") << "who still lives goes back";
}

TEST_P(GroupWeightTest, ALimitIsNotEscapedByAGroupOfItsOwn) {
  if (GetParam() == 1) GTEST_SKIP() << "version 1: the new group is below the old one";
  place(8, "/user/job");
  files_.marked = {"user"};
  write("sys/fs/cgroup/cpu/user/job/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/cpu/user/job/memory.max", "1000000\n");
  EXPECT_THAT(lower({7}, false).reason, HasSubstr("sets a limit (memory.max)"));
  EXPECT_FALSE(fs::exists(made()));
  write("sys/fs/cgroup/cpu/user/job/memory.max", "max\n");
  weights_->restore(kJob);
  EXPECT_TRUE(lower({7}, false).low);
}

TEST_P(GroupWeightTest, WhatIsRefusedIsSaidAndUndone) {
  files_.refused = {files_.weight()};
  EXPECT_THAT(lower().reason, HasSubstr("refused"));
  EXPECT_FALSE(lower().low);
  weights_->restore(kJob);
  place(8, "/user/job");
  files_.marked = {"user", "job"};
  for (const char* file : {"cgroup.procs", files_.weight(), "mkdir"}) {
    files_.refused = {file};
    const GroupOutcome outcome = lower({7}, false);
    EXPECT_FALSE(outcome.low) << file;
    EXPECT_THAT(outcome.reason, HasSubstr("refused")) << file;
    EXPECT_FALSE(fs::exists(made())) << file;
    weights_->restore(kJob);
  }
}

TEST_P(GroupWeightTest, ARefusalIsNotAskedForAgainBeforeSomethingChanges) {
  files_.refused = {files_.weight()};
  EXPECT_FALSE(lower().low);
  files_.refused.clear();
  EXPECT_FALSE(lower().low) << "tried once";
  place(9, "/user/job");
  EXPECT_TRUE(lower({7, 9}).low) << "its processes are others now";
}

TEST_P(GroupWeightTest, ProcessesInSeveralGroupsStayAsTheyAre) {
  EXPECT_EQ(files_.make(slice() / "other"), "");
  place(9, "/user/other");
  EXPECT_THAT(lower({7, 9}).reason, HasSubstr("several control groups"));
  EXPECT_THAT(lower({7, 10}).reason, HasSubstr("no control group")) << "a process that is gone";
}

TEST_P(GroupWeightTest, TheTopmostGroupIsNobodysAlone) {
  place(7, "/");
  EXPECT_FALSE(lower().low);
  EXPECT_EQ(weight_of(mount()), usual());
}

TEST_P(GroupWeightTest, ANameOfAJobIsNoPath) {
  place(8, "/user/job");
  files_.marked = {"user", "job"};
  const GroupOutcome& outcome = weights_->lower(JobId{"../x y"}, {7}, false);
  EXPECT_EQ(outcome.group.filename(), "commensal-___x_y");
  EXPECT_TRUE(fs::exists(made().parent_path() / "commensal-___x_y"));
}

INSTANTIATE_TEST_SUITE_P(Versions, GroupWeightTest, ::testing::Values(1, 2),
                         [](const auto& one) { return "V" + std::to_string(one.param); });

// --- this machine -------------------------------------------------------------------------------

TEST(KernelGroupFiles, AWholeLifeOnThisMachine) {
  GroupFiles& files = kernel_group_files();
  fs::path above;
  std::string why = "no control group has the CPU controller";
  for (const GroupChain& chain : group_chains({}, "self", "cpu")) {
    const char* weight = chain.version == 1 ? "cpu.shares" : "cpu.weight";
    const fs::path group = chain.folders.front() / ("test-" + std::to_string(getpid()));
    why = files.make(group);
    if (!why.empty()) continue;
    if (files.read(group / weight)) {
      above = group;
      break;
    }
    why = group.native() + " has no " + weight;
    EXPECT_EQ(files.remove(group), "");
  }
  if (above.empty()) GTEST_SKIP() << why;
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const fs::path group = above / "job";
  EXPECT_EQ(files.make(group), "");
  std::string moved = files.write(group / "cgroup.procs", std::to_string(child));
  if (moved.empty()) {
    GroupWeights weights{HostRoots{}, files};
    const GroupOutcome outcome = weights.lower(kJob, {child}, true);
    EXPECT_TRUE(outcome.low) << outcome.reason;
    EXPECT_EQ(outcome.group, group);
    const bool idle = files.read(group / "cpu.idle") == "1\n";
    EXPECT_TRUE(idle || outcome.reason.find("weight") != std::string::npos ||
                outcome.reason.find("shares") != std::string::npos)
        << outcome.reason;
    weights.restore(kJob);
    EXPECT_NE(files.read(group / "cpu.idle").value_or("0\n"), "1\n");
  }
  EXPECT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(files.remove(group), "");
  EXPECT_EQ(files.remove(above), "");
  if (!moved.empty()) GTEST_SKIP() << moved;
}

TEST(KernelGroupFiles, SayWhatFailed) {
  GroupFiles& files = kernel_group_files();
  EXPECT_THAT(files.write("/nonexistent/cpu.weight", "1"),
              ::testing::StartsWith("cannot write 1 to /nonexistent/cpu.weight: No such file"));
  EXPECT_THAT(files.make("/nonexistent/group/below"), HasSubstr("cannot make"));
  EXPECT_EQ(files.remove("/nonexistent/group"), "");
  EXPECT_FALSE(files.delegated("/nonexistent"));
}

}  // namespace
}  // namespace commensal::node::group_weight_test
