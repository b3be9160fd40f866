// SPDX-License-Identifier: Apache-2.0
// Programs and folders that options name, and what a coordinator says of its machine.
#include "coordinator/cluster/surroundings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

#include "coordinator/cluster/command_line.h"
#include "coordinator/cluster/programs.h"
#include "coordinator/cluster/store.h"

namespace commensal::cluster::surroundings_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SurroundingsTest : public ::testing::Test {
 protected:
  SurroundingsTest() {
    std::string name = (fs::temp_directory_path() / "commensal-around-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp");
    }
    folder_ = name;
    options_.instance = "blue";
    options_.version = "1.2.3";
    options_.runtime_dir = folder_ / "run";
    options_.state_dir = folder_ / "state";
    options_.keys_dir = folder_ / "keys";
    fs::create_directory(options_.state_dir);
  }
  ~SurroundingsTest() override { fs::remove_all(folder_); }

  fs::path program(const std::string& name, bool runs = true) {
    const fs::path file = folder_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream{file} << "#!/bin/sh\n";
    fs::permissions(file, runs ? fs::perms::owner_all : fs::perms::owner_read);
    return file;
  }
  std::string refusal() {
    try {
      resolve_paths(options_, folder_, folder_ / "bin");
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "not refused";
  }
  static json named(const json& programs, const std::string& name) {
    for (const json& one : programs) {
      if (one["name"] == name) return one;
    }
    return {};
  }

  fs::path folder_;
  ClusterOptions options_;
};

TEST_F(SurroundingsTest, RelativePathsAreMeantFromWhereTheCommandWasTyped) {
  (void)program("tools/keeper");
  (void)program(".venv/bin/commensal");
  options_.keeper = "tools/keeper";
  options_.commensal = ".venv/bin/../bin/commensal";
  options_.runtime_dir = "run";
  options_.state_dir = "state";
  options_.keys_dir = "keys";
  options_.log_file = "my.log";
  options_.slurm.programs = "slurm/bin";
  resolve_paths(options_, folder_, "/opt/bin");
  EXPECT_EQ(options_.keeper, folder_ / "tools/keeper");
  EXPECT_EQ(options_.commensal, folder_ / ".venv/bin/commensal");
  EXPECT_EQ(options_.runtime_dir, folder_ / "run");
  EXPECT_EQ(options_.state_dir, folder_ / "state");
  EXPECT_EQ(options_.keys_dir, folder_ / "keys");
  EXPECT_EQ(options_.log_file, folder_ / "my.log");
  EXPECT_EQ(options_.slurm.programs, folder_ / "slurm/bin");
}

TEST_F(SurroundingsTest, WithoutAKeeperItIsTheOneBeside) {
  options_.keys_dir.clear();
  resolve_paths(options_, folder_, "/opt/bin");
  EXPECT_EQ(options_.keeper, "/opt/bin/commensal-keeper");
  EXPECT_TRUE(options_.keys_dir.empty());
  EXPECT_TRUE(options_.log_file.empty());
  EXPECT_TRUE(options_.slurm.programs.empty());
}

TEST_F(SurroundingsTest, ANameWithoutASlashIsLeftToThePath) {
  options_.commensal = "commensal";
  resolve_paths(options_, folder_, "/opt/bin");
  EXPECT_EQ(options_.commensal, "commensal");
}

TEST_F(SurroundingsTest, AProgramThatCannotBeStartedIsNamed) {
  options_.keeper = "tools/absent";
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("--keeper"), HasSubstr((folder_ / "tools/absent").native()),
                    HasSubstr("No such file")));
  options_.keeper = folder_;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--keeper"), HasSubstr("it is not a file")));
  options_.keeper = program("flat", false);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--keeper"), HasSubstr("Permission denied")));
  options_.keeper.clear();
  options_.commensal = "./absent";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--commensal"), HasSubstr("absent: No such file")));
}

TEST_F(SurroundingsTest, TheOptionOfOldLogsIsDays) {
  EXPECT_EQ(parse_command_line({}, "v").options->keep_logs, std::chrono::days{90});
  EXPECT_EQ(parse_command_line({"--keep-logs", "0"}, "v").options->keep_logs, std::chrono::days{0});
  EXPECT_EQ(parse_command_line({"--keep-logs=7"}, "v").options->keep_logs, std::chrono::days{7});
  for (const char* wrong : {"-1", "40000", "week", "1.5", ""}) {
    const CommandLine line = parse_command_line({std::string{"--keep-logs="} + wrong}, "v");
    EXPECT_FALSE(line.options.has_value()) << wrong;
    EXPECT_EQ(line.code, node::ExitCode::kUsage);
    EXPECT_THAT(line.text, HasSubstr(wrong));
  }
}

TEST_F(SurroundingsTest, TheStoreIsDescribedAsItIs) {
  EXPECT_EQ(describe_store(options_.state_dir)["bytes"], 0);
  const fs::path file = options_.state_dir / "cluster.db";
  Store store{file};
  store.put(TenantRecord{.name = "vision", .quota = 4});
  store.commit();
  const json told = describe_store(options_.state_dir);
  EXPECT_EQ(told["file"], file.native());
  EXPECT_EQ(told["bytes"], fs::file_size(file));
  EXPECT_GT(told["log_bytes"], 0);
  EXPECT_GT(told["free_bytes"], 0);
  EXPECT_GE(told["disk_bytes"], told["free_bytes"]);
  EXPECT_EQ(told["backups"], 0);
  EXPECT_EQ(told["newest_backup_ms"], nullptr);
}

TEST_F(SurroundingsTest, TheNewestCopyCounts) {
  Store store{options_.state_dir / "cluster.db"};
  const fs::path folder = options_.state_dir / "backups";
  const fs::path first = store.back_up(folder, WallTime{std::chrono::days{1}});
  const fs::path second = store.back_up(folder, WallTime{std::chrono::days{2}});
  const std::chrono::sys_time<std::chrono::seconds> time{std::chrono::days{10'000}};
  fs::last_write_time(second, std::chrono::file_clock::from_sys(time));
  fs::last_write_time(first, std::chrono::file_clock::from_sys(time - std::chrono::days{3}));
  std::ofstream{folder / "notes"} << "written now";
  const json told = describe_store(options_.state_dir);
  EXPECT_EQ(told["backups"], 2);
  EXPECT_EQ(told["newest_backup_ms"], std::int64_t{10'000} * 86'400'000);
}

TEST_F(SurroundingsTest, WhatCannotBeLookedAtIsNull) {
  const json told = describe_store(folder_ / "absent");
  EXPECT_EQ(told["free_bytes"], nullptr);
  EXPECT_EQ(told["bytes"], 0);
  EXPECT_EQ(told["newest_backup_ms"], nullptr);
}

TEST_F(SurroundingsTest, ProgramsAreLookedAt) {
  options_.keeper = program("bin/commensal-keeper");
  options_.commensal = (folder_ / "absent").native();
  const json programs = describe_surroundings(options_)["programs"];
  ASSERT_EQ(programs.size(), 2U);
  EXPECT_EQ(named(programs, "commensal-keeper")["problem"], "");
  EXPECT_EQ(named(programs, "commensal")["path"], options_.commensal);
  EXPECT_THAT(named(programs, "commensal")["problem"].get<std::string>(),
              HasSubstr("No such file"));
  options_.commensal = "no-such-program-of-ours";
  EXPECT_EQ(named(describe_surroundings(options_)["programs"], options_.commensal)["problem"],
            "it is not in the PATH");
  options_.commensal = "sh";
  EXPECT_EQ(named(describe_surroundings(options_)["programs"], "sh")["problem"], "");
}

TEST_F(SurroundingsTest, UnderSlurmItsProgramsCount) {
  options_.engine = "slurm";
  options_.slurm.programs = folder_ / "bin";
  options_.keeper = program("bin/commensal-keeper");
  (void)program("bin/sbatch");
  const json told = describe_surroundings(options_);
  EXPECT_EQ(told["programs"].size(), 6U);
  EXPECT_EQ(named(told["programs"], "sbatch")["problem"], "");
  EXPECT_THAT(named(told["programs"], "squeue")["problem"].get<std::string>(),
              HasSubstr("No such file"));
  EXPECT_THAT(told["limits"], IsEmpty());
  EXPECT_EQ(told["slurm_programs"], (folder_ / "bin").native());
  EXPECT_EQ(told["logs"]["folder"], (options_.state_dir / "slurm" / "logs").native());
}

TEST_F(SurroundingsTest, TheRestIsThere) {
  options_.keep_logs = std::chrono::days{7};
  const json told = describe_surroundings(options_);
  EXPECT_EQ(told["version"], "1.2.3");
  EXPECT_EQ(told["instance"], "blue");
  EXPECT_EQ(told["lock"], (folder_ / "run" / "cluster-blue.lock").native());
  EXPECT_EQ(told["keys_dir"], (folder_ / "keys").native());
  EXPECT_EQ(told["logs"]["keep_days"], 7);
  EXPECT_EQ(told["logs"]["folder"], (options_.state_dir / "local" / "logs").native());
  EXPECT_TRUE(told["limits"].is_array());  // what is in it depends on the machine
  EXPECT_TRUE(fs::is_empty(options_.state_dir));
}

}  // namespace
}  // namespace commensal::cluster::surroundings_test
