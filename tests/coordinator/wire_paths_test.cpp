// SPDX-License-Identifier: Apache-2.0
// The runtime folder, names of sockets, and asking a coordinator that is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "coordinator/wire/control_client.h"
#include "coordinator/wire/paths.h"

namespace commensal::wire::wire_paths_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class WirePaths : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "commensal-paths-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  static std::string problem_with(const fs::path& dir) {
    try {
      prepare_runtime_dir(dir);
    } catch (const BadPath& problem) {
      return problem.what();
    }
    return "";
  }

  fs::path root_;
};

TEST_F(WirePaths, MakesAFolderThatOnlyItsUserCanEnter) {
  const fs::path dir = root_ / "a" / "run";
  EXPECT_EQ(problem_with(dir), "");
  struct stat info {};
  ASSERT_EQ(stat(dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0700U);
  EXPECT_EQ(problem_with(dir), "") << "a second time";
}

TEST_F(WirePaths, RefusesFoldersThatOthersCanEnterOrMade) {
  const fs::path open = root_ / "open";
  fs::create_directory(open);
  fs::permissions(open, fs::perms{0750});
  EXPECT_THAT(problem_with(open), AllOf(HasSubstr(open.native()), HasSubstr("0750")));

  const fs::path file = root_ / "file";
  std::ofstream{file} << "x";
  EXPECT_THAT(problem_with(file), HasSubstr("not a folder"));

  const fs::path link = root_ / "link";
  const fs::path target = root_ / "target";
  EXPECT_EQ(problem_with(target), "");
  fs::create_directory_symlink(target, link);
  EXPECT_THAT(problem_with(link), HasSubstr("symbolic"));

  if (geteuid() != 0) GTEST_SKIP() << "only root can make a folder that belongs to another user";
  const fs::path foreign = root_ / "foreign";
  EXPECT_EQ(problem_with(foreign), "");
  ASSERT_EQ(chown(foreign.c_str(), 12345, 12345), 0);
  EXPECT_THAT(problem_with(foreign), AllOf(HasSubstr("another user"), HasSubstr("12345")));
}

TEST_F(WirePaths, NamesTheFilesOfAnInstance) {
  EXPECT_EQ(control_socket_path("/r", "n"), "/r/n.sock");
  EXPECT_EQ(pages_socket_path("/r", "n"), "/r/n.pages");
  EXPECT_EQ(lock_path("/r", "n"), "/r/n.lock");
  EXPECT_EQ(log_path("/r", "n"), "/r/n.log");
  EXPECT_EQ(ipc_endpoint("/r/n.sock"), "ipc:///r/n.sock");
}

TEST_F(WirePaths, RefusesInstanceNamesThatLeaveTheFolder) {
  for (const char* name : {"", ".", "..", ".hidden", "a/b", "a b", "a\nb"}) {
    EXPECT_THROW(check_instance_name(name), BadPath) << name;
  }
  EXPECT_THROW(check_instance_name(std::string(65, 'x')), BadPath);
  EXPECT_NO_THROW(check_instance_name("Default-1.b_2"));
}

TEST_F(WirePaths, RefusesSocketPathsThatTheKernelWouldCut) {
  const std::string dir =
      "/" + std::string(kMaxSocketPath - 1 - std::string{"/n.sock"}.size(), 'd');
  EXPECT_NO_THROW((void)control_socket_path(dir, "n"));
  EXPECT_THROW((void)control_socket_path(dir, "nn"), BadPath);
  try {
    (void)pages_socket_path(dir, "nn");
    FAIL() << "no exception";
  } catch (const BadPath& problem) {
    EXPECT_THAT(problem.what(), AllOf(HasSubstr("too long"), HasSubstr("107")));
  }
}

TEST_F(WirePaths, TakesTheFolderFromTheEnvironment) {
  setenv("COMMENSAL_RUNTIME_DIR", "/a", 1);
  setenv("XDG_RUNTIME_DIR", "/x", 1);
  EXPECT_EQ(default_runtime_dir(), "/a");
  unsetenv("COMMENSAL_RUNTIME_DIR");
  EXPECT_EQ(default_runtime_dir(), "/x/commensal");
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(default_runtime_dir(), "/tmp/commensal-" + std::to_string(geteuid()));
}

TEST_F(WirePaths, AskingNobodySaysWhere) {
  const fs::path nobody = root_ / "nobody.sock";
  const ControlClient client{nobody, std::chrono::seconds(30)};
  try {
    (void)client.request(StatusRequest{});
    FAIL() << "no exception";
  } catch (const CoordinatorUnreachable& problem) {
    EXPECT_THAT(problem.what(), HasSubstr(nobody.native()));
  }
}

}  // namespace
}  // namespace commensal::wire::wire_paths_test
