// SPDX-License-Identifier: Apache-2.0
// Cores and memory of a host, from trees of files as machines and containers show them.
#include "coordinator/node/host_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace commensal::node::host_device_test {
namespace {

namespace fs = std::filesystem;
using namespace commensal::literals;
using ::testing::HasSubstr;

class HostDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "commensal-host-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    write("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,6,8-10\n");
    write("proc/meminfo", "MemTotal:  33554432 kB\nMemAvailable:   16777216 kB\n");
    write("proc/self/mountinfo", "20 1 0:1 / / rw - ext4 /dev/x rw\n");
    write("proc/self/cgroup", "0::/\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream{root_ / path} << text;
  }
  /// What is read at once, and of it the memory once more alone.
  [[nodiscard]] HostFacts facts() const {
    const HostRoots roots{root_ / "proc", root_};
    HostFacts all = read_host_facts(roots);
    EXPECT_EQ(read_available(roots), all.available);
    return all;
  }

  void version_1(const std::string& group, const std::string& mount_root = "/") const {
    write("proc/self/mountinfo",
          "20 1 0:1 / / rw - ext4 /dev/x rw\n"
          "32 31 0:29 " +
              mount_root +
              " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup "
              "rw,cpu,cpuacct\n"
              "33 31 0:32 " +
              mount_root +
              " /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup "
              "rw,memory\n"
              "34 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    write("proc/self/cgroup", "8:memory:" + group + "\n2:cpu,cpuacct:" + group + "\n0::/\n");
  }
  void version_2(const std::string& group) const {
    write("proc/self/mountinfo",
          "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
    write("proc/self/cgroup", "0::" + group + "\n");
  }

  fs::path root_;
};

TEST_F(HostDeviceTest, WithoutControlGroupsAffinityAndMemAvailableCount) {
  const HostFacts seen = facts();
  EXPECT_EQ(seen.affinity, 8U);
  EXPECT_DOUBLE_EQ(seen.cores, 8.0);
  EXPECT_EQ(seen.available, 16_GiB);
  EXPECT_THAT(seen.memory_reason, HasSubstr("MemAvailable"));
}

TEST_F(HostDeviceTest, Version1LimitsCount) {
  version_1("/job");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string((4_GiB).count()));
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string((3_GiB).count()));
  write("sys/fs/cgroup/memory/job/memory.stat",
        "cache 5\ninactive_file 1\ntotal_inactive_file " + std::to_string((1_GiB).count()) + "\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "150000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  const HostFacts seen = facts();
  EXPECT_EQ(seen.available, 2_GiB) << "cache that can be dropped is free";
  EXPECT_DOUBLE_EQ(seen.cores, 1.5);
  EXPECT_THAT(seen.cores_reason, HasSubstr("quota"));
  EXPECT_THAT(seen.memory_reason, HasSubstr("memory/job"));
}

TEST_F(HostDeviceTest, Version2LimitsCount) {
  version_2("/user.slice/job");
  write("sys/fs/cgroup/user.slice/job/memory.max", std::to_string((6_GiB).count()) + "\n");
  write("sys/fs/cgroup/user.slice/job/memory.high", std::to_string((5_GiB).count()) + "\n");
  write("sys/fs/cgroup/user.slice/job/memory.current", std::to_string((2_GiB).count()) + "\n");
  write("sys/fs/cgroup/user.slice/job/memory.stat",
        "anon 1\ninactive_file " + std::to_string((1_GiB).count()) + "\n");
  write("sys/fs/cgroup/user.slice/job/cpu.max", "200000 100000\n");
  const HostFacts seen = facts();
  EXPECT_EQ(seen.available, 4_GiB);
  EXPECT_DOUBLE_EQ(seen.cores, 2.0);
}

TEST_F(HostDeviceTest, TheTightestOfNestedGroupsCounts) {
  version_2("/a/b/c");
  write("sys/fs/cgroup/a/memory.max", std::to_string((8_GiB).count()));
  write("sys/fs/cgroup/a/memory.current", std::to_string((7_GiB).count()));
  write("sys/fs/cgroup/a/b/memory.max", std::to_string((4_GiB).count()));
  write("sys/fs/cgroup/a/b/memory.current", "0");
  write("sys/fs/cgroup/a/b/c/memory.max", "max\n");
  write("sys/fs/cgroup/a/cpu.max", "50000 100000");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000");
  const HostFacts seen = facts();
  EXPECT_EQ(seen.available, 1_GiB);
  EXPECT_DOUBLE_EQ(seen.cores, 0.5);
}

TEST_F(HostDeviceTest, UnlimitedGroupsLeaveTheMachine) {
  version_2("/a");
  write("sys/fs/cgroup/a/memory.max", "max\n");
  write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(facts().available, 16_GiB);
  EXPECT_DOUBLE_EQ(facts().cores, 8.0);
}

TEST_F(HostDeviceTest, AContainersMountIsItsOwnGroup) {
  version_1("/docker/abc", "/docker/abc");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string((2_GiB).count()));
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string((1_GiB).count()));
  EXPECT_EQ(facts().available, 1_GiB);
}

TEST_F(HostDeviceTest, AGroupAboveItsLimitLeavesNothing) {
  version_2("/a");
  write("sys/fs/cgroup/a/memory.max", "1000");
  write("sys/fs/cgroup/a/memory.current", "2000");
  EXPECT_EQ(facts().available, 0_B);
}

TEST_F(HostDeviceTest, SaysWhatItCannotRead) {
  write("proc/meminfo", "MemTotal: 5 kB\n");
  EXPECT_THROW((void)facts(), std::runtime_error);
  write("proc/meminfo", "MemAvailable:\n");
  EXPECT_THROW((void)facts(), std::runtime_error);
  fs::remove(root_ / "proc/self/status");
  EXPECT_THROW((void)facts(), std::runtime_error);
}

TEST_F(HostDeviceTest, ReadsThisMachine) {
  const HostFacts seen = read_host_facts();
  EXPECT_GT(seen.cores, 0.0);
  EXPECT_GT(seen.available, 0_B);
}

TEST_F(HostDeviceTest, BudgetsAreBytesOrFractions) {
  EXPECT_EQ(parse_memory_budget("6GiB").bytes, 6_GiB);
  EXPECT_EQ(parse_memory_budget("512 MiB").bytes, 512_MiB);
  EXPECT_EQ(parse_memory_budget("64KiB").bytes, 64_KiB);
  EXPECT_EQ(parse_memory_budget("1048576").bytes, 1_MiB);
  EXPECT_FALSE(parse_memory_budget("0.5").bytes);
  EXPECT_DOUBLE_EQ(parse_memory_budget("0.5").fraction, 0.5);
  EXPECT_DOUBLE_EQ(parse_memory_budget("1").fraction, 1.0);
  for (const char* text : {"", "0", "0.0", "1.5", "-3GiB", "lots", "5 XiB", "0.5.5", "GiB"}) {
    try {
      (void)parse_memory_budget(text);
      FAIL() << "'" << text << "' was taken";
    } catch (const std::invalid_argument& problem) {
      EXPECT_THAT(problem.what(), HasSubstr("'" + std::string{text} + "'"));
    }
  }
}

TEST_F(HostDeviceTest, TheDeviceStatesItsReason) {
  const Device part = make_host_device(facts(), MemoryBudget{std::nullopt, 0.5}, std::nullopt);
  EXPECT_EQ(part.capacity, 8_GiB);
  EXPECT_DOUBLE_EQ(part.fraction, 0.5);
  EXPECT_THAT(part.reason, AllOf(HasSubstr("0.5"), HasSubstr("16 GiB"), HasSubstr("8 CPUs")));
  const Device given = make_host_device(facts(), MemoryBudget{32_GiB, 0.0}, 2.0);
  EXPECT_EQ(given.capacity, 32_GiB);
  EXPECT_DOUBLE_EQ(given.cores, 2.0);
  EXPECT_THAT(given.reason, HasSubstr("more than is available"));
}

}  // namespace
}  // namespace commensal::node::host_device_test
