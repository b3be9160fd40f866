// SPDX-License-Identifier: Apache-2.0
// Jobs on several nodes of Slurm: one job, a keeper on each node, ranks that find each other, and
// one end for all. Keepers and ranks are real, Slurm and its srun are made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "coordinator/engines/slurm/slurm_engine.h"
#include "tests/coordinator/fake_slurm.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::slurm_gang_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Kind = EngineEvent::Kind;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SlurmGangTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.instance = "test";
    options_.state = world_.state();
    options_.keeper = COMMENSAL_KEEPER;
    options_.patience = 0ms;
    options_.rest = 0ms;
    options_.commands.programs = COMMENSAL_FAKE_SLURM;
    slurm_.nodes =
        "n1|idle|4|4000|gpu:2,seat:2|10.0.0.1|none\n"
        "n2|idle|4|4000|gpu:2,seat:2|10.0.0.2|none\n"
        "n3|idle|4|4000|(null)|10.0.0.3|none\n";
    make();
  }
  void make() {
    engine_.reset();
    engine_ = std::make_unique<SlurmEngine>(options_, slurm_);
    events_.clear();
  }
  void start(JobSpec spec, JobClass job_class = JobClass::kOpportunistic,
             const std::vector<DevicePlace>& places = {{"n2", 1}, {"n1", 0}}) {
    spec.gpus = static_cast<std::int32_t>(places.size());
    engine_->hold(attempt_, spec);
    engine_->place(attempt_, places, job_class);
    engine_->release(attempt_);
  }
  bool until(const std::function<bool()>& done) {
    return eventually([&] {
      for (EngineEvent& event : engine_->watch()) events_.push_back(std::move(event));
      return done();
    });
  }
  const EngineEvent& end() {
    EXPECT_TRUE(until([&] { return !events_.empty() && events_.back().kind != Kind::kBegan; }));
    return events_.back();
  }
  [[nodiscard]] std::string said(std::size_t rank) {
    const auto logs = engine_->logs(attempt_);
    return rank < logs.size() ? text_of(logs[rank]) : "no log";
  }
  /// The process that a rank has written down as its own or its keeper's.
  [[nodiscard]] pid_t noted(const std::string& name) const {
    pid_t pid = 0;
    std::istringstream{text_of(world_.work() / name)} >> pid;
    return pid;
  }
  bool until_all_run() {
    return until([&] { return noted("rank-0") > 0 && noted("rank-1") > 0; });
  }
  /// Notes who it is and who its keeper is, and goes on until it is ended.
  [[nodiscard]] JobSpec lasting() {
    return world_.script(
        "echo $PPID > keeper-$RANK.new; mv keeper-$RANK.new keeper-$RANK; "
        "echo $$ > rank-$RANK.new; mv rank-$RANK.new rank-$RANK; exec sleep 1000");
  }
  static bool is_gone(pid_t pid) {
    // One that nobody has waited for is dead, too.
    const std::string status = text_of("/proc/" + std::to_string(pid) + "/stat");
    return status.empty() || status.find(") Z ") != std::string::npos;
  }

  const Attempt attempt_{JobId{"7"}, 1};
  LocalWorld world_;
  FakeSlurm slurm_;
  SlurmEngine::Options options_;
  std::unique_ptr<SlurmEngine> engine_;
  std::vector<EngineEvent> events_;
};

TEST_F(SlurmGangTest, IsOneJobOfSlurmOnTheNodesOfItsPlacement) {
  slurm_.starts_jobs = false;
  start(lasting());
  ASSERT_THAT(slurm_.jobs, SizeIs(1));
  const auto& options = slurm_.jobs.at(1).options;
  EXPECT_EQ(options.at("nodes"), "2");
  EXPECT_EQ(options.at("ntasks-per-node"), "1");
  EXPECT_EQ(options.at("gres"), "seat:1");
  EXPECT_THAT(slurm_.called("scontrol"),
              ElementsAre("scontrol update JobId=1 ReqNodeList=n2,n1", "scontrol release 1"));
}

TEST_F(SlurmGangTest, AGuaranteedOneAsksForTheMostDevicesThatItHasOnANode) {
  slurm_.starts_jobs = false;
  start(lasting(), JobClass::kGuaranteed, {{"n1", 0}, {"n1", 1}, {"n2", 0}});
  EXPECT_EQ(slurm_.jobs.at(1).options.at("gres"), "gpu:2");
  EXPECT_EQ(slurm_.jobs.at(1).options.at("partition"), "guaranteed");
}

TEST_F(SlurmGangTest, RanksHaveTorchrunsVariablesAndTheirNodesDevices) {
  // Rank 0's node is the first one of the placement, wherever Slurm starts the job.
  start(world_.job({"/bin/sh", "-c",
                    "echo $SLURMD_NODENAME $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                    "$NODE_RANK $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $CUDA_VISIBLE_DEVICES "
                    "$COMMENSAL_CLUSTER_NODE; echo $MASTER_PORT"}),
        JobClass::kGuaranteed, {{"n2", 0}, {"n2", 1}, {"n1", 1}});
  EXPECT_EQ(end().exit_code, 0) << end().reason;
  EXPECT_EQ(end().reason, "all ranks ended with 0");
  ASSERT_THAT(engine_->logs(attempt_), SizeIs(3));
  const std::string port = said(0).substr(said(0).find('\n') + 1);
  EXPECT_GT(std::atoi(port.c_str()), 0);
  EXPECT_EQ(said(0), "n2 0/3 0/2 0 0/2 10.0.0.2 3 n2\n" + port);
  EXPECT_EQ(said(1), "n2 1/3 1/2 0 0/2 10.0.0.2 5 n2\n" + port);
  EXPECT_EQ(said(2), "n1 2/3 0/1 1 1/2 10.0.0.2 3 n1\n" + port);
}

TEST_F(SlurmGangTest, WordsArriveAsTheyAre) {
  start(world_.job({"/usr/bin/printf", "%s|", "a b", "$(id)", "'\"", "%j", "", "--wrap", "\n"}));
  EXPECT_EQ(end().exit_code, 0) << end().reason;
  EXPECT_EQ(said(0), "a b|$(id)|'\"|%j||--wrap|\n|");
  EXPECT_EQ(said(1), said(0));
}

TEST_F(SlurmGangTest, OneRankThatFailsIsTheEndOfAllAndIsNamed) {
  start(world_.script("if [ $RANK = 1 ]; then exit 3; fi; exec sleep 1000"));
  EXPECT_EQ(end().kind, Kind::kExited);
  EXPECT_EQ(end().exit_code, 3);
  EXPECT_EQ(end().reason, "rank 1 ended with 3 (node n1)");
  EXPECT_THAT(events_, SizeIs(2));
}

TEST_F(SlurmGangTest, OneRankThatIsKilledIsTheEndOfAllAndIsNamed) {
  start(lasting());
  ASSERT_TRUE(until_all_run());
  ASSERT_EQ(::kill(noted("rank-0"), SIGKILL), 0);
  EXPECT_EQ(end().exit_code, 137);
  EXPECT_EQ(end().reason, "rank 0 was killed by SIGKILL (node n2)");
  EXPECT_TRUE(is_gone(noted("rank-1"))) << "all have ended before it is told";
}

TEST_F(SlurmGangTest, OneNodesKeeperThatIsLostIsTheEndOfAll) {
  start(lasting());
  ASSERT_TRUE(until_all_run());
  ASSERT_EQ(::kill(noted("keeper-1"), SIGKILL), 0);
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_THAT(end().reason, HasSubstr("its keeper on n1 is gone and left no outcome"));
  EXPECT_TRUE(is_gone(noted("rank-0")));
  EXPECT_TRUE(eventually([&] { return is_gone(noted("rank-1")); })) << "it dies with its keeper";
}

TEST_F(SlurmGangTest, WithoutItsFirstKeeperTheOthersEndByThemselves) {
  start(lasting());
  ASSERT_TRUE(until_all_run());
  world_.kill_keeper(attempt_);
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_TRUE(eventually([&] { return is_gone(noted("rank-0")) && is_gone(noted("rank-1")); }));
  EXPECT_TRUE(eventually([&] { return is_gone(noted("keeper-0")); }));
}

TEST_F(SlurmGangTest, AllMaySaveTheirWorkWhenItIsTakenBack) {
  start(
      world_.script("trap 'echo saved; exit 5' TERM; echo $$ > rank-$RANK.new; "
                    "mv rank-$RANK.new rank-$RANK; while :; do sleep 0.05; done"));
  ASSERT_TRUE(until_all_run());
  engine_->take_back(attempt_, 60s);
  EXPECT_EQ(end().kind, Kind::kTakenBack);
  EXPECT_EQ(end().exit_code, 5);
  EXPECT_THAT(said(0), HasSubstr("saved"));
  EXPECT_THAT(said(1), HasSubstr("saved"));
}

TEST_F(SlurmGangTest, IsFoundByTheNextCoordinatorWithItsPlacement) {
  start(lasting());
  ASSERT_TRUE(until_all_run());
  make();
  const std::vector<DevicePlace> places{{"n2", 1}, {"n1", 0}};
  EXPECT_THAT(engine_->adopt(),
              ElementsAre(Engine::Found{attempt_, true, places, JobClass::kOpportunistic}));
  engine_->release(attempt_);
  EXPECT_THAT(slurm_.jobs, SizeIs(1));
  engine_->take_back(attempt_, 0ms);
  EXPECT_EQ(end().kind, Kind::kTakenBack);
}

TEST_F(SlurmGangTest, ATimeLimitEndsAll) {
  JobSpec spec = lasting();
  spec.time_limit = 1s;
  start(spec);
  EXPECT_EQ(end().exit_code, 124);
  EXPECT_THAT(end().reason, HasSubstr("reached its time limit of 1 s"));
}

TEST_F(SlurmGangTest, WithoutSrunNoRankIsStarted) {
  options_.commands.programs = world_.work();  // nothing is there
  make();
  start(lasting());
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_THAT(end().reason, AllOf(HasSubstr("cannot start " + world_.work().native() + "/srun"),
                                  HasSubstr("No such file")));
  EXPECT_EQ(world_.starts(attempt_), 0);
}

TEST_F(SlurmGangTest, WhenSrunFailsItsEndIsTheReasonAndNoRankIsStarted) {
  const fs::path programs = world_.work() / "bin";
  fs::create_directory(programs);
  std::ofstream{programs / "srun"}
      << "#!/bin/sh\necho 'srun: error: no step for you' >&2\nexit 1\n";
  fs::permissions(programs / "srun", fs::perms::owner_all);
  options_.commands.programs = programs;
  make();
  start(lasting());
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_THAT(end().reason, AllOf(HasSubstr("its ranks were not started: no keeper on n2, n1"),
                                  HasSubstr("srun ended with 1")));
  EXPECT_THAT(events_, SizeIs(1)) << "it has not begun";
  EXPECT_THAT(text_of(world_.folder(attempt_).path() / "keeper.log"), HasSubstr("no step for you"));
}

TEST_F(SlurmGangTest, NodesWithGpusAndOthersCannotBeMixed) {
  JobSpec spec = lasting();
  spec.gpus = 2;
  engine_->hold(attempt_, spec);
  try {
    engine_->place(attempt_, {{"n1", 0}, {"n3", 0}}, JobClass::kGuaranteed);
    FAIL() << "placed";
  } catch (const EngineFailed& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("job 7, attempt 1"), HasSubstr("n1, n3")));
  }
  EXPECT_FALSE(world_.folder(attempt_).is_placed());
}

TEST_F(SlurmGangTest, AKeeperOfNoNodeOfItSaysSoAndStartsNothing) {
  slurm_.starts_jobs = false;
  start(lasting());
  slurm::ProcessRunner runner;
  const auto part = [&](const std::string& variable) {
    return runner.run(
        {COMMENSAL_KEEPER, "--part-of=" + variable, world_.state().native(), "7", "1"}, 1min);
  };
  ::setenv("COMMENSAL_TEST_NODE", "n9", 1);
  auto result = part("COMMENSAL_TEST_NODE");
  ::unsetenv("COMMENSAL_TEST_NODE");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("node n9 is not one of the placement"));
  EXPECT_THAT(result.output, IsEmpty());
  result = part("COMMENSAL_TEST_NODE");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.errors, HasSubstr("COMMENSAL_TEST_NODE is not set"));
  EXPECT_EQ(world_.starts(attempt_), 0);
}

TEST_F(SlurmGangTest, AKeeperWhoseHeadIsGoneBeforeItSaysStartStartsNothing) {
  slurm_.starts_jobs = false;
  start(lasting());
  ::setenv("COMMENSAL_TEST_NODE", "n1", 1);
  slurm::ProcessRunner runner;  // it reads nothing: as from a head that is gone
  const auto result = runner.run(
      {COMMENSAL_KEEPER, "--part-of=COMMENSAL_TEST_NODE", world_.state().native(), "7", "1"}, 1min);
  ::unsetenv("COMMENSAL_TEST_NODE");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("ready"), HasSubstr("the first keeper of its gang")));
  EXPECT_EQ(world_.starts(attempt_), 0);
}

}  // namespace
}  // namespace commensal::cluster::slurm_gang_test
