// SPDX-License-Identifier: Apache-2.0
// What the engine says to Slurm, and what it makes of answers that are late, lost or wrong.
#include "coordinator/engines/slurm/slurm_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include "tests/coordinator/fake_slurm.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::slurm_engine_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Kind = EngineEvent::Kind;
using slurm::CommandResult;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class HandClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return now_; }
  void pass(Duration time) { now_ += time; }

 private:
  TimePoint now_{1h};
};

class SlurmEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.instance = "test";
    options_.state = world_.state();
    options_.keeper = COMMENSAL_KEEPER;
    options_.patience = 0ms;
    options_.rest = 0ms;
    make();
  }
  void make() {
    engine_.reset();
    engine_ = std::make_unique<SlurmEngine>(options_, slurm_, clock_);
    events_.clear();
  }
  void prepare(const JobSpec& spec, JobClass job_class = JobClass::kOpportunistic,
               const std::vector<DevicePlace>& places = {{"n1", 1}}) {
    engine_->hold(attempt_, spec);
    engine_->place(attempt_, places, job_class);
  }
  void start(const JobSpec& spec, JobClass job_class = JobClass::kOpportunistic,
             const std::vector<DevicePlace>& places = {{"n1", 1}}) {
    prepare(spec, job_class, places);
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
  [[nodiscard]] const FakeSlurm::Job& job(std::uint64_t id = 1) const { return slurm_.jobs.at(id); }
  [[nodiscard]] JobSpec lasting() { return world_.script("exec sleep 1000"); }
  template <typename Call>
  static std::string refusal(Call call) {
    try {
      call();
    } catch (const EngineFailed& error) {
      return error.what();
    }
    return "not refused";
  }

  const Attempt attempt_{JobId{"7"}, 1};
  HandClock clock_;
  LocalWorld world_;
  FakeSlurm slurm_;
  SlurmEngine::Options options_;
  std::unique_ptr<SlurmEngine> engine_;
  std::vector<EngineEvent> events_;
};

TEST_F(SlurmEngineTest, AnOpportunisticJobIsHeldPlacedAndReleasedInASeat) {
  JobSpec spec = lasting();
  spec.name = "train\nall";
  start(spec);
  const auto& options = job().options;
  EXPECT_EQ(options.at("partition"), "opportunistic");
  EXPECT_EQ(options.at("gres"), "seat:1");
  EXPECT_EQ(options.at("nodes"), "1");
  EXPECT_TRUE(options.contains("hold"));
  EXPECT_TRUE(options.contains("no-requeue"));
  EXPECT_FALSE(options.contains("mem"));  // 0 would be all of a node
  EXPECT_FALSE(options.contains("cpus-per-task"));
  EXPECT_THAT(options.at("comment"), HasSubstr("job 7, attempt 1, train"));
  EXPECT_EQ(job().nodes, "n1");
  EXPECT_THAT(slurm_.called("scontrol"),
              ElementsAre("scontrol update JobId=1 ReqNodeList=n1", "scontrol release 1"));
}

TEST_F(SlurmEngineTest, AGuaranteedJobAsksForWholeDevicesAndItsShareOfTheNode) {
  JobSpec spec = lasting();
  spec.cpu_milli = 2500;
  spec.host_memory_mib = 512;
  spec.time_limit = 3601s;
  start(spec, JobClass::kGuaranteed, {{"n2", 0}, {"n2", 1}});
  const auto& options = job().options;
  EXPECT_EQ(options.at("partition"), "guaranteed");
  EXPECT_EQ(options.at("gres"), "gpu:2");
  EXPECT_EQ(options.at("cpus-per-task"), "3");
  EXPECT_EQ(options.at("mem"), "512");
  EXPECT_EQ(options.at("time"), "63");  // its keeper is to end it before Slurm does
  EXPECT_EQ(job().nodes, "n2");
}

TEST_F(SlurmEngineTest, PartitionsProgramsAndOptionsAreTheSites) {
  options_.guaranteed_partition = "gold";
  options_.commands = {"/opt/slurm/bin", {"--account=vision", "--qos=low"}};
  make();
  start(lasting(), JobClass::kGuaranteed);
  EXPECT_EQ(job().options.at("partition"), "gold");
  EXPECT_EQ(job().options.at("account"), "vision");
  EXPECT_EQ(job().options.at("qos"), "low");
  for (const auto& words : slurm_.calls) EXPECT_THAT(words[0], HasSubstr("/opt/slurm/bin/"));
}

TEST_F(SlurmEngineTest, NodesWithoutGpusAreOneDeviceAndNothingIsAskedForIt) {
  slurm_.nodes = "c1|idle|8|4000|(null)|127.0.0.1|none\n";
  start(world_.job({"/bin/sh", "-c", "echo cuda=${CUDA_VISIBLE_DEVICES-none}"}),
        JobClass::kGuaranteed, {{"c1", 0}});
  EXPECT_FALSE(job().options.contains("gres"));
  EXPECT_EQ(end().exit_code, 0);
  EXPECT_EQ(text_of(engine_->logs(attempt_).at(0)), "cuda=none\n");
}

TEST_F(SlurmEngineTest, DevicesAreSlurmsForGuaranteedJobsAndOursForSeats) {
  const auto show = [&] { return world_.job({"/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES"}); };
  start(show(), JobClass::kGuaranteed, {{"n1", 1}});  // the made-up Slurm gives 3 and 5
  EXPECT_EQ(end().exit_code, 0);
  EXPECT_EQ(text_of(engine_->logs(attempt_).at(0)), "3\n");
  const Attempt seat{JobId{"8"}, 1};
  engine_->hold(seat, show());
  engine_->place(seat, {{"n1", 1}}, JobClass::kOpportunistic);
  engine_->release(seat);
  ASSERT_TRUE(until([&] { return events_.back().attempt == seat && events_.back().exit_code; }));
  EXPECT_EQ(text_of(engine_->logs(seat).at(0)), "1\n");
}

TEST_F(SlurmEngineTest, WordsArriveAsTheyAre) {
  start(world_.job({"/usr/bin/printf", "%s|", "a b", "$(id)", "'\"", "%j", "", "--wrap"}));
  EXPECT_EQ(end().exit_code, 0) << end().reason;
  EXPECT_EQ(text_of(engine_->logs(attempt_).at(0)), "a b|$(id)|'\"|%j||--wrap|");
}

TEST_F(SlurmEngineTest, PatternsInTheStateFoldersNameAreNoPatternsOfSlurm) {
  options_.state = world_.work() / "50%j";
  make();
  start(lasting());
  EXPECT_THAT(job().options.at("output"), HasSubstr("/50%%j/jobs/7/1/"));
  engine_->take_back(attempt_, 0ms);
}

TEST_F(SlurmEngineTest, WhatSbatchSaysIsTheReasonAndNothingHasHappened) {
  prepare(lasting());
  slurm_.before = [](const auto& words) -> std::optional<CommandResult> {
    if (words[0] != "sbatch") return std::nullopt;
    return CommandResult{1, "", "sbatch: error: invalid partition specified: opportunistic\nmore"};
  };
  EXPECT_EQ(refusal([&] { engine_->release(attempt_); }),
            "sbatch failed with 1: sbatch: error: invalid partition specified: opportunistic");
  slurm_.before = nullptr;
  EXPECT_THAT(engine_->watch(), IsEmpty());
  EXPECT_FALSE(engine_->adopt().at(0).running);
  engine_->release(attempt_);
  EXPECT_TRUE(until([&] { return world_.starts(attempt_) == 1; }));
}

TEST_F(SlurmEngineTest, AnswersThatCannotBeReadAreShown) {
  const auto answer = [&](const std::string& program, const std::string& text) {
    slurm_.before = [=](const auto& words) -> std::optional<CommandResult> {
      return words[0] == program ? std::optional{CommandResult{0, text, ""}} : std::nullopt;
    };
  };
  prepare(lasting());
  answer("squeue", "<html>");
  EXPECT_THAT(refusal([&] { engine_->release(attempt_); }),
              AllOf(HasSubstr("squeue"), HasSubstr("<html>")));
  answer("sbatch", "Submitted\n");
  EXPECT_THAT(refusal([&] { engine_->release(attempt_); }),
              AllOf(HasSubstr("sbatch"), HasSubstr("Submitted")));
  answer("sinfo", "");
  EXPECT_EQ(refusal([&] { (void)engine_->nodes(); }), "sinfo shows no node");
  answer("sinfo", "what?");
  EXPECT_THAT(refusal([&] { (void)engine_->nodes(); }), HasSubstr("'what?'"));
  EXPECT_THAT(slurm_.jobs, IsEmpty());
}

TEST_F(SlurmEngineTest, ASubmissionWhoseAnswerWasLostIsFoundAgain) {
  prepare(lasting());
  slurm_.lose_answer = true;
  EXPECT_THAT(refusal([&] { engine_->release(attempt_); }), HasSubstr("Socket timed out"));
  ASSERT_THAT(slurm_.jobs, SizeIs(1));
  make();
  engine_->release(attempt_);
  EXPECT_THAT(slurm_.jobs, SizeIs(1));
  EXPECT_TRUE(until([&] { return world_.starts(attempt_) == 1; }));
}

TEST_F(SlurmEngineTest, OneThatArrivedAndIsNotWantedAnyMoreIsCancelled) {
  prepare(lasting());
  slurm_.lose_answer = true;
  EXPECT_THROW(engine_->release(attempt_), EngineFailed);
  engine_->take_back(attempt_, 0ms);
  EXPECT_THAT(engine_->watch(), IsEmpty());
  EXPECT_EQ(job().state, "CANCELLED");
  EXPECT_THAT(engine_->adopt(), IsEmpty());
}

TEST_F(SlurmEngineTest, OfTwoJobsForOneAttemptTheFirstOneCounts) {
  prepare(lasting());
  slurm_.lose_answer = true;
  EXPECT_THROW(engine_->release(attempt_), EngineFailed);
  FakeSlurm::Job late = job();  // a second sbatch was on its way when its coordinator died
  late.id = 9;
  slurm_.jobs[9] = late;
  engine_->release(attempt_);
  EXPECT_TRUE(until([&] { return world_.starts(attempt_) == 1; }));
  EXPECT_TRUE(until([&] { return job(9).state == "CANCELLED"; }));
  EXPECT_EQ(job(1).state, "RUNNING");
}

TEST_F(SlurmEngineTest, WhatKeepersLeftIsToldThoughSlurmIsSilent) {
  start(world_.script("exit 3"));
  slurm_.silent = true;
  ASSERT_TRUE(eventually([&] { return world_.folder(attempt_).has_ended(); }));
  for (EngineEvent& event : engine_->watch()) events_.push_back(event);
  ASSERT_THAT(events_, SizeIs(2));
  EXPECT_EQ(events_.back().exit_code, 3);
  EXPECT_THAT(refusal([&] { (void)engine_->nodes(); }),
              HasSubstr("sinfo failed with 1: slurm_load: Unable to contact"));
}

TEST_F(SlurmEngineTest, ASilentSlurmLosesNothing) {
  start(lasting());
  ASSERT_TRUE(until([&] { return world_.starts(attempt_) == 1; }));
  slurm_.silent = true;
  make();
  EXPECT_TRUE(engine_->adopt().at(0).running);
  EXPECT_THAT(engine_->watch(), ElementsAre(EngineEvent{attempt_, Kind::kBegan, std::nullopt,
                                                        "its ranks were started"}));
  EXPECT_THAT(refusal([&] { (void)engine_->watch(); }), HasSubstr("squeue failed"));
  EXPECT_THAT(refusal([&] { engine_->take_back(attempt_, 1s); }), HasSubstr("squeue failed"));
  slurm_.silent = false;
  engine_->take_back(attempt_, 1s);
  EXPECT_EQ(end().kind, Kind::kTakenBack);
}

TEST_F(SlurmEngineTest, ASlurmThatDidNotAnswerIsLeftAloneForAWhile) {
  options_.rest = 10s;
  make();
  slurm_.silent = true;
  const std::string said = refusal([&] { (void)engine_->nodes(); });
  EXPECT_THAT(said, HasSubstr("sinfo failed"));
  slurm_.calls.clear();
  slurm_.silent = false;
  EXPECT_EQ(refusal([&] { (void)engine_->nodes(); }), said);
  EXPECT_EQ(refusal([&] { (void)engine_->watch(); }), said);
  EXPECT_THAT(slurm_.calls, IsEmpty());
  clock_.pass(10s);
  EXPECT_THAT(engine_->nodes(), SizeIs(2));
}

TEST_F(SlurmEngineTest, AJobThatSlurmEndedIsLostWithItsState) {
  options_.patience = 5s;
  make();
  start(lasting());
  ASSERT_TRUE(until([&] { return world_.starts(attempt_) == 1; }));
  slurm_.kill(1, "NODE_FAIL");
  events_.clear();
  EXPECT_THAT(engine_->watch(), IsEmpty());  // an outcome may still be on its way
  clock_.pass(4s);
  EXPECT_THAT(engine_->watch(), IsEmpty());
  clock_.pass(1s);
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_EQ(end().reason, "Slurm's job 1 is NODE_FAIL and left no outcome");
}

TEST_F(SlurmEngineTest, OneThatWasCancelledBeforeItBeganIsLostToo) {
  slurm_.starts_jobs = false;
  start(lasting());
  EXPECT_THAT(engine_->watch(), IsEmpty());
  slurm_.jobs.at(1).state = "CANCELLED";
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_THAT(end().reason, HasSubstr("CANCELLED"));
  EXPECT_EQ(world_.starts(attempt_), 0);
}

TEST_F(SlurmEngineTest, OneThatSlurmHasForgottenIsLostAndNotSubmittedAgain) {
  slurm_.starts_jobs = false;
  start(lasting());
  slurm_.jobs.clear();
  make();
  engine_->release(attempt_);
  EXPECT_THAT(slurm_.jobs, IsEmpty());
  EXPECT_EQ(end().kind, Kind::kVanished);
  EXPECT_THAT(end().reason, HasSubstr("job 1 is forgotten"));
}

TEST_F(SlurmEngineTest, AnOutcomeOutlivesSlurmsMemory) {
  start(world_.script("exit 5"));
  ASSERT_TRUE(eventually([&] { return world_.folder(attempt_).has_ended(); }));
  slurm_.forget_ended();
  make();
  EXPECT_EQ(end().kind, Kind::kExited);
  EXPECT_EQ(end().exit_code, 5);
}

TEST_F(SlurmEngineTest, OneThatStillWaitsIsCancelledWhenItIsTakenBack) {
  slurm_.starts_jobs = false;
  start(lasting());
  engine_->take_back(attempt_, 10s);
  EXPECT_EQ(end().kind, Kind::kTakenBack);
  EXPECT_EQ(job().state, "CANCELLED");
  EXPECT_EQ(world_.starts(attempt_), 0);
}

TEST_F(SlurmEngineTest, OneWhoseCancelFailedIsCancelledLater) {
  slurm_.starts_jobs = false;
  start(lasting());
  slurm_.before = [](const auto& words) -> std::optional<CommandResult> {
    return words[0] == "scancel" ? std::optional{CommandResult{1, "", "later"}} : std::nullopt;
  };
  engine_->take_back(attempt_, 10s);  // its outcome is written: it will not run
  EXPECT_EQ(end().kind, Kind::kTakenBack);
  slurm_.before = nullptr;
  make();
  (void)engine_->watch();
  EXPECT_EQ(job().state, "CANCELLED");
}

TEST_F(SlurmEngineTest, WhatAnAdministratorHoldsStaysHeld) {
  slurm_.starts_jobs = false;
  start(lasting());
  slurm_.jobs.at(1).reason = "JobHeldAdmin";
  engine_->release(attempt_);
  EXPECT_EQ(job().reason, "JobHeldAdmin");
  EXPECT_THAT(slurm_.called("scontrol"), SizeIs(2));
}

TEST_F(SlurmEngineTest, TwoCoordinatorsOfOneNameDoNotMixTheirJobs) {
  slurm_.starts_jobs = false;
  start(lasting());
  SlurmEngine::Options other = options_;
  other.state = world_.work() / "other";
  SlurmEngine second{other, slurm_, clock_};
  EXPECT_THAT(second.adopt(), IsEmpty());
  EXPECT_THAT(second.watch(), IsEmpty());
  EXPECT_EQ(job().state, "PENDING");
  second.hold(attempt_, lasting());
  second.place(attempt_, {{"n2", 0}}, JobClass::kOpportunistic);
  second.release(attempt_);
  EXPECT_THAT(slurm_.jobs, SizeIs(2));
  EXPECT_NE(job(1).options.at("job-name"), job(2).options.at("job-name"));
}

TEST_F(SlurmEngineTest, AJobThatSlurmAloneKnowsKeepsItsNumber) {
  EXPECT_EQ(engine_->highest_job(), 0U);
  slurm_.starts_jobs = false;
  start(lasting());
  const std::string mark = job().options.at("job-name");
  fs::remove_all(world_.state() / "jobs" / "7");  // what an older copy of the folder lacks
  make();
  EXPECT_THAT(engine_->adopt(), IsEmpty());
  EXPECT_EQ(engine_->highest_job(), 7U) << mark;
  slurm_.jobs.at(1).state = "CANCELLED";
  EXPECT_EQ(engine_->highest_job(), 7U) << "Slurm remembers it still";
  slurm_.forget_ended();
  EXPECT_EQ(engine_->highest_job(), 0U);
  fs::create_directories(world_.state() / "jobs" / "5" / "1");
  EXPECT_EQ(engine_->highest_job(), 5U);
}

TEST_F(SlurmEngineTest, JobsOfAnotherCoordinatorTakeNoNumbersOfThisOne) {
  slurm_.starts_jobs = false;
  start(lasting());
  SlurmEngine::Options other = options_;
  other.state = world_.work() / "other";
  SlurmEngine second{other, slurm_, clock_};
  EXPECT_EQ(second.highest_job(), 0U);
  EXPECT_EQ(engine_->highest_job(), 7U);
}

TEST_F(SlurmEngineTest, WhileSlurmIsSilentNumbersGoByTheFoldersHere) {
  slurm_.starts_jobs = false;  // a keeper would leave output, which counts, too
  start(lasting());
  slurm_.silent = true;
  EXPECT_EQ(engine_->highest_job(), 7U);
  fs::remove_all(world_.state() / "jobs" / "7");
  EXPECT_EQ(engine_->highest_job(), 0U);
}

TEST_F(SlurmEngineTest, ASigtermBeforeTheKeeperListensIsNotLost) {
  EXPECT_THAT(text_of(world_.state() / "start.sh"), HasSubstr("trap '' TERM"));
  start(world_.script("kill -TERM $$; sleep 1000"));  // what it starts is not deaf
  EXPECT_EQ(end().exit_code, 128 + SIGTERM);
}

TEST_F(SlurmEngineTest, AJobOfMoreDevicesThanThereAreIsRefused) {
  JobSpec spec = lasting();
  spec.gpus = 5;
  try {
    engine_->hold(attempt_, spec);
    FAIL() << "held";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("asks for 5 devices"), HasSubstr("together have 4")));
  }
  EXPECT_THAT(engine_->adopt(), IsEmpty());
  spec.gpus = 4;
  engine_->hold(attempt_, spec);
  EXPECT_THAT(engine_->adopt(), SizeIs(1));
}

TEST_F(SlurmEngineTest, TheStateFolderMustBeOursAlone) {
  const fs::path open = world_.work() / "open";
  fs::create_directory(open);
  ASSERT_EQ(::chmod(open.c_str(), 0755), 0);
  options_.state = open;
  EXPECT_THAT(refusal([&] { make(); }), AllOf(HasSubstr("state folder"), HasSubstr("0755")));
}

}  // namespace
}  // namespace commensal::cluster::slurm_engine_test
