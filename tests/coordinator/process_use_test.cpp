// SPDX-License-Identifier: Apache-2.0
// What a job's processes hold, from trees of files as machines show them, and on this machine.
#include "coordinator/node/process_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "coordinator/wire/handover.h"

namespace commensal::node::process_use_test {
namespace {

namespace fs = std::filesystem;
using namespace commensal::literals;

class ProcessUseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "commensal-use-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    write("proc/self/mountinfo", "20 1 0:1 / / rw - ext4 /dev/x rw\n");
    write("proc/self/cgroup", "0::/\n");
    process("7", 1000, 24, "11 12");
    process("8", 500, 0, "");
    process("11", 0, 0, "13");
    process("12", 0, 0, "");
    process("13", 0, 0, "");
    for (const char* pid : {"11", "12", "13"}) {
      write(fs::path{"proc"} / pid / "smaps_rollup",
            "00-ff ---p 0 00:00 0 [rollup]\nRss: 900 kB\nPrivate_Clean: 1 kB\n"
            "Private_Dirty:       64 kB\n");
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream{root_ / path} << text;
  }
  void process(const std::string& pid, int anonymous, int shared, const std::string& children) {
    const fs::path folder = fs::path{"proc"} / pid;
    write(folder / "status",
          "Name:\tpython\nVmRSS:\t 9999 kB\nRssAnon:\t " + std::to_string(anonymous) +
              " kB\nRssFile:\t 700 kB\nRssShmem:\t " + std::to_string(shared) + " kB\n");
    write(folder / "task" / pid / "children", children + " ");
    write(folder / "cgroup", "0::/\n");
  }
  /// Puts processes into groups below one mount of version 2.
  void group(const std::string& name, const std::string& pids) {
    write("proc/self/mountinfo", "30 20 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
    write(fs::path{"cg"} / name / "memory.current", "10000000\n");
    write(fs::path{"cg"} / name / "memory.stat",
          "anon 5000000\nfile 4000000\nshmem 500000\nfile_dirty 300000\nfile_writeback 200000\n");
    write(fs::path{"cg"} / name / "cgroup.procs", pids);
  }
  [[nodiscard]] HostRoots roots() const { return {root_ / "proc", root_}; }
  [[nodiscard]] JobUse measured(const std::set<std::int64_t>& members) const {
    return measure_job(members, {7, 8}, roots());
  }
  fs::path root_;
};

TEST_F(ProcessUseTest, AnonymousAndSharedMemoryCountsFilePagesDoNot) {
  const JobUse use = measured({7, 8});
  EXPECT_EQ(use.resident.at(7), 1024_KiB);
  EXPECT_EQ(use.resident.at(8), 500_KiB);
  EXPECT_EQ(use.by, "process");
  EXPECT_FALSE(use.group);
}

TEST_F(ProcessUseTest, AProcessStandsStillWhenNoThreadOfItRuns) {
  const auto thread = [&](const char* id, char state) {
    write(fs::path{"proc/7/task"} / id / "stat", std::string{id} + " (a (b) c) " + state + " 1 2");
  };
  thread("7", 'T');
  EXPECT_EQ(read_standstill(7, roots()), "stopped");
  thread("70", 'Z');
  EXPECT_EQ(read_standstill(7, roots()), "stopped") << "a thread that has ended";
  thread("70", 'R');
  EXPECT_EQ(read_standstill(7, roots()), "");
  thread("7", 't');
  thread("70", 't');
  EXPECT_EQ(read_standstill(7, roots()), "stopped by a debugger");
  thread("7", 'D');
  EXPECT_EQ(read_standstill(7, roots()), "") << "it waits for a disk";
  EXPECT_EQ(read_standstill(99, roots()), "");
}

TEST_F(ProcessUseTest, AFrozenGroupIsAStandstillInBothVersions) {
  write("proc/7/task/7/stat", "7 (python) S 1 2");
  write("proc/7/cgroup", "0::/jobs\n");
  write("proc/self/mountinfo", "30 20 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  write("cg/jobs/cgroup.events", "populated 1\nfrozen 0\n");
  EXPECT_EQ(read_standstill(7, roots()), "");
  write("cg/jobs/cgroup.events", "populated 1\nfrozen 1\n");
  EXPECT_EQ(read_standstill(7, roots()), "frozen");
  write("proc/7/cgroup", "5:freezer:/jobs\n");
  write("proc/self/mountinfo", "30 20 0:26 / /cg rw - cgroup cgroup rw,freezer\n");
  write("cg/jobs/freezer.state", "THAWED\n");
  EXPECT_EQ(read_standstill(7, roots()), "");
  write("cg/jobs/freezer.state", "FROZEN\n");
  EXPECT_EQ(read_standstill(7, roots()), "frozen");
}

TEST_F(ProcessUseTest, ForkedProcessesAreNamedWithWhatIsTheirsAlone) {
  const JobUse use = measured({7});
  EXPECT_EQ(use.children, (std::vector<ChildUse>{{11, 64_KiB}, {12, 64_KiB}, {13, 64_KiB}}));
}

TEST_F(ProcessUseTest, ARegisteredProcessIsNobodysChild) {
  process("7", 1000, 24, "8 12");
  EXPECT_EQ(measured({7}).children, (std::vector<ChildUse>{{12, 64_KiB}}));
}

TEST_F(ProcessUseTest, WhatCannotBeReadIsNotGuessed) {
  EXPECT_FALSE(read_resident(99, roots()));
  const JobUse use = measured({99});
  EXPECT_TRUE(use.resident.empty());
  EXPECT_EQ(use.by, "");
  write("proc/7/status", "Name:\tpython\nRssAnon:\t nonsense\n");
  EXPECT_FALSE(read_resident(7, roots()));
}

TEST_F(ProcessUseTest, AGroupOfTheJobAloneIsTheTruth) {
  group("job", "7\n11\n12\n13\n");
  write("proc/7/cgroup", "0::/job\n");
  const JobUse use = measured({7});
  EXPECT_EQ(use.by, "cgroup v2");
  // Usage without clean cache: 10,000,000 - (4,000,000 - 500,000 - 300,000 - 200,000).
  EXPECT_EQ(use.group, Bytes{7000000});
}

TEST_F(ProcessUseTest, AGroupWithOthersInItIsNot) {
  group("job", "7\n11\n12\n13\n4000\n");
  write("proc/7/cgroup", "0::/job\n");
  EXPECT_FALSE(measured({7}).group);
  group("job", "7\n11\n12\n13\n");
  group("job/below", "4000\n");
  EXPECT_FALSE(measured({7}).group);
  fs::remove_all(root_ / "cg/job/below");
  write("proc/self/cgroup", "0::/job\n");
  EXPECT_FALSE(measured({7}).group) << "the coordinator is in it";
}

TEST_F(ProcessUseTest, InTheCoordinatorsGroupNothingIsLookedUp) {
  group("job", "7\n11\n12\n13\n");
  write("proc/7/cgroup", "0::/job\n");
  ASSERT_EQ(measured({7}).by, "cgroup v2");
  write("proc/self/cgroup", "0::/job\n");
  fs::remove(root_ / "proc/self/mountinfo");
  const JobUse use = measured({7});
  EXPECT_EQ(use.by, "process");
  EXPECT_EQ(use.resident.at(7), 1024_KiB);
}

TEST_F(ProcessUseTest, Version1Too) {
  write("proc/self/mountinfo", "33 31 0:32 / /mem rw - cgroup cgroup rw,memory\n");
  write("proc/7/cgroup", "8:memory:/job\n");
  write("proc/self/cgroup", "8:memory:/\n");
  write("mem/memory.usage_in_bytes", "99\n");
  write("mem/job/memory.usage_in_bytes", "9000000\n");
  write("mem/job/memory.stat",
        "cache 1\ntotal_cache 3000000\ntotal_shmem 0\ntotal_dirty 1000000\n");
  write("mem/job/cgroup.procs", "7\n11\n12\n13\n");
  const JobUse use = measured({7});
  EXPECT_EQ(use.by, "cgroup v1");
  EXPECT_EQ(use.group, Bytes{7000000});
}

/// A child of this test that touches memory, then waits.
class Touching {
 public:
  explicit Touching(Bytes bytes) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("cannot make a pipe");
    pid_ = fork();
    if (pid_ == 0) {
      void* block =
          mmap(nullptr, bytes.count(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (block == MAP_FAILED) _exit(1);
      std::memset(block, 1, bytes.count());
      if (write(ends[1], "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    char word = 0;
    if (read(ends[0], &word, 1) != 1) throw std::runtime_error("the child died");
    close(ends[0]);
    close(ends[1]);
  }
  ~Touching() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Touching(const Touching&) = delete;
  Touching& operator=(const Touching&) = delete;
  [[nodiscard]] std::int64_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST(ProcessUse, SeesWhatAnotherProcessTouchedOnThisMachine) {
  const Touching small{1_MiB};
  const Touching large{65_MiB};
  const auto a = read_resident(small.pid());
  const auto b = read_resident(large.pid());
  ASSERT_TRUE(a && b);
  EXPECT_GE(*b, *a + 60_MiB);
}

TEST(ProcessUse, SeesAForkedChildOnThisMachine) {
  const Touching child{64_MiB};
  const JobUse use = measure_job({getpid()}, {getpid()});
  const auto found = std::find_if(use.children.begin(), use.children.end(),
                                  [&](const ChildUse& c) { return c.pid == child.pid(); });
  if (found == use.children.end() || found->bytes.is_zero()) {
    GTEST_SKIP() << "this kernel shows no children of a process, or not their memory";
  }
  EXPECT_GE(found->bytes, 60_MiB);
}

}  // namespace
}  // namespace commensal::node::process_use_test
