// SPDX-License-Identifier: Apache-2.0
// Parts of the local engine that need no job: notes, endings, variables, logs, limits, processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <system_error>

#include "coordinator/engines/local/durable_file.h"
#include "coordinator/engines/local/ending.h"
#include "coordinator/engines/local/left_groups.h"
#include "coordinator/engines/local/limit_groups.h"
#include "coordinator/engines/local/output_log.h"
#include "coordinator/engines/local/program_start.h"
#include "coordinator/engines/local/rank_environment.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::local::local_parts_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Kind = EngineEvent::Kind;

JobSpec full_spec() {
  JobSpec spec;
  spec.name = "näme \"x\"";
  spec.tenant = "vision";
  spec.asked = policies::AskedClass::kGuaranteed;
  spec.gpus = 3;
  spec.cpu_milli = 2500;
  spec.host_memory_mib = 1024;
  spec.terms.memory = MemoryRange{1_GiB, 2_GiB};
  spec.terms.share = ShareRange{0.25, 1.0};
  spec.time_limit = 90s;
  spec.pre_run = 60s;
  spec.environment = {{"A", "b c"}, {"\xff", "\xfe\n"}};
  spec.after = JobId{"6"};
  spec.command = {"python", "a b", "\x80\x81", "", "$(x)"};
  spec.directory = "/tmp/\xe4";
  return spec;
}

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() { (void)world_.make(); }
  LocalWorld world_;
  const AttemptFolder folder_{world_.folder({JobId{"7"}, 2})};
};

TEST_F(FolderTest, NotesComeBackAsTheyWereWritten) {
  folder_.make();
  folder_.make();
  EXPECT_FALSE(folder_.held() || folder_.placed() || folder_.keeper() || folder_.outcome());
  const HeldJob held{full_spec(), 1500ms, {77, 3}};
  const Placed placed{{{"n\xff", 2}, {"m", 0}},
                      {"GPU-1", "host"},
                      JobClass::kGuaranteed,
                      {"commensal", "run", "\xff"},
                      {{"m", {{"A", "1"}}}, {"n\xff", {}}}};
  const KeeperNote keeper{{12, 34, "boot"}, {"/sys/fs/cgroup/x"}};
  folder_.set(held);
  folder_.set(placed);
  folder_.set(keeper);
  EXPECT_EQ(folder_.held(), held);
  EXPECT_EQ(folder_.placed(), placed);
  EXPECT_EQ(folder_.keeper(), keeper);
  for (const Outcome& outcome :
       {Outcome{Kind::kExited, 3, "r\xff"}, Outcome{Kind::kTakenBack, std::nullopt, "t"},
        Outcome{Kind::kVanished, std::nullopt, "v"}}) {
    folder_.set(outcome);
    EXPECT_EQ(folder_.outcome(), outcome);
  }
  HeldJob least;
  least.job.command = {"true"};
  folder_.set(least);
  EXPECT_EQ(folder_.held(), least);
  folder_.set_take_back(250ms);
  EXPECT_EQ(folder_.take_back(), 250ms);
  EXPECT_TRUE(folder_.set_begun());
  EXPECT_FALSE(folder_.set_begun());
}

TEST_F(FolderTest, TheHighestJobIsOfFoldersAndOutputAndNothingElse) {
  const fs::path state = world_.state();
  EXPECT_EQ(highest_job_in(state), 0U);
  for (const std::string name : {"3", "model", "9-1", ".removed-70", "99999999999999999999999"}) {
    fs::create_directories(state / "jobs" / name);
  }
  EXPECT_EQ(highest_job_in(state), 3U);
  for (const std::string name :
       {"20261126-notes.txt", "80-1.log", "81-1-0.log.gz", "law-1-0.log", "82-x-0.log",
        "83-1-0.logs", "-84-1-0.log", "99999999999999999999-1-0.log", "0-1-0.log"}) {
    std::ofstream{state / "logs" / name} << "text";
  }
  EXPECT_EQ(highest_job_in(state), 3U);
  std::ofstream{state / "logs" / "40-2-11.log.3"} << "an older part";
  EXPECT_EQ(highest_job_in(state), 40U);
  std::ofstream{AttemptFolder(state, {JobId{"41"}, 1}).log(0)} << "text";
  EXPECT_EQ(highest_job_in(state), 41U);
  fs::create_directories(state / "jobs" / "100");  // as `hold` leaves it when the power goes off
  EXPECT_EQ(highest_job_in(state), 100U);
  fs::remove_all(state / "logs");
  EXPECT_THROW((void)highest_job_in(state), std::system_error);
}

TEST_F(FolderTest, TheLockIsHeldOnceAndAskingDoesNotTakeIt) {
  folder_.make();
  EXPECT_FALSE(FolderLock::is_taken(folder_));
  EXPECT_FALSE(FolderLock::is_taken(folder_));
  {
    const auto lock = FolderLock::try_take(folder_);
    ASSERT_TRUE(lock.has_value());
    EXPECT_TRUE(FolderLock::is_taken(folder_));
    EXPECT_FALSE(FolderLock::try_take(folder_).has_value());
  }
  EXPECT_TRUE(FolderLock::try_take(folder_).has_value());
  folder_.remove();
  EXPECT_THROW((void)FolderLock::try_take(folder_), std::system_error);
}

TEST_F(FolderTest, AFileThatCannotBeWrittenIsNamedAndTheOldTextStays) {
  const fs::path file = world_.work() / "note";
  write_whole(file, "old");
  fs::create_directory(world_.work() / "note.new");  // in the way
  try {
    write_whole(file, "new");
    FAIL() << "written";
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("note.new"));
  }
  EXPECT_EQ(text_of(file), "old");
}

TEST(EndingTest, TheFirstCauseCounts) {
  Ending one{1};
  EXPECT_FALSE(one.has_cause());
  one.rank_ended(0, 3 << 8);
  one.taken_back();
  EXPECT_EQ(one.outcome(""), (Outcome{Kind::kExited, 3, "ended with 3"}));

  Ending two{2};
  two.rank_ended(1, 0);
  EXPECT_FALSE(two.has_cause());
  two.taken_back();
  two.rank_ended(0, SIGTERM);
  EXPECT_EQ(two.outcome("").kind, Kind::kTakenBack);
  EXPECT_EQ(two.outcome("").exit_code, 143);

  Ending failed{3};
  failed.rank_ended(2, SIGKILL);
  failed.rank_ended(0, 1 << 8);
  EXPECT_EQ(failed.outcome("why"),
            (Outcome{Kind::kExited, 137, "rank 2 was killed by SIGKILL; why"}));

  Ending good{2};
  good.rank_ended(0, 0);
  good.rank_ended(1, 0);
  good.time_limit(5s);
  EXPECT_EQ(good.outcome("").exit_code, 0);

  Ending late{1};
  late.time_limit(5s);
  late.rank_ended(0, 0);
  EXPECT_EQ(late.outcome("").exit_code, kTimeLimitExit);

  Ending told{1};
  told.keeper_told_to_end();
  told.rank_ended(0, 0);
  EXPECT_EQ(told.outcome("").kind, Kind::kVanished);
  EXPECT_EQ(Ending{1}.outcome("").kind, Kind::kVanished);
}

TEST(RankEnvironmentTest, OwnVariablesWinOverNodesAndThoseOverInherited) {
  HeldJob held;
  held.job.environment = {
      {"B", "job"}, {"C", "job"}, {"RANK", "9"}, {"COMMENSAL_JOB_ID", "forged"}};
  Placed placed{{{"n", 0}, {"n", 1}},
                {"GPU-1", "host"},
                JobClass::kGuaranteed,
                {},
                {{"n", {{"A", "node"}, {"B", "node"}}}}};
  const RankContext context{{JobId{"7"}, 1}, held, placed, 4321, "me"};
  const Environment base{{"A", "base"},
                         {"B", "base"},
                         {"D", "base"},
                         {"NOTIFY_SOCKET", "x"},
                         {"LOCAL_RANK", "5"},
                         {"COMMENSAL_RUN", "1"},
                         {"COMMENSAL_PRIMARY_PID", "8"},
                         {"COMMENSAL_INSTANCE", "second"}};
  const auto numbers = number_ranks(placed.devices);
  const Environment all = rank_environment(base, context, numbers.at(1));
  EXPECT_EQ(all.at("A"), "node");
  EXPECT_EQ(all.at("B"), "job");
  EXPECT_EQ(all.at("C"), "job");
  EXPECT_EQ(all.at("D"), "base");
  EXPECT_EQ(all.at("RANK"), "1");
  EXPECT_EQ(all.at("LOCAL_RANK"), "1");
  EXPECT_EQ(all.at("COMMENSAL_JOB_ID"), "7");
  EXPECT_EQ(all.at("COMMENSAL_JOB_NAME"), "7");
  EXPECT_FALSE(all.contains("NOTIFY_SOCKET"));
  EXPECT_FALSE(all.contains("COMMENSAL_RUN"));
  EXPECT_FALSE(all.contains("COMMENSAL_PRIMARY_PID"));
  EXPECT_EQ(all.at("COMMENSAL_INSTANCE"), "second");
  EXPECT_FALSE(all.contains("CUDA_VISIBLE_DEVICES"));
}

class OutputLogTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> all{text_of(file_)};
    for (int i = 1; fs::exists(file_.native() + '.' + std::to_string(i)); ++i) {
      all.push_back(text_of(file_.native() + '.' + std::to_string(i)));
    }
    return all;
  }
  LocalWorld world_;
  const fs::path file_ = world_.work() / "log";
};

TEST_F(OutputLogTest, TheOldestFileGoes) {
  OutputLog log{file_, {6, 3}};
  for (const char* line : {"one\n", "two\n", "three\n", "four\n"}) log.append(line);
  EXPECT_THAT(files(), ElementsAre("four\n", "three\n", "two\n"));
}

TEST_F(OutputLogTest, PartsOfALineAreWrittenAtOnceAndStayTogether) {
  OutputLog log{file_, {8, 9}};
  log.append("12345");
  EXPECT_THAT(files(), ElementsAre("12345"));
  log.append("678901\nab");
  EXPECT_THAT(files(), ElementsAre("ab", "12345678901\n"));
}

TEST_F(OutputLogTest, ALineWithoutEndIsCutAtTwoFiles) {
  OutputLog log{file_, {8, 9}};
  log.append(std::string(40, 'x'));
  EXPECT_THAT(files(),
              ElementsAre(std::string(8, 'x'), std::string(16, 'x'), std::string(16, 'x')));
}

TEST_F(OutputLogTest, OneFileIsBegunAgain) {
  OutputLog log{file_, {6, 1}};
  for (const char* line : {"one\n", "two\n"}) log.append(line);
  EXPECT_THAT(files(), ElementsAre("two\n"));
}

TEST_F(OutputLogTest, AnotherOneGoesOnAtTheEnd) {
  OutputLog{file_, {100, 2}}.append("a\n");
  OutputLog{file_, {100, 2}}.append("b\n");
  EXPECT_THAT(files(), ElementsAre("a\nb\n"));
}

TEST_F(OutputLogTest, WhatAFullDiskDidNotTakeIsCounted) {
  OutputLog log{"/dev/full", {1U << 30U, 2}};
  log.append("12345\n");
  log.append("678\n");
  EXPECT_EQ(log.lost(), 10U);
}

/// Any pieces: files in their order are the text, none but the last two limits long, and each but
/// the newest ends with its line where lines are short.
TEST_F(OutputLogTest, NothingIsLostHoweverItArrives) {
  std::mt19937 random{11};
  for (int round = 0; round < 200; ++round) {
    const fs::path file = world_.work() / ("law-" + std::to_string(round));
    OutputLog log{file, {64, 1000}};
    std::string all;
    for (int i = 0; i < 20; ++i) {
      std::string piece;
      for (std::size_t n = random() % 60; n > 0; --n) piece += random() % 15 == 0 ? '\n' : 'x';
      log.append(piece);
      all += piece;
    }
    std::string read = text_of(file);
    for (int i = 1; fs::exists(file.native() + '.' + std::to_string(i)); ++i) {
      const std::string older = text_of(file.native() + '.' + std::to_string(i));
      EXPECT_LE(older.size(), 128U);
      read.insert(0, older);
    }
    ASSERT_EQ(read, all) << "round " << round;
  }
}

/// Control groups that are files of a map; what is not in it cannot be made.
class FakeGroups final : public node::GroupFiles {
 public:
  std::optional<std::string> read(const fs::path& file) override {
    const auto found = files.find(file);
    return found == files.end() ? std::nullopt : std::optional{found->second};
  }
  std::string write(const fs::path& file, const std::string& text) override {
    if (file.filename() == "cgroup.subtree_control") {
      if (busy) return "Device or resource busy";
      for (const fs::path& group : groups) add(group, text);
      return "";
    }
    if (!files.contains(file)) return "no such file: " + file.native();
    files[file] = text;
    return "";
  }
  std::string make(const fs::path& group) override {
    if (read_only) return "cannot make " + group.native() + ": Read-only file system";
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    for (const char* file : inherited) files.emplace(group / file, "max");
    return "";
  }
  std::string remove(const fs::path& group) override {
    ++removals;
    if (kept.contains(group))
      return "cannot remove " + group.native() + ": Device or resource busy";
    std::erase(groups, group);
    return "";
  }
  bool delegated(const fs::path& group) override { return given.contains(group); }

  void add(const fs::path& group, const std::string& controller) {
    files.emplace(group / (controller == "+cpu" ? "cpu.max" : "memory.max"), "max");
  }

  std::map<fs::path, std::string> files;
  std::vector<fs::path> groups;
  std::set<fs::path> given;
  std::set<fs::path> kept;  ///< the kernel is not done with what was in them
  int removals = 0;
  std::vector<const char*> inherited;
  bool read_only = false;
  bool busy = false;
};

class LimitGroupsTest : public ::testing::Test {
 protected:
  void machine(const std::string& groups, const std::string& mounts) {
    fs::create_directories(world_.work() / "proc/self");
    std::ofstream{world_.work() / "proc/self/cgroup"} << groups;
    std::ofstream{world_.work() / "proc/self/mountinfo"} << mounts;
    roots_.proc = world_.work() / "proc";
  }
  void version_1() {
    machine("4:memory:/svc\n2:cpu,cpuacct:/svc\n",
            "30 20 0:1 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
            "31 20 0:2 / /cg/memory rw - cgroup cgroup rw,memory\n");
  }
  void version_2() { machine("0::/user/svc\n", "30 20 0:1 / /cg rw - cgroup2 cgroup2 rw\n"); }
  LocalWorld world_;
  node::HostRoots roots_;
  FakeGroups groups_;
};

TEST_F(LimitGroupsTest, OfVersion1AreOneForEachController) {
  version_1();
  groups_.inherited = {"cpu.cfs_quota_us", "memory.limit_in_bytes"};
  const LimitGroups made = make_limit_groups(roots_, groups_, "x", {1500, 64});
  EXPECT_THAT(made.problems, IsEmpty());
  EXPECT_THAT(made.folders, ElementsAre("/cg/cpu/svc/x", "/cg/memory/svc/x"));
  EXPECT_EQ(groups_.files["/cg/cpu/svc/x/cpu.cfs_quota_us"], "150000");
  EXPECT_EQ(groups_.files["/cg/memory/svc/x/memory.limit_in_bytes"], "67108864");
}

TEST_F(LimitGroupsTest, OfVersion2AreBesideTheOwnOneWhereThatHasProcesses) {
  version_2();
  groups_.given = {"/cg/user"};
  const LimitGroups made = make_limit_groups(roots_, groups_, "x", {500, 64});
  EXPECT_THAT(made.problems, IsEmpty());
  EXPECT_THAT(made.folders, ElementsAre("/cg/user/x"));
  EXPECT_EQ(groups_.files["/cg/user/x/cpu.max"], "50000 100000");
  EXPECT_EQ(groups_.files["/cg/user/x/memory.max"], "67108864");
  EXPECT_THAT(groups_.groups, ElementsAre("/cg/user/x"));
}

TEST_F(LimitGroupsTest, WhatIsNotDelegatedIsNotTouchedAndTheReasonSaysSo) {
  version_2();
  const LimitGroups made = make_limit_groups(roots_, groups_, "x", {500, 64});
  EXPECT_THAT(made.folders, IsEmpty());
  ASSERT_EQ(made.problems.size(), 2U);
  EXPECT_THAT(made.problems[0], HasSubstr("/cg/user/svc have no cpu.max"));
  EXPECT_THAT(made.problems[1], HasSubstr("memory.max"));
  EXPECT_THAT(groups_.groups, IsEmpty());
}

TEST_F(LimitGroupsTest, WhatCannotBeMadeIsAProblemAndNoError) {
  version_1();
  groups_.read_only = true;
  EXPECT_THAT(make_limit_groups(roots_, groups_, "x", {500, 0}).problems,
              ElementsAre(HasSubstr("Read-only")));
  machine("", "");
  EXPECT_THAT(make_limit_groups(roots_, groups_, "x", {500, 0}).problems,
              ElementsAre(HasSubstr("no such controller")));
}

TEST_F(LimitGroupsTest, NothingIsMadeWhereNothingIsAskedFor) {
  version_1();
  const LimitGroups made = make_limit_groups(roots_, groups_, "x", {});
  EXPECT_TRUE(made.folders.empty() && made.problems.empty() && groups_.groups.empty());
}

TEST_F(LimitGroupsTest, DeathsForWantOfMemoryAreCountedInBothVersions) {
  groups_.files["/a/memory.events"] = "low 0\noom 4\noom_kill 2\n";
  groups_.files["/b/memory.oom_control"] = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
  EXPECT_EQ(killed_for_memory(groups_, {"/a", "/b", "/c"}), 5U);
}

class LeftGroupsTest : public ::testing::Test {
 protected:
  LeftGroups make() { return {groups_, file_}; }
  LocalWorld world_;
  const fs::path file_ = world_.work() / "left_groups.json";
  FakeGroups groups_;
};

TEST_F(LeftGroupsTest, WhatCanBeRemovedIsAndLeavesNoFile) {
  groups_.groups = {"/cg/a", "/cg/b"};
  LeftGroups left = make();
  left.remove({"/cg/a", "/cg/b"});
  left.sweep();
  EXPECT_THAT(groups_.groups, IsEmpty());
  EXPECT_THAT(left.left(), IsEmpty());
  EXPECT_EQ(groups_.removals, 2) << "nothing is tried again";
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(LeftGroupsTest, WhatTheKernelIsNotDoneWithIsRemovedLaterAlsoByTheNextOne) {
  groups_.groups = {"/cg/a", "/cg/b", "/cg/c"};
  groups_.kept = {"/cg/a", "/cg/c"};
  {
    LeftGroups left = make();
    left.remove({"/cg/a", "/cg/b"});
    left.remove({"/cg/c", "/cg/a"});
    EXPECT_THAT(left.left(), ElementsAre("/cg/a", "/cg/c"));
    groups_.kept = {"/cg/c"};
    left.sweep();
    EXPECT_THAT(left.left(), ElementsAre("/cg/c"));
  }
  LeftGroups next = make();
  EXPECT_THAT(next.left(), ElementsAre("/cg/c"));
  next.sweep();
  EXPECT_THAT(groups_.groups, ElementsAre("/cg/c"));
  groups_.kept.clear();
  next.sweep();
  EXPECT_THAT(groups_.groups, IsEmpty());
  EXPECT_THAT(make().left(), IsEmpty());
}

TEST_F(LeftGroupsTest, AFullDiskIsWaitedFor) {
  groups_.kept = {"/cg/a"};
  LeftGroups left{groups_, world_.work() / "later" / "left_groups.json"};
  left.remove({"/cg/a"});  // there is no such folder yet
  EXPECT_THAT(left.left(), ElementsAre("/cg/a"));
  fs::create_directory(world_.work() / "later");
  left.sweep();
  const LeftGroups next{groups_, world_.work() / "later" / "left_groups.json"};
  EXPECT_THAT(next.left(), ElementsAre("/cg/a"));
}

TEST_F(LeftGroupsTest, WhatIsNoListIsNone) {
  for (const char* text : {"", "[", "{}", "7", "[1, null]"}) {
    std::ofstream{file_} << text;
    EXPECT_THAT(make().left(), IsEmpty()) << text;
  }
}

TEST_F(LeftGroupsTest, TheListHasABound) {
  LeftGroups left = make();
  std::vector<fs::path> many;
  for (std::size_t i = 0; i < LeftGroups::kMost + 5; ++i) {
    many.push_back("/cg/" + std::to_string(i));
    groups_.kept.insert(many.back());
  }
  left.remove(many);
  EXPECT_EQ(left.left().size(), LeftGroups::kMost);
  EXPECT_EQ(left.left().front(), "/cg/5");
}

TEST_F(LeftGroupsTest, TheEngineComesBackToThemAtItsLooksAtTheNodes) {
  const Attempt attempt{JobId{"7"}, 1};
  world_.options.groups = &groups_;
  auto engine = world_.make();
  engine->hold(attempt, world_.job({"true"}));
  engine->place(attempt, {{"left", 0}}, JobClass::kGuaranteed);
  const AttemptFolder folder = world_.folder(attempt);
  folder.set_released();
  folder.set(KeeperNote{own_identity(), {"/cg/a"}});
  ASSERT_TRUE(folder.set_begun());
  folder.set(Outcome{EngineEvent::Kind::kExited, 0, "ended"});
  groups_.groups = {"/cg/a"};
  groups_.kept = {"/cg/a"};
  engine->forget(attempt);
  EXPECT_TRUE(attempts_in(world_.state()).empty()) << "the attempt is over all the same";
  (void)engine->nodes();
  EXPECT_THAT(groups_.groups, ElementsAre("/cg/a"));
  engine = world_.make();
  groups_.kept.clear();
  (void)engine->nodes();
  EXPECT_THAT(groups_.groups, IsEmpty());
}

/// Ends a program that a test has started, and says how it ended.
int status_of(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string all_of(const wire::UniqueFd& fd) {
  std::string text;
  std::array<char, 4096> piece;
  for (ssize_t count = 0; (count = ::read(fd.get(), piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  return text;
}

TEST(ProgramStartTest, HasItsFilesItsWordsAndVariablesAndAGroupOfItsOwn) {
  Pipe output = make_pipe();
  const Pipe other = make_pipe();
  ProgramStart program;
  program.give_nothing_to_read();
  program.give(output.write.get(), 1);
  program.close_from(3);
  const pid_t pid =
      program.start({"sh", "-c", "cat; echo \"$1\" $NAME; [ -e /proc/$$/fd/$2 ] || echo closed",
                     "sh", "a b;c", std::to_string(other.read.get())},
                    {"NAME=its own", "PATH=/usr/bin:/bin"});
  EXPECT_EQ(::getpgid(pid), pid);
  output.write.reset();
  EXPECT_EQ(all_of(output.read), "a b;c its own\nclosed\n");
  EXPECT_EQ(status_of(pid), 0);
}

TEST(ProgramStartTest, HasNoSignalBlockedOrIgnored) {
  Pipe output = make_pipe();
  ProgramStart program;
  program.give(output.write.get(), 1);
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  const auto ignored = ::signal(SIGUSR1, SIG_IGN);
  const pid_t reads = program.start({"grep", "^SigBlk", "/proc/self/status"}, own_variables());
  const pid_t ends = ProgramStart{}.start({"sh", "-c", "kill -USR1 $$; exit 0"}, own_variables());
  ::signal(SIGUSR1, ignored);
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  output.write.reset();
  EXPECT_EQ(all_of(output.read), "SigBlk:\t0000000000000000\n");
  EXPECT_EQ(status_of(reads), 0);
  EXPECT_EQ(status_of(ends), 128 + SIGUSR1);
}

TEST(ProgramStartTest, OneThatIsNotThereIsNamed) {
  const ProgramStart program;
  try {
    (void)program.start({"/nowhere/to/be/found"}, {});
    FAIL() << "started";
  } catch (const std::system_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot start /nowhere/to/be/found"));
    EXPECT_EQ(error.code().value(), ENOENT);
  }
}

TEST(ProcessTest, IsKnownByMoreThanItsNumber) {
  ProcessIdentity self = own_identity();
  EXPECT_TRUE(static_cast<bool>(open_process(self)));
  self.start_ticks += 1;
  EXPECT_FALSE(static_cast<bool>(open_process(self)));
  self = own_identity();
  self.boot += "x";
  EXPECT_FALSE(static_cast<bool>(open_process(self)));
  EXPECT_FALSE(static_cast<bool>(open_process({})));
}

TEST(ProcessTest, AZombieHasEnded) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    char byte = 0;
    ::close(ends[1]);
    (void)!::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  EXPECT_THAT(children_of(::getpid()), ::testing::Contains(pid));
  const std::string stat = text_of("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream fields{stat.substr(stat.rfind(')') + 2)};
  std::vector<std::string> all{std::istream_iterator<std::string>{fields}, {}};
  const ProcessIdentity child{pid, std::stoull(all.at(19)), own_identity().boot};
  EXPECT_TRUE(static_cast<bool>(open_process(child)));
  ::close(ends[1]);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(static_cast<bool>(open_process(child)));
  EXPECT_THAT(children_of(::getpid()), Not(::testing::Contains(pid)));
  ::close(ends[0]);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
}

}  // namespace
}  // namespace commensal::cluster::local::local_parts_test
