// SPDX-License-Identifier: Apache-2.0
// The local engine with real processes: what ranks get, how they end, and what survives whom.
#include "coordinator/engines/local/local_engine.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <set>

#include "tests/coordinator/local_world.h"

namespace commensal::cluster::local_engine_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using Kind = EngineEvent::Kind;

class LocalEngineTest : public ::testing::Test {
 protected:
  void SetUp() override { engine_ = world_.make(); }

  void start(const JobSpec& spec, const std::vector<DevicePlace>& placement = {{"left", 0}}) {
    start(attempt_, spec, placement);
  }
  void start(const Attempt& attempt, const JobSpec& spec,
             const std::vector<DevicePlace>& placement = {{"left", 0}}) {
    engine_->hold(attempt, spec);
    engine_->place(attempt, placement, JobClass::kOpportunistic);
    engine_->release(attempt);
  }
  /// The event that an attempt ended with; kBegan if it does not come.
  EngineEvent end() { return end(attempt_); }
  EngineEvent end(const Attempt& attempt) {
    EngineEvent last;
    (void)eventually([&] {
      for (EngineEvent& event : engine_->watch()) events_.push_back(std::move(event));
      for (const EngineEvent& event : events_) {
        if (event.attempt == attempt && event.kind != Kind::kBegan) last = event;
      }
      if (last.kind == Kind::kBegan) wait_for_news(*engine_);
      return last.kind != Kind::kBegan;
    });
    return last;
  }
  std::string output(std::size_t rank = 0) { return output(attempt_, rank); }
  std::string output(const Attempt& attempt, std::size_t rank) {
    const auto files = engine_->logs(attempt);
    return rank < files.size() ? text_of(files[rank]) : "no log";
  }
  std::map<std::string, std::string> variables(std::size_t rank = 0) {
    std::map<std::string, std::string> all;
    std::istringstream lines{output(rank)};
    for (std::string line; std::getline(lines, line);) {
      all.emplace(line.substr(0, line.find('=')), line.substr(line.find('=') + 1));
    }
    return all;
  }
  /// Whether a process runs, zombies left out.
  static bool runs(pid_t pid) {
    const std::string stat = text_of("/proc/" + std::to_string(pid) + "/stat");
    return !stat.empty() && stat.find(") Z") == std::string::npos;
  }
  pid_t pid_in(const std::string& name) {
    std::string text;
    EXPECT_TRUE(eventually([&] {
      text = text_of(world_.work() / name);
      return text.ends_with('\n');
    }));
    return text.empty() ? 0 : std::stoi(text);
  }

  LocalWorld world_;
  const Attempt attempt_{JobId{"7"}, 1};
  std::unique_ptr<LocalEngine> engine_;
  std::vector<EngineEvent> events_;
};

TEST_F(LocalEngineTest, WordsReachTheProgramUnchanged) {
  const std::vector<std::string> words{
      "a b", "it's \"quoted\"", "two\nlines", "$(touch ran)", "`id`", "*",
      "",    "\xff\xfe",        "--help",     "; exit 3"};
  JobSpec spec = world_.job({"/usr/bin/printf", "[%s]\n"});
  spec.command.insert(spec.command.end(), words.begin(), words.end());
  start(spec);
  EXPECT_EQ(end().exit_code, 0);
  std::string expected;
  for (const std::string& word : words) expected += '[' + word + "]\n";
  EXPECT_EQ(output(), expected);
  EXPECT_FALSE(fs::exists(world_.work() / "ran"));
}

TEST_F(LocalEngineTest, APrefixStandsBeforeTheCommandAndIsNoShellEither) {
  world_.options.prefix = [](const Attempt& /*attempt*/, JobClass job_class, const JobSpec& spec) {
    return std::vector<std::string>{"/bin/echo", std::string{to_string(job_class)}, spec.name,
                                    "--"};
  };
  engine_ = world_.make();
  JobSpec spec = world_.job({"python", "a b"});
  spec.name = "$HOME";
  start(spec);
  EXPECT_EQ(end().exit_code, 0);
  EXPECT_EQ(output(), "opportunistic $HOME -- python a b\n");
}

TEST_F(LocalEngineTest, OneRankHasNoneOfTorchrunsVariables) {
  ::setenv("RANK", "5", 1);  // of whoever started us
  ::setenv("CUDA_VISIBLE_DEVICES", "9", 1);
  JobSpec spec = world_.job({"env"});
  spec.name = "resnet";
  spec.tenant = "vision";
  spec.environment = {{"LR", "0.1"}, {"WITH SPACE", "a=b c"}};
  start(spec);
  EXPECT_EQ(end().exit_code, 0);
  ::unsetenv("RANK");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const auto all = variables();
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
        "MASTER_PORT", "TORCHELASTIC_RUN_ID", "CUDA_VISIBLE_DEVICES"}) {
    EXPECT_FALSE(all.contains(name)) << name;
  }
  EXPECT_THAT(all, AllOf(Contains(Pair("COMMENSAL_JOB_ID", "7")),
                         Contains(Pair("COMMENSAL_JOB_NAME", "resnet")),
                         Contains(Pair("COMMENSAL_TENANT", "vision")),
                         Contains(Pair("COMMENSAL_CLUSTER_JOB", "7")),
                         Contains(Pair("COMMENSAL_CLUSTER_ATTEMPT", "1")),
                         Contains(Pair("COMMENSAL_CLUSTER_NODE", "left")),
                         Contains(Pair("LR", "0.1")), Contains(Pair("WITH SPACE", "a=b c"))));
}

TEST_F(LocalEngineTest, TheUsersOwnRankStaysWithOneDevice) {
  JobSpec spec = world_.job({"env"});
  spec.environment = {{"RANK", "3"}, {"MASTER_PORT", "1234"}, {"CUDA_VISIBLE_DEVICES", ""}};
  start(spec);
  EXPECT_EQ(end().exit_code, 0);
  EXPECT_THAT(variables(), AllOf(Contains(Pair("RANK", "3")), Contains(Pair("MASTER_PORT", "1234")),
                                 Contains(Pair("CUDA_VISIBLE_DEVICES", ""))));
}

TEST_F(LocalEngineTest, ThePreRunOfAGangIsAGangOfOne) {
  JobSpec spec = world_.job({"env"});
  spec.pre_run = 60s;
  start(spec);
  EXPECT_EQ(end().exit_code, 0) << end().reason;
  const auto all = variables();
  EXPECT_THAT(all, AllOf(Contains(Pair("RANK", "0")), Contains(Pair("WORLD_SIZE", "1")),
                         Contains(Pair("LOCAL_RANK", "0")), Contains(Pair("GROUP_RANK", "0")),
                         Contains(Pair("MASTER_ADDR", "127.0.0.1"))));
  EXPECT_GT(std::stoi(all.at("MASTER_PORT")), 0) << "it can meet itself";
}

TEST_F(LocalEngineTest, RanksOnTwoNodesAreNumberedAsTorchrunDoes) {
  world_.options.node_environment = [](const std::string& node) {
    return std::map<std::string, std::string>{{"COMMENSAL_INSTANCE", node}};
  };
  engine_ = world_.make();
  start(world_.job({"env"}), {{"right", 1}, {"right", 0}, {"left", 0}});
  EXPECT_EQ(end().exit_code, 0) << end().reason;
  ASSERT_EQ(engine_->logs(attempt_).size(), 3U);
  struct Expected {
    const char *rank, *local, *local_world, *group, *node;
  };
  const Expected expected[] = {
      {"0", "0", "2", "0", "right"}, {"1", "1", "2", "0", "right"}, {"2", "0", "1", "1", "left"}};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto all = variables(rank);
    EXPECT_THAT(
        all, AllOf(Contains(Pair("RANK", expected[rank].rank)), Contains(Pair("WORLD_SIZE", "3")),
                   Contains(Pair("LOCAL_RANK", expected[rank].local)),
                   Contains(Pair("LOCAL_WORLD_SIZE", expected[rank].local_world)),
                   Contains(Pair("GROUP_RANK", expected[rank].group)),
                   Contains(Pair("COMMENSAL_INSTANCE", expected[rank].node)),
                   Contains(Pair("MASTER_ADDR", "127.0.0.1")),
                   Contains(Pair("TORCHELASTIC_RUN_ID", "7"))));
    EXPECT_EQ(all.at("MASTER_PORT"), variables(0).at("MASTER_PORT"));
    EXPECT_GT(std::stoi(all.at("MASTER_PORT")), 0);
  }
  EXPECT_EQ(variables(0).at("CUDA_VISIBLE_DEVICES"), "GPU-b");
  EXPECT_EQ(variables(1).at("CUDA_VISIBLE_DEVICES"), "GPU-a");
  EXPECT_FALSE(variables(2).contains("CUDA_VISIBLE_DEVICES"));
}

TEST_F(LocalEngineTest, RanksStartClean) {
  const int leaked = ::open("/dev/null", O_RDONLY);  // no O_CLOEXEC: as some library may
  start(world_.job({"/bin/sh", "-c",
                    "pwd; ls -l /proc/self/fd; grep Sig /proc/self/status; cat; ps -o sid= $$"}));
  EXPECT_EQ(end().exit_code, 0);
  ::close(leaked);
  const std::string text = output();
  EXPECT_THAT(text, HasSubstr(fs::canonical(world_.work()).native() + '\n'));
  EXPECT_THAT(text, HasSubstr("SigBlk:\t0000000000000000"));
  // posix_spawn leaves the two signals ignored that the C library keeps to itself.
  EXPECT_THAT(
      text, AnyOf(HasSubstr("SigIgn:\t0000000000000000"), HasSubstr("SigIgn:\t0000000180000000")));
  EXPECT_THAT(text, Not(HasSubstr(world_.state().native())));
  EXPECT_EQ(std::count(text.begin(), text.end(), '>'), 4) << text;  // 0, 1, 2 and the folder of ls
}

TEST_F(LocalEngineTest, WhatCannotBeExecutedEndsAsInAShellAndSaysWhy) {
  const fs::path plain = world_.work() / "plain";
  std::ofstream{plain} << "exit 0\n";
  const fs::path text = world_.work() / "text";
  std::ofstream{text} << "exit 0\n";
  fs::permissions(text, fs::perms::owner_all);
  struct Case {
    std::vector<std::string> command;
    std::string directory;
    int code;
    std::string named;
  };
  const std::string work = world_.work().native();
  const std::vector<Case> cases{
      {{"no-such-command"}, work, 127, "no-such-command: No such file"},
      {{"./no-such-file"}, work, 127, "./no-such-file: No such file"},
      {{plain.native()}, work, 126, "plain: Permission denied"},
      {{text.native()}, work, 126, "text: it is neither a program nor a script"},
      {{work}, work, 126, "Permission denied"},
      {{"true"}, work + "/missing", 127, "/missing: No such file"},
      {{"true"}, plain.native(), 127, "plain: Not a directory"},
      {{"true", std::string(4U << 20U, 'x')}, work, 126, "Argument list too long"}};
  std::uint32_t number = 0;
  for (const Case& one : cases) {
    const Attempt attempt{JobId{"bad"}, ++number};
    JobSpec spec = world_.job(one.command);
    spec.directory = one.directory;
    start(attempt, spec, {{"left", 0}, {"left", 1}});
    const EngineEvent event = end(attempt);
    EXPECT_EQ(event.kind, Kind::kExited) << one.named;
    EXPECT_EQ(event.exit_code, one.code) << one.named;
    EXPECT_THAT(event.reason, HasSubstr(one.named));
  }
}

TEST_F(LocalEngineTest, CommandsAreLookedForInTheJobsOwnPath) {
  fs::create_directory(world_.work() / "bin");
  const fs::path own = world_.work() / "bin" / "true";
  std::ofstream{own} << "#!/bin/sh\nexit 9\n";
  fs::permissions(own, fs::perms::owner_all);
  JobSpec spec = world_.job({"true"});
  spec.environment["PATH"] = "/nowhere:" + own.parent_path().native() + ":/bin";
  start(spec);
  EXPECT_EQ(end().exit_code, 9) << end().reason;
}

TEST_F(LocalEngineTest, SignalsAreSaidByNameAndCountedFrom128) {
  start(world_.job({"/bin/sh", "-c", "kill -SEGV $$"}));
  EXPECT_EQ(end().exit_code, 128 + SIGSEGV);
  EXPECT_THAT(end().reason, HasSubstr("SIGSEGV"));
}

TEST_F(LocalEngineTest, WhenOneRankFailsTheOthersAreStopped) {
  start(
      world_.job({"/bin/sh", "-c",
                  "trap 'echo told; exit 0' TERM; echo ready > ready-$RANK; "
                  "if [ $RANK = 1 ]; then while ! [ -e ready-0 ]; do sleep 0.01; done; exit 3; fi; "
                  "while :; do sleep 0.01; done"}),
      {{"left", 0}, {"left", 1}});
  EXPECT_EQ(end().exit_code, 3);
  EXPECT_THAT(end().reason, HasSubstr("rank 1 ended with 3"));
  EXPECT_THAT(output(0), HasSubstr("told\n"));
}

TEST_F(LocalEngineTest, RanksThatIgnoreThatAreKilledAfterTheGrace) {
  world_.options.failure_grace = 20ms;
  engine_ = world_.make();
  start(world_.job({"/bin/sh", "-c",
                    "if [ $RANK = 0 ]; then trap '' TERM; echo > ready; "
                    "while :; do sleep 1000; done; fi; "
                    "while ! [ -e ready ]; do sleep 0.01; done; exit 3"}),
        {{"left", 0}, {"left", 1}});
  EXPECT_EQ(end().exit_code, 3);
}

TEST_F(LocalEngineTest, TheTimeLimitEndsAJobAndIsTheReason) {
  JobSpec spec = world_.script("trap 'exit 0' TERM; while :; do sleep 0.01; done");
  spec.time_limit = 1s;
  start(spec);
  EXPECT_EQ(end().kind, Kind::kExited);
  EXPECT_EQ(end().exit_code, 124);
  EXPECT_THAT(end().reason, HasSubstr("time limit of 1 s"));
}

TEST_F(LocalEngineTest, WhoIsTakenBackMayStillFinishInItsGrace) {
  start(
      world_.script("trap 'echo saved; exit 0' TERM; echo > ready; while :; do sleep 0.01; done"));
  ASSERT_TRUE(eventually([&] { return fs::exists(world_.work() / "ready"); }));
  engine_->take_back(attempt_, 60s);
  EXPECT_EQ(end().kind, Kind::kTakenBack);
  EXPECT_EQ(end().exit_code, 0);
  EXPECT_THAT(output(), HasSubstr("saved\n"));
}

TEST_F(LocalEngineTest, AStoppedJobCanBeTakenBack) {
  start(world_.job({"/bin/sh", "-c", "echo $$ > pid; kill -STOP $$"}));
  const pid_t pid = pid_in("pid");
  ASSERT_TRUE(eventually([&] {
    return text_of("/proc/" + std::to_string(pid) + "/stat").find(") T") != std::string::npos;
  }));
  engine_->take_back(attempt_, 60s);
  EXPECT_EQ(end().kind, Kind::kTakenBack);
  EXPECT_EQ(end().exit_code, 128 + SIGTERM);
}

TEST_F(LocalEngineTest, NothingThatAJobStartedIsLeftOfIt) {
  world_.options.failure_grace = 20ms;
  engine_ = world_.make();
  // One in a session of its own, deaf to SIGTERM, and a parent that does not wait for it.
  start(world_.job(
      {"/bin/sh", "-c",
       "setsid /bin/sh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 1000; done' &"
       " while ! [ -s pid ]; do sleep 0.01; done; exit 0"}));
  EXPECT_EQ(end().exit_code, 0) << end().reason;
  EXPECT_FALSE(runs(pid_in("pid")));
}

TEST_F(LocalEngineTest, AKeeperThatIsKilledWhileItForksARankIsSeenOnceThatIsGone) {
  start(world_.script("exec sleep 1000"));
  ASSERT_TRUE(eventually([&] { return world_.starts(attempt_) == 1; }));
  world_.kill_keeper(attempt_);
  auto rank = local::FolderLock::try_take(world_.folder(attempt_));  // as if by inheritance
  ASSERT_TRUE(rank.has_value());
  for (int i = 0; i < 3; ++i) {
    for (const EngineEvent& event : engine_->watch()) EXPECT_EQ(event.kind, Kind::kBegan);
  }
  pollfd news{engine_->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&news, 1, 0), 0) << "and nobody asks without a pause meanwhile";
  rank.reset();
  EXPECT_EQ(end().kind, Kind::kVanished);
}

TEST_F(LocalEngineTest, AKilledKeeperTakesItsRanksAlong) {
  start(world_.job({"/bin/sh", "-c",
                    "setsid /bin/sh -c 'echo $$ > child; exec sleep 1000' & echo $$ > pid; "
                    "exec sleep 1000"}));
  const pid_t rank = pid_in("pid");
  const pid_t child = pid_in("child");
  world_.kill_keeper(attempt_);
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_THAT(end().reason, HasSubstr("left no outcome"));
  EXPECT_TRUE(eventually([&] { return !runs(rank) && !runs(child); }));
}

TEST_F(LocalEngineTest, AKeeperThatIsToldToEndBySomebodyElseLosesItsJob) {
  start(world_.script("exec sleep 1000"));
  ASSERT_TRUE(eventually([&] { return world_.starts(attempt_) == 1; }));
  ASSERT_EQ(::kill(world_.folder(attempt_).keeper()->process.pid, SIGTERM), 0);
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_THAT(end().reason, HasSubstr("SIGTERM"));
}

TEST_F(LocalEngineTest, JobsSurviveTheDeathOfTheirCoordinator) {
  engine_.reset();
  const pid_t coordinator = ::fork();
  ASSERT_GE(coordinator, 0);
  if (coordinator == 0) {
    engine_ = world_.make();
    start(world_.script("while ! [ -e go ]; do sleep 0.01; done; echo done; exit 4"));
    (void)::raise(SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(coordinator, &status, 0), coordinator);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  ASSERT_TRUE(eventually([&] { return world_.starts(attempt_) == 1; }));
  engine_ = world_.make();
  const auto found = engine_->adopt();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found[0].running);
  EXPECT_EQ(found[0].placement, (std::vector<DevicePlace>{{"left", 0}}));
  std::ofstream{world_.work() / "go"};
  EXPECT_EQ(end().kind, Kind::kExited);
  EXPECT_EQ(end().exit_code, 4);
  EXPECT_EQ(output(), "done\n");
  EXPECT_EQ(world_.starts(attempt_), 1);
}

TEST_F(LocalEngineTest, ASecondKeeperDoesNotStartTheRanksAgain) {
  start(world_.script("while ! [ -e go ]; do sleep 0.01; done"));
  ASSERT_TRUE(eventually([&] { return world_.starts(attempt_) == 1; }));
  std::vector<pid_t> keepers;
  for (int i = 0; i < 3; ++i) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::execl(COMMENSAL_KEEPER, COMMENSAL_KEEPER, world_.state().c_str(), "7", "1", nullptr);
      ::_exit(9);
    }
    keepers.push_back(pid);
  }
  std::ofstream{world_.work() / "go"};
  EXPECT_EQ(end().exit_code, 0);
  for (const pid_t pid : keepers) {
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(world_.starts(attempt_), 1);
}

/// Two coordinators in a row have started keepers, and neither had come to its turn.
TEST_F(LocalEngineTest, OfTwoKeepersThatWaitOneRunsTheJobAndHearsOfItsEnd) {
  for (const bool before : {true, false}) {
    const Attempt attempt{JobId{"two"}, before ? 1U : 2U};
    engine_->hold(attempt, world_.script("exec sleep 1000"));
    auto lock = std::optional{local::FolderLock::take(world_.folder(attempt))};
    start(attempt, world_.script("exec sleep 1000"));
    engine_ = world_.make();
    EXPECT_FALSE(engine_->adopt().at(0).running);
    engine_->release(attempt);
    if (before) engine_->take_back(attempt, 60s);
    lock.reset();
    if (!before) {
      ASSERT_TRUE(eventually([&] { return world_.starts(attempt) == 1; }));
      engine_->take_back(attempt, 60s);
    }
    EXPECT_EQ(end(attempt).kind, Kind::kTakenBack);
    EXPECT_EQ(world_.starts(attempt), before ? 0 : 1);
    engine_->forget(attempt);
  }
}

TEST_F(LocalEngineTest, FiftyJobsAtOnce) {
  std::vector<Attempt> attempts;
  for (int i = 0; i < 50; ++i) {
    attempts.push_back({JobId{"many-" + std::to_string(i)}, 1});
    start(attempts.back(),
          world_.script("echo number " + std::to_string(i) + "; exit " + std::to_string(i % 3)));
  }
  for (int i = 0; i < 50; ++i) {
    const Attempt& attempt = attempts[static_cast<std::size_t>(i)];
    EXPECT_EQ(end(attempt).exit_code, i % 3) << end(attempt).reason;
    EXPECT_EQ(output(attempt, 0), "number " + std::to_string(i) + '\n');
    EXPECT_EQ(world_.starts(attempt), 1);
    engine_->forget(attempt);
    EXPECT_EQ(engine_->logs(attempt).size(), 1U);  // logs stay
  }
  EXPECT_EQ(events_.size(), 100U);
  EXPECT_TRUE(fs::is_empty(world_.state() / "jobs"));
}

TEST_F(LocalEngineTest, OutputIsRotatedAtLinesAndNothingIsLost) {
  world_.options.logs = {1000, 40};
  engine_ = world_.make();
  start(world_.job({"/bin/sh", "-c",
                    "i=0; while [ $i -lt 1000 ]; do echo line number $i; i=$((i+1)); done; "
                    "printf 'no end'"}));
  EXPECT_EQ(end().exit_code, 0);
  std::string expected;
  for (int i = 0; i < 1000; ++i) expected += "line number " + std::to_string(i) + '\n';
  const std::string log = engine_->logs(attempt_).at(0);
  std::string all = text_of(log);
  EXPECT_LE(all.size(), 1000U);
  int files = 1;
  for (; fs::exists(log + '.' + std::to_string(files)); ++files) {
    const std::string older = text_of(log + '.' + std::to_string(files));
    EXPECT_LE(older.size(), 1000U);
    EXPECT_TRUE(older.ends_with('\n'));
    all.insert(0, older);
  }
  EXPECT_EQ(all, expected + "no end");
  EXPECT_GT(files, 10);
}

TEST_F(LocalEngineTest, BothStreamsOfARankAreInItsLog) {
  start(world_.job({"/bin/sh", "-c", "echo out; echo err >&2; head -c 300000 /dev/zero"}));
  EXPECT_EQ(end().exit_code, 0);
  EXPECT_EQ(output().size(), 8U + 300000U);
  EXPECT_TRUE(output().starts_with("out\nerr\n"));
}

TEST_F(LocalEngineTest, AJobIsHeldToItsLimitsWhereGroupsCanBeMade) {
  JobSpec spec = world_.job(
      {"/bin/sh", "-c", "cat /proc/self/cgroup; while ! [ -e go ]; do sleep 0.01; done"});
  spec.cpu_milli = 500;
  spec.host_memory_mib = 256;
  start(spec);
  ASSERT_TRUE(eventually([&] { return !output().empty() && output() != "no log"; }));
  const auto keeper = world_.folder(attempt_).keeper();
  ASSERT_TRUE(keeper.has_value());
  std::ofstream{world_.work() / "go"};
  EXPECT_EQ(end().exit_code, 0) << end().reason;
  const std::string said = text_of(world_.folder(attempt_).path() / "keeper.log");
  if (keeper->groups.empty()) {
    EXPECT_THAT(said, AllOf(HasSubstr("no limit of cpu is kept"), HasSubstr("no limit of memory")));
    GTEST_SKIP() << "no control group can be made here: " << said;
  }
  EXPECT_THAT(output(), HasSubstr("commensal-7-1-limits"));
  for (const std::string& group : keeper->groups) EXPECT_FALSE(fs::exists(group)) << group;
}

TEST_F(LocalEngineTest, GroupsOfAKilledKeeperGo) {
  JobSpec spec =
      world_.job({"/bin/sh", "-c", "env -i setsid sleep 1000 & echo $! > pid; exec sleep 1000"});
  spec.cpu_milli = 500;
  start(spec);
  const pid_t child = pid_in("pid");
  const auto groups = world_.folder(attempt_).keeper()->groups;
  world_.kill_keeper(attempt_);
  EXPECT_EQ(end().kind, Kind::kVanished);
  if (groups.empty()) {
    ::kill(child, SIGKILL);
    GTEST_SKIP() << "no control group can be made here";
  }
  // Not even its environment says any more whose it is.
  EXPECT_TRUE(eventually([&] { return !runs(child); }));
  for (const std::string& group : groups) {
    EXPECT_TRUE(eventually([&] { return text_of(group + "/cgroup.procs").empty(); })) << group;
  }
  engine_->forget(attempt_);
  for (const std::string& group : groups) EXPECT_FALSE(fs::exists(group)) << group;
}

TEST_F(LocalEngineTest, GroupsOfTwoCoordinatorsJobsOfOneNumberAreApart) {
  LocalWorld beside;
  const auto other = beside.make();
  JobSpec spec = world_.job({"/bin/sh", "-c", "while ! [ -e go ]; do sleep 0.01; done"});
  spec.cpu_milli = 500;
  JobSpec same = spec;
  same.directory = beside.work();
  other->hold(attempt_, same);
  other->place(attempt_, {{"left", 0}}, JobClass::kOpportunistic);
  other->release(attempt_);
  start(spec);
  ASSERT_TRUE(eventually(
      [&] { return world_.folder(attempt_).keeper() && beside.folder(attempt_).keeper(); }));
  const auto groups = world_.folder(attempt_).keeper()->groups;
  const auto others = beside.folder(attempt_).keeper()->groups;
  world_.kill_keeper(attempt_);
  EXPECT_EQ(end().kind, Kind::kVanished);  // its groups are emptied
  std::ofstream{beside.work() / "go"};
  EngineEvent last;
  EXPECT_TRUE(eventually([&] {
    for (EngineEvent& event : other->watch()) last = std::move(event);
    if (last.kind == Kind::kBegan) wait_for_news(*other);
    return last.kind != Kind::kBegan;
  }));
  EXPECT_EQ(last.exit_code, 0) << last.reason;
  if (groups.empty()) GTEST_SKIP() << "no control group can be made here";
  for (const std::string& group : groups) EXPECT_THAT(others, Not(Contains(group)));
}

TEST_F(LocalEngineTest, AMissingKeeperIsSaidAndNothingHasHappened) {
  world_.options.keeper = world_.work() / "no-keeper";
  engine_ = world_.make();
  engine_->hold(attempt_, world_.job({"true"}));
  engine_->place(attempt_, {{"left", 0}}, JobClass::kGuaranteed);
  try {
    engine_->release(attempt_);
    FAIL() << "released";
  } catch (const EngineFailed& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no-keeper"), HasSubstr("No such file")));
  }
  EXPECT_THAT(engine_->watch(), IsEmpty());
  world_.options.keeper = COMMENSAL_KEEPER;
  engine_ = world_.make();
  EXPECT_FALSE(engine_->adopt().at(0).running);
  engine_->release(attempt_);
  EXPECT_EQ(end().exit_code, 0);
}

TEST_F(LocalEngineTest, OneWhoseKeeperDiesBeforeItBeginsVanishes) {
  world_.options.keeper = "/bin/true";  // ends, and did nothing
  engine_ = world_.make();
  start(world_.job({"true"}));
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_THAT(end().reason, HasSubstr("before it could start"));
}

TEST_F(LocalEngineTest, TheStateFolderMustBeOursAlone) {
  const fs::path state = world_.work() / "open";
  fs::create_directory(state);
  ASSERT_EQ(::chmod(state.c_str(), 0755), 0);
  world_.options.state = state;
  try {
    (void)world_.make();
    FAIL() << "opened";
  } catch (const EngineFailed& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("state folder"), HasSubstr("0755")));
  }
  const fs::path link = world_.work() / "link";
  fs::create_directory_symlink(world_.work(), link);
  world_.options.state = link;
  EXPECT_THROW((void)world_.make(), EngineFailed);
  world_.options.state = world_.work() / "fresh" / "state";
  (void)world_.make();
  struct stat info {};
  ASSERT_EQ(::stat(world_.options.state.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0700U);
}

TEST_F(LocalEngineTest, IdsAndWordsThatCannotBeAreRefusedByName) {
  const auto refused = [&](const Attempt& attempt, const JobSpec& spec, const std::string& named) {
    try {
      engine_->hold(attempt, spec);
      ADD_FAILURE() << "held: " << named;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr(named));
    }
  };
  const JobSpec good = world_.job({"true"});
  for (const std::string id : {"", "..", "a/b", "-/../x", ".hidden", "a b"}) {
    refused({JobId{id}, 1}, good, '\'' + id + '\'');
    engine_->take_back({JobId{id}, 1}, 0ms);
    engine_->forget({JobId{id}, 1});
    EXPECT_THAT(engine_->logs({JobId{id}, 1}), IsEmpty());
  }
  refused(attempt_, world_.job({""}), "no command");
  refused(attempt_, world_.job({"echo", std::string{"a\0b", 3}}), "word 1");
  JobSpec bad = good;
  bad.environment["A=B"] = "";
  refused(attempt_, bad, "A=B");
  bad = good;
  bad.gpus = 0;
  refused(attempt_, bad, "0");
  EXPECT_TRUE(fs::is_empty(world_.state() / "jobs"));
}

TEST_F(LocalEngineTest, WhereTheFoldersCannotBeReadItDoesNotSayThatNoNumberIsTaken) {
  fs::remove_all(world_.state() / "logs");
  try {
    (void)engine_->highest_job();
    FAIL() << "it said so";
  } catch (const EngineFailed& error) {
    EXPECT_THAT(error.what(), HasSubstr((world_.state() / "logs").native()));
  }
}

TEST_F(LocalEngineTest, ThisMachineIsOneNodeWithItsCores) {
  world_.options.nodes = nullptr;
  engine_ = world_.make();
  const auto nodes = engine_->nodes();
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0].devices, std::vector<std::string>{"host"});
  EXPECT_GT(nodes[0].cpu_milli, 0);
  EXPECT_GT(nodes[0].memory_mib, 0);
  EXPECT_TRUE(nodes[0].up);
  EXPECT_FALSE(nodes[0].name.empty());
  EXPECT_EQ(this_machine({"GPU-x", "GPU-y"}, "h100").devices.size(), 2U);
}

}  // namespace
}  // namespace commensal::cluster::local_engine_test
