// SPDX-License-Identifier: Apache-2.0
// Upgrades under Slurm: a twin that waits in its queue and holds the devices, and what is made of
// everything that may come between.
#include "coordinator/engines/slurm/slurm_guarantee.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/engines/slurm/slurm_engine.h"
#include "tests/coordinator/fake_slurm.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::slurm_guarantee_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using slurm::CommandResult;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class HandClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return now_; }
  void pass(Duration time) { now_ += time; }

 private:
  TimePoint now_{1h};
};

class SlurmGuaranteeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SlurmEngine::Options engine;
    engine.instance = options_.instance = "test";
    engine.state = options_.state = world_.state();
    engine.keeper = COMMENSAL_KEEPER;
    engine.patience = engine.rest = 0ms;
    engine.commands.programs = COMMENSAL_FAKE_SLURM;
    engine_options_ = engine;
    options_.commensal = {"commensal", "--instance", "test"};
    slurm_.nodes =
        "n1|idle|4|4000|gpu:2,seat:2|10.0.0.1|none\n"
        "n2|idle|4|4000|gpu:2,seat:2|10.0.0.2|none\n"
        "c1|idle|4|4000|(null)|10.0.0.3|none\n";
    slurm_.within = [this](const std::vector<std::string>& words) {
      told_.push_back(words);
      return node_says_;
    };
    node_says_ = says("applied", "");
    engine_ = std::make_unique<SlurmEngine>(engine, slurm_, clock_);
    make();
  }
  void make_engine() {
    engine_.reset();
    engine_ = std::make_unique<SlurmEngine>(engine_options_, slurm_, clock_);
  }
  /// Makes job 7 a guaranteed one, whose twin is job 2 of Slurm and has device 1.
  void upgrade() {
    slurm_.next_devices = {"1"};
    start();
    (void)ask();
    ASSERT_EQ(ask(), "applied: ");
    look();
  }
  void look() {
    slurm_.calls.clear();
    news_ = engine_->watch();
  }
  /// What was told of the devices at the last look: "unheld: ...".
  [[nodiscard]] std::string news() const {
    std::string text;
    for (const EngineEvent& event : news_) {
      if (event.kind == EngineEvent::Kind::kUnheld) text += "unheld: " + event.reason;
      if (event.kind == EngineEvent::Kind::kHeld) text += "held: " + event.reason;
      if (event.kind == EngineEvent::Kind::kTaken) text += "taken: " + event.reason;
    }
    return text;
  }
  /// Another user's job that Slurm gives device 1 of n1.
  void give_to_another(std::uint64_t id = 900) {
    FakeSlurm::Job other;
    other.id = id;
    other.options = {{"job-name", "theirs"}, {"gres", "gpu:1"}};
    other.state = "RUNNING";
    other.nodes = "n1";
    other.devices = "1";
    slurm_.jobs[id] = other;
  }
  void make() { guarantee_ = std::make_unique<SlurmGuarantee>(options_, slurm_, clock_); }
  void start(const std::vector<DevicePlace>& places = {{"n1", 1}}) {
    JobSpec spec = world_.script("exec sleep 1000");
    spec.gpus = static_cast<std::int32_t>(places.size());
    engine_->hold(attempt_, spec);
    engine_->place(attempt_, places, JobClass::kOpportunistic);
    engine_->release(attempt_);
    ASSERT_TRUE(eventually([&] {
      (void)engine_->watch();
      return world_.folder(attempt_).has_begun();
    }));
  }
  wire::Message ask_for(JobClass job_class, const std::string& node = "n1") {
    wire::SetRequest request;
    request.job = "job-7.1";
    request.job_class = job_class;
    return guarantee_->ask(attempt_, node, request);
  }
  /// "outcome: reason", as NodeClasses sees it.
  std::string ask(const std::string& node = "n1") {
    return text_of_answer(ask_for(JobClass::kGuaranteed, node));
  }
  static std::string text_of_answer(const wire::Message& answer) {
    if (const auto* reply = std::get_if<wire::SetReply>(&answer)) {
      return std::string{to_string(reply->outcome)} + ": " + reply->reason;
    }
    const auto& error = std::get<wire::Error>(answer);
    return error.code + ": " + error.what;
  }
  static CommandResult says(const std::string& outcome, const std::string& reason, int code = 0) {
    return {code,
            R"({"schema": 1, "job": "job-7.1", "revision": 3, "outcome": ")" + outcome +
                R"(", "reason": ")" + reason + "\"}\n",
            ""};
  }
  [[nodiscard]] std::string state(std::uint64_t id) {
    slurm_.tick();
    return slurm_.jobs.at(id).state;
  }
  [[nodiscard]] bool is_wanted() const {
    return fs::exists(world_.folder(attempt_).path() / "guaranteed");
  }

  const Attempt attempt_{JobId{"7"}, 1};
  HandClock clock_;
  LocalWorld world_;
  FakeSlurm slurm_;
  CommandResult node_says_;
  std::vector<std::vector<std::string>> told_;
  SlurmGuarantee::Options options_;
  SlurmEngine::Options engine_options_;
  std::vector<EngineEvent> news_;
  std::unique_ptr<SlurmEngine> engine_;
  std::unique_ptr<SlurmGuarantee> guarantee_;
};

TEST_F(SlurmGuaranteeTest, ATwinTakesTheDevicesAndThenTheNodeIsTold) {
  slurm_.next_devices = {"1"};
  start();
  EXPECT_THAT(ask(), HasSubstr("deferred: Slurm was asked for a device of its own"));
  const auto& twin = slurm_.jobs.at(2).options;
  EXPECT_EQ(twin.at("partition"), "guaranteed");
  EXPECT_EQ(twin.at("gres"), "gpu:1");
  EXPECT_EQ(twin.at("nodes"), "1");
  EXPECT_EQ(slurm_.jobs.at(2).nodes, "n1");
  EXPECT_THAT(twin.at("job-name"), EndsWith(":7:1:guaranteed"));
  EXPECT_THAT(told_, IsEmpty()) << "not before Slurm has given it";
  EXPECT_EQ(ask(), "applied: ");
  ASSERT_THAT(told_, SizeIs(1));
  EXPECT_THAT(told_[0], AllOf(Contains("--jobid=1"), Contains("--overlap"),
                              Contains("--nodelist=n1"), Contains("--instance"), Contains("set"),
                              Contains("job-7.1"), Contains("--class"), Contains("guaranteed")));
  EXPECT_EQ(state(1), "RUNNING");
  EXPECT_EQ(state(2), "RUNNING");
}

TEST_F(SlurmGuaranteeTest, ANodeThatReportsTheJobIsToldByItsHeartbeatsAndNotBySrun) {
  std::vector<std::string> ordered;
  std::optional<wire::Message> answer = wire::SetReply{
      .job_id = "job-7.1", .outcome = wire::Outcome::kApplied, .reason = "it has its floor"};
  options_.by_heartbeat = [&](const std::string& node, const wire::Message& message) {
    ordered.push_back(node + " " + std::get<wire::SetRequest>(message).job);
    return answer;
  };
  make();
  slurm_.next_devices = {"1"};
  start();
  (void)ask();
  EXPECT_THAT(ordered, IsEmpty()) << "not before Slurm has given the device";
  EXPECT_EQ(ask(), "applied: it has its floor");
  EXPECT_EQ(ordered, std::vector<std::string>{"n1 job-7.1"});
  EXPECT_THAT(told_, IsEmpty());
  answer = std::nullopt;  // it does not report it any more
  EXPECT_EQ(ask(), "applied: ");
  EXPECT_THAT(told_, SizeIs(1));
}

TEST_F(SlurmGuaranteeTest, TheTwinEndsWithItsJobThoughNobodyLooks) {
  slurm_.next_devices = {"1"};
  start();
  (void)ask();
  EXPECT_EQ(ask(), "applied: ");
  guarantee_.reset();
  engine_->take_back(attempt_, 0ms);
  EXPECT_TRUE(eventually([&] { return state(2) == "COMPLETED"; }));
}

TEST_F(SlurmGuaranteeTest, WhileSlurmHasNoRoomTheJobStaysAsItIsAndSaysWhy) {
  start();
  slurm_.starts_jobs = false;
  (void)ask();
  slurm_.jobs.at(2).reason = "Resources";
  EXPECT_EQ(ask(),
            "deferred: waits for a device of its own in Slurm's queue, as job 2 (Resources)");
  clock_.pass(19s);
  EXPECT_THAT(ask(), HasSubstr("deferred"));
  clock_.pass(1s);
  EXPECT_EQ(ask(),
            "refused: waits for a device of its own in Slurm's queue, as job 2 (Resources), and "
            "stays opportunistic");
  EXPECT_TRUE(slurm::is_over(state(2)));
  EXPECT_FALSE(is_wanted());
  EXPECT_EQ(state(1), "RUNNING");
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_THAT(ask(), HasSubstr("deferred: Slurm was asked")) << "another time it begins anew";
}

TEST_F(SlurmGuaranteeTest, OtherDevicesOfItsNodeAreKeptUntilTheRightOneComes) {
  slurm_.next_devices = {"0", "1"};
  start();
  (void)ask();
  EXPECT_THAT(ask(), HasSubstr("deferred"));
  ASSERT_THAT(slurm_.jobs, SizeIs(3));
  EXPECT_EQ(state(2), "RUNNING") << "else Slurm would give the same once more";
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_EQ(ask(), "applied: ");
  EXPECT_TRUE(slurm::is_over(state(2)));
  EXPECT_EQ(state(3), "RUNNING");
}

TEST_F(SlurmGuaranteeTest, WhereTheRightOneDoesNotComeAllAreGivenBack) {
  start();  // Slurm says 0, and 0 again
  for (int i = 0; i < 4; ++i) EXPECT_THAT(ask(), HasSubstr("deferred"));
  clock_.pass(20s);
  EXPECT_THAT(ask(), HasSubstr("refused"));
  for (const auto& [id, job] : slurm_.jobs) EXPECT_EQ(slurm::is_over(job.state), id != 1) << id;
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(SlurmGuaranteeTest, ANodeThatRefusesIsTheReasonAndTheDevicesGoBack) {
  slurm_.next_devices = {"1"};
  start();
  (void)ask();
  node_says_ = says("refused", "its floor is not free", 4);
  EXPECT_EQ(ask(), "refused: its floor is not free");
  EXPECT_TRUE(slurm::is_over(state(2)));
  EXPECT_FALSE(is_wanted());
}

TEST_F(SlurmGuaranteeTest, ANodeThatDefersIsAskedAgain) {
  slurm_.next_devices = {"1"};
  start();
  (void)ask();
  node_says_ = says("deferred", "job 3 gives memory back");
  EXPECT_EQ(ask(), "deferred: job 3 gives memory back");
  node_says_ = says("applied", "");
  EXPECT_EQ(ask(), "applied: ");
  EXPECT_THAT(slurm_.jobs, SizeIs(2));
}

TEST_F(SlurmGuaranteeTest, ANodeThatIsSilentIsNotWaitedForForEver) {
  slurm_.next_devices = {"1"};
  start();
  (void)ask();
  node_says_ = {3, "", "commensal: no coordinator listens on /run/x.sock\nmore"};
  EXPECT_EQ(ask(),
            "deferred: its node cannot be told (3): commensal: no coordinator listens on "
            "/run/x.sock");
  clock_.pass(20s);
  EXPECT_THAT(ask(), HasSubstr("refused: its node cannot be told"));
  EXPECT_TRUE(slurm::is_over(state(2)));
}

TEST_F(SlurmGuaranteeTest, AJobThatRunsWithoutCommensalHasItsDevicesAllTheSame) {
  slurm_.next_devices = {"1"};
  start();
  (void)ask();
  node_says_ = {4, "", "commensal: no job 'job-7.1'; no job is running"};
  EXPECT_THAT(ask(), HasSubstr("unknown_job: "));
  EXPECT_EQ(state(2), "RUNNING");
  options_.commensal.clear();
  make();
  told_.clear();
  EXPECT_EQ(ask(), "unknown_job: jobs run without commensal");
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_EQ(state(2), "RUNNING");
  EXPECT_TRUE(is_wanted());
}

TEST_F(SlurmGuaranteeTest, TheNextCoordinatorGoesOnWithTheSameTwin) {
  slurm_.next_devices = {"1"};
  start();
  slurm_.before = [](const auto& words) -> std::optional<CommandResult> {
    const bool release = words.size() > 1 && words[1] == "release";
    return release ? std::optional{CommandResult{1, "", "Socket timed out"}} : std::nullopt;
  };
  EXPECT_THAT(ask(), HasSubstr("deferred: scontrol failed with 1: Socket timed out"));
  EXPECT_EQ(state(2), "PENDING");
  slurm_.before = nullptr;
  make();
  EXPECT_THAT(ask(), HasSubstr("deferred"));
  EXPECT_EQ(ask(), "applied: ");
  EXPECT_THAT(slurm_.jobs, SizeIs(2));
}

TEST_F(SlurmGuaranteeTest, WhatWasGivenUpWhileSlurmWasSilentEndsOnceItIsStarted) {
  start();
  slurm_.starts_jobs = false;
  (void)ask();
  slurm_.silent = true;
  EXPECT_THAT(ask(), HasSubstr("deferred: squeue failed"));
  clock_.pass(20s);
  EXPECT_THAT(ask(), HasSubstr("refused: squeue failed"));
  slurm_.silent = false;
  slurm_.starts_jobs = true;
  EXPECT_EQ(state(2), "RUNNING");
  EXPECT_TRUE(eventually([&] { return state(2) == "COMPLETED"; }));
}

TEST_F(SlurmGuaranteeTest, AJobThatHasEndedIsNotUpgraded) {
  start();
  engine_->take_back(attempt_, 0ms);
  ASSERT_TRUE(eventually([&] { return world_.folder(attempt_).has_ended(); }));
  EXPECT_EQ(ask(), "refused: it has ended");
  engine_->forget(attempt_);
  EXPECT_EQ(ask(), "refused: it has ended");
  EXPECT_THAT(slurm_.jobs, SizeIs(1));
}

TEST_F(SlurmGuaranteeTest, AGangHasOneTwinOnAllItsNodesAndEachIsTold) {
  slurm_.next_devices = {"1"};
  start({{"n2", 1}, {"n1", 1}});
  (void)ask();
  EXPECT_EQ(slurm_.jobs.at(2).options.at("nodes"), "2");
  EXPECT_EQ(slurm_.jobs.at(2).nodes, "n2,n1");
  EXPECT_EQ(ask("n1"), "applied: ");
  EXPECT_EQ(ask("n2"), "applied: ");
  EXPECT_THAT(slurm_.jobs, SizeIs(2));
  ASSERT_THAT(told_, SizeIs(2));
  EXPECT_THAT(told_[0], Contains("--nodelist=n1"));
  EXPECT_THAT(told_[1], Contains("--nodelist=n2"));
}

TEST_F(SlurmGuaranteeTest, OneThatGoesBackGivesTheDevicesBackAndItsNodeIsTold) {
  slurm_.next_devices = {"1"};
  start();
  (void)ask();
  EXPECT_EQ(ask(), "applied: ");
  EXPECT_EQ(text_of_answer(ask_for(JobClass::kOpportunistic)), "applied: ");
  EXPECT_THAT(told_.back(), Contains("opportunistic"));
  EXPECT_TRUE(slurm::is_over(state(2)));
  EXPECT_FALSE(is_wanted());
}

TEST_F(SlurmGuaranteeTest, OnNodesWithoutGpusNothingIsAskedForBesideTheNode) {
  start({{"c1", 0}});
  (void)ask("c1");
  EXPECT_FALSE(slurm_.jobs.at(2).options.contains("gres"));
  EXPECT_EQ(ask("c1"), "applied: ");
}

TEST_F(SlurmGuaranteeTest, ATwinHasTheTimeThatItsJobHas) {
  slurm_.next_devices = {"1"};
  start();
  slurm_.jobs.at(1).options["time"] = "UNLIMITED";
  (void)ask();
  EXPECT_EQ(slurm_.jobs.at(2).options.at("time"), "UNLIMITED");
}

TEST_F(SlurmGuaranteeTest, WhereTheJobHasTheTimeOfItsPartitionSoHasTheTwin) {
  start();
  (void)ask();
  EXPECT_FALSE(slurm_.jobs.at(2).options.contains("time"));
}

TEST_F(SlurmGuaranteeTest, ATwinThatHoldsCostsNoCommandBeyondTheQueue) {
  upgrade();
  look();
  ASSERT_THAT(slurm_.calls, SizeIs(1));
  EXPECT_THAT(slurm_.calls[0][0], EndsWith("squeue"));
}

TEST_F(SlurmGuaranteeTest, ATwinThatIsLostIsReplacedAtOnce) {
  for (const char* end : {"CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL"}) {
    SCOPED_TRACE(end);
    if (slurm_.jobs.empty()) upgrade();
    const std::uint64_t last = slurm_.jobs.rbegin()->first;
    slurm_.kill(last, end);
    slurm_.next_devices = {"1"};
    look();
    ASSERT_EQ(slurm_.jobs.rbegin()->first, last + 1);
    EXPECT_THAT(slurm_.jobs.rbegin()->second.options.at("job-name"), EndsWith(":7:1:guaranteed"));
    EXPECT_EQ(slurm_.jobs.rbegin()->second.nodes, "n1");
    EXPECT_EQ(state(last + 1), "RUNNING");
    look();
    EXPECT_THAT(slurm_.called("scontrol"), SizeIs(1)) << "which devices it has";
    look();
    EXPECT_THAT(slurm_.called("scontrol"), IsEmpty());
    EXPECT_EQ(slurm_.jobs.rbegin()->first, last + 1);
    EXPECT_EQ(state(1), "RUNNING");
  }
}

TEST_F(SlurmGuaranteeTest, ATwinThatSlurmHasForgottenIsReplacedToo) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.forget_ended();
  look();
  EXPECT_THAT(slurm_.called("sbatch"), SizeIs(1));
}

TEST_F(SlurmGuaranteeTest, ATwinThatIsLostAgainAndAgainIsAskedForEveryTenSeconds) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  look();
  slurm_.kill(3, "CANCELLED");
  for (int i = 0; i < 3; ++i) {
    look();
    EXPECT_THAT(slurm_.called("sbatch"), IsEmpty());
  }
  clock_.pass(10s);
  look();
  EXPECT_THAT(slurm_.called("sbatch"), SizeIs(1));
}

TEST_F(SlurmGuaranteeTest, WhileTheNextTwinWaitsNoOtherIsSent) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.starts_jobs = false;
  look();
  clock_.pass(1h);
  look();
  EXPECT_THAT(slurm_.calls, SizeIs(2)) << "what there is, and who else has the devices";
  EXPECT_THAT(slurm_.called("squeue"), SizeIs(2));
  EXPECT_THAT(slurm_.jobs, SizeIs(3));
}

TEST_F(SlurmGuaranteeTest, ATwinWithOtherDevicesIsKeptForAWhileAndThenAllAreGivenBack) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.next_devices = {"0", "0", "1"};
  look();
  look();
  EXPECT_THAT(news(), HasSubstr("; job 3 of Slurm has other devices of its nodes"));
  EXPECT_EQ(state(3), "RUNNING");
  look();
  ASSERT_THAT(slurm_.jobs, SizeIs(4)) << "no ten seconds are waited";
  look();
  clock_.pass(20s);
  look();
  EXPECT_TRUE(slurm::is_over(state(3)));
  EXPECT_TRUE(slurm::is_over(state(4)));
  look();
  EXPECT_THAT(slurm_.jobs, SizeIs(4));
  clock_.pass(60s);
  look();
  look();
  EXPECT_EQ(state(5), "RUNNING");
  look();
  EXPECT_THAT(slurm_.calls, SizeIs(1)) << "it holds device 1";
}

TEST_F(SlurmGuaranteeTest, TheOthersGoOnceOneHasTheRightDevices) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.next_devices = {"0", "1"};
  for (int i = 0; i < 4; ++i) look();
  EXPECT_TRUE(slurm::is_over(state(3)));
  EXPECT_EQ(state(4), "RUNNING");
}

TEST_F(SlurmGuaranteeTest, TheNextCoordinatorReplacesWhatWasLostMeanwhile) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.forget_ended();
  make_engine();
  look();
  EXPECT_THAT(slurm_.called("sbatch"), SizeIs(1));
}

TEST_F(SlurmGuaranteeTest, TheNextCoordinatorLeavesATwinThatHolds) {
  upgrade();
  make_engine();
  look();
  look();
  EXPECT_THAT(slurm_.calls, SizeIs(1));
  EXPECT_THAT(slurm_.jobs, SizeIs(2));
}

TEST_F(SlurmGuaranteeTest, ATwinOfAnUpgradeThatIsUnderWayIsTheUpgradesOwn) {
  start();
  slurm_.starts_jobs = false;
  (void)ask();
  (void)engine_->watch();
  slurm_.kill(2, "CANCELLED");
  look();
  EXPECT_THAT(slurm_.called("sbatch"), IsEmpty());
}

TEST_F(SlurmGuaranteeTest, OneThatWasGivenUpIsNotReplaced) {
  upgrade();
  (void)ask_for(JobClass::kOpportunistic);
  look();
  EXPECT_THAT(slurm_.called("sbatch"), IsEmpty());
}

TEST_F(SlurmGuaranteeTest, ATwinThatStillWaitsGoesWithItsJob) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.starts_jobs = false;
  look();
  EXPECT_EQ(state(3), "PENDING");
  engine_->take_back(attempt_, 0ms);
  ASSERT_TRUE(eventually([&] { return world_.folder(attempt_).has_ended(); }));
  look();
  EXPECT_TRUE(slurm::is_over(state(3)));
  EXPECT_THAT(slurm_.called("sbatch"), IsEmpty());
}

TEST_F(SlurmGuaranteeTest, WhileSlurmIsSilentNothingIsLostAndThenItIsReplaced) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.before = [](const auto& words) -> std::optional<CommandResult> {
    const bool submit = words[0].ends_with("sbatch");
    return submit ? std::optional{CommandResult{1, "", "Socket timed out"}} : std::nullopt;
  };
  EXPECT_THROW((void)engine_->watch(), EngineFailed);
  slurm_.before = nullptr;
  clock_.pass(10s);
  look();
  EXPECT_THAT(slurm_.called("sbatch"), SizeIs(1));
  EXPECT_EQ(state(1), "RUNNING");
}

TEST_F(SlurmGuaranteeTest, WhatIsTheMatterWithTheDevicesIsTold) {
  upgrade();
  EXPECT_EQ(news(), "held: job 2 of Slurm holds its devices");
  look();
  EXPECT_EQ(news(), "") << "once";
  slurm_.kill(2, "TIMEOUT");
  slurm_.starts_jobs = false;
  look();
  EXPECT_EQ(news(),
            "unheld: job 2 of Slurm, which held its devices, is TIMEOUT; Slurm is asked for them "
            "again");
  slurm_.jobs.at(3).reason = "Resources";
  look();
  EXPECT_EQ(news(),
            "unheld: job 2 of Slurm, which held its devices, is TIMEOUT; waits for them in Slurm's "
            "queue, as job 3 (Resources)");
  slurm_.jobs.at(3).reason = "None";
  slurm_.next_devices = {"1"};
  slurm_.starts_jobs = true;
  look();
  EXPECT_EQ(news(), "held: job 3 of Slurm holds its devices");
}

TEST_F(SlurmGuaranteeTest, DevicesThatAnotherJobHasGotAreToldAndNotAskedForAnyMore) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  give_to_another();
  for (int i = 0; i < 3; ++i) {
    look();
    EXPECT_EQ(news(),
              "taken: job 2 of Slurm, which held its devices, is CANCELLED; Slurm has given device "
              "1 of node n1 to job 900");
    EXPECT_THAT(slurm_.called("sbatch"), IsEmpty());
  }
  EXPECT_THAT(slurm_.calls, SizeIs(1)) << "nor is it asked at each look who has them";
}

TEST_F(SlurmGuaranteeTest, WhoGetsTheDevicesBeforeTheNextTwinIsFoundWithinSeconds) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.starts_jobs = false;
  look();
  give_to_another();
  look();
  EXPECT_THAT(news(), HasSubstr("unheld"));
  clock_.pass(5s);
  look();
  EXPECT_THAT(news(), HasSubstr("taken: "));
  EXPECT_THAT(slurm_.called("scontrol"), SizeIs(1)) << "which devices it has";
  clock_.pass(5s);
  look();
  EXPECT_THAT(slurm_.called("scontrol"), IsEmpty()) << "that does not change";
  slurm_.jobs.erase(900);
  clock_.pass(5s);
  look();
  EXPECT_THAT(news(), HasSubstr("unheld: "));
}

TEST_F(SlurmGuaranteeTest, AJobOnOtherDevicesOfTheNodeHasTakenNothing) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  give_to_another();
  slurm_.jobs.at(900).devices = "0";
  look();
  EXPECT_THAT(news(), HasSubstr("unheld: "));
  EXPECT_THAT(slurm_.called("sbatch"), SizeIs(1));
}

TEST_F(SlurmGuaranteeTest, WhatAnotherUserWritesIntoItsJobTakesNothing) {
  const std::string claim = "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)";
  using Job = FakeSlurm::Job;
  const std::vector<std::function<void(Job&)>> ways{
      [&](Job& job) { job.options["job-name"] = claim; },
      [&](Job& job) { job.options["job-name"] = claim + " MinCPUsNode=1"; },
      [&](Job& job) { job.options["job-name"] = "x\n   " + claim + " MinCPUsNode=1 y"; },
      [&](Job& job) { job.options["comment"] = claim + " MinCPUsNode=1"; },
      [&](Job& job) { job.command = "job.sh " + claim; },
      [&](Job& job) { job.command = "job.sh Nodes=" + std::string(1U << 20U, 'x'); }};
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.starts_jobs = false;
  std::uint64_t id = 900;
  for (const auto& way : ways) {
    give_to_another(id);
    slurm_.jobs.at(id).options["gres"] = "seat:1";
    way(slurm_.jobs.at(id));
    clock_.pass(5s);
    look();
    EXPECT_THAT(news(), HasSubstr("unheld: ")) << id;
    slurm_.jobs.erase(id++);
  }
  EXPECT_EQ(id, 906U);
}

TEST_F(SlurmGuaranteeTest, OneThatGoesBackBecauseItsDevicesAreTakenIsLeftAlone) {
  upgrade();
  slurm_.kill(2, "CANCELLED");
  slurm_.starts_jobs = false;
  look();
  give_to_another();
  clock_.pass(5s);
  look();
  EXPECT_EQ(text_of_answer(ask_for(JobClass::kOpportunistic)), "applied: ");
  EXPECT_TRUE(slurm::is_over(state(3)));
  look();
  EXPECT_EQ(news(), "");
  EXPECT_EQ(state(1), "RUNNING");
}

}  // namespace
}  // namespace commensal::cluster::slurm_guarantee_test
