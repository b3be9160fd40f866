// SPDX-License-Identifier: Apache-2.0
// Which cores opportunistic jobs keep to: topology, need, and the decision with its reason.
#include "coordinator/node/core_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "coordinator/node/device_page.h"
#include "coordinator/node/node_coordinator.h"

namespace commensal::node::core_share_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using wire::CoreSet;

CoreSet set(std::string_view list) { return CoreSet::parse(list).value(); }

CoreTopology machine(std::initializer_list<const char*> cores) {
  CoreTopology all;
  for (const char* core : cores) all.push_back(set(core));
  return all;
}

// --- topology -----------------------------------------------------------------------------------

/// A machine's /proc and /sys.
class TopologyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "commensal-cores-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }
  void allow(const std::string& cpus, const std::string& process = "self") const {
    write("proc/" + process + "/status", "Name:\tx\nCpus_allowed_list:\t" + cpus + "\n");
  }
  void siblings(int cpu, const std::string& list) const {
    write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          list + "\n");
  }
  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream{root_ / path} << text;
  }
  [[nodiscard]] CoreTopology read() const { return read_topology(roots()); }
  [[nodiscard]] HostRoots roots() const { return {root_ / "proc", root_, root_ / "sys"}; }
  fs::path root_;
};

TEST_F(TopologyTest, SiblingsOfSmtAreOneCore) {
  allow("0-3");
  for (const int cpu : {0, 2}) siblings(cpu, "0,2");
  for (const int cpu : {1, 3}) siblings(cpu, "1,3");
  EXPECT_EQ(read(), machine({"0,2", "1,3"}));
}

TEST_F(TopologyTest, OnlyUsableCpusCount) {
  allow("1-2");
  siblings(1, "1,3");
  siblings(2, "0,2");
  EXPECT_EQ(read(), machine({"1", "2"}));
}

TEST_F(TopologyTest, WithoutWordsOfTheKernelEachCpuIsACore) {
  allow("0,5");
  EXPECT_EQ(read(), machine({"0", "5"}));
  siblings(5, "nonsense");
  EXPECT_EQ(read(), machine({"0", "5"}));
  siblings(5, "0-5");  // and 0 says that it is alone
  EXPECT_EQ(read(), machine({"0", "5"})) << "a CPU is in one core only";
}

TEST_F(TopologyTest, AMachineThatAPageCannotNameHasNone) {
  allow("0-511");
  EXPECT_TRUE(read().empty());
  fs::remove_all(root_ / "proc");
  EXPECT_TRUE(read().empty());
}

TEST_F(TopologyTest, CpusOfAnotherProcessAreRead) {
  allow("0-7");
  allow("2-3", "17");
  EXPECT_EQ(read_allowed(17, roots()), set("2-3"));
  EXPECT_FALSE(read_allowed(18, roots()));
}

TEST_F(TopologyTest, ReadsThisMachine) {
  const CoreTopology cores = read_topology();
  CoreSet all;
  for (const CoreSet& core : cores) {
    EXPECT_FALSE(core.empty());
    EXPECT_TRUE((all & core).empty());
    all = all | core;
  }
  EXPECT_EQ(all, read_allowed(getpid()));
}

// --- need ---------------------------------------------------------------------------------------

/// Threads that run a part of each second.
class Threads {
 public:
  void run(CoreNeed& need, int looks, const std::vector<double>& parts) {
    for (int i = 0; i < looks; ++i) {
      now_ += 1s;
      for (std::size_t thread = 0; thread < parts.size(); ++thread) {
        times_[static_cast<std::int64_t>(thread) + 1].run +=
            Duration{static_cast<Duration::rep>(parts[thread] * 1e9)};
      }
      need.note(now_, times_);
    }
  }
  TimePoint now_{1h};
  ThreadTimes times_;
};

TEST(CoreNeed, AThreadThatRunsIsACoreHoweverLittleItRuns) {
  CoreNeed need;
  Threads threads;
  threads.run(need, 3, {1.0});
  EXPECT_EQ(need.seen()->most, 1U);
  threads.run(need, 2, {0.5, 0.5});  // one core's worth, on two at once
  EXPECT_EQ(need.seen()->newest, 2U);
  threads.run(need, 2, {1.0, 0.0, 0.001});
  EXPECT_EQ(need.seen()->newest, 1U);
  EXPECT_EQ(need.seen()->most, 2U) << "of the last ten seconds";
}

TEST(CoreNeed, ManyThatRunALittleAreWhatTheyRunTogether) {
  CoreNeed need;
  Threads threads;
  threads.run(need, 3, std::vector<double>(150, 0.015));
  EXPECT_EQ(need.seen()->newest, 2U);
}

TEST(CoreNeed, TellsWhetherItHasWatchedLongEnough) {
  CoreNeed need;
  Threads threads;
  EXPECT_FALSE(need.seen());
  threads.run(need, 1, {1.0});
  EXPECT_FALSE(need.seen());
  threads.run(need, 9, {1.0});
  EXPECT_FALSE(need.seen()->whole);
  threads.run(need, 1, {1.0});
  EXPECT_TRUE(need.seen()->whole);
  threads.run(need, 1, {1.0, 1.0});
  EXPECT_EQ(need.seen()->most, 2U);
  threads.run(need, 10, {1.0, 0.0});
  EXPECT_EQ(need.seen()->most, 2U);
  threads.run(need, 1, {1.0, 0.0});
  EXPECT_EQ(need.seen()->most, 1U) << "forgotten after ten seconds";
}

TEST(CoreNeed, LooksInQuickSuccessionAreOne) {
  CoreNeed need;
  Threads threads;
  threads.run(need, 2, {0.03});
  threads.now_ += 10ms;
  threads.times_[1].run += 10ms;  // a burst
  threads.times_[2].run += 1ms;
  need.note(threads.now_, threads.times_);
  EXPECT_EQ(need.seen()->newest, 1U);
  threads.run(need, 1, {0.0, 0.0});
  EXPECT_EQ(need.seen()->newest, 0U) << "what the left-out look saw counts over the whole second";
}

TEST(CoreNeed, AnIdThatIsUsedAgainBeginsAtZero) {
  CoreNeed need;
  Threads threads;
  threads.run(need, 2, {1.0});
  threads.times_[1].run = 900ms;
  threads.now_ += 1s;
  need.note(threads.now_, threads.times_);
  EXPECT_EQ(need.seen()->newest, 1U);
}

// --- decision -----------------------------------------------------------------------------------

/// One guaranteed job beside an opportunistic one; a decision a second.
class CoreShareTest : public ::testing::Test {
 protected:
  CoreShareTest() {
    input_.cores = 4;
    input_.opportunistic = true;
    input_.guaranteed.push_back({"g", CoreNeed::Seen{2, 2, true}, {}, {}, 0.01});
  }
  const CoreShareDecision& decide(Duration later = 1s) {
    input_.now += later;
    decision_ = decide_cores(input_, decision_.state, machine_);
    return decision_;
  }
  CoreShareInput::Guaranteed& job() { return input_.guaranteed.front(); }
  void suffers(double by) { job().slowdown = SlowdownEstimate{by, 0.002, 50}; }
  void needs(unsigned cores) { job().need = CoreNeed::Seen{cores, cores, true}; }
  [[nodiscard]] std::string cores() const { return decision_.state.cores.to_string(); }
  void confine() {
    suffers(0.05);
    decide();
    ASSERT_EQ(cores(), "2-3");
  }

  CoreTopology machine_ = machine({"0", "1", "2", "3"});
  CoreShareInput input_{TimePoint{1h}, 4, {}, true};
  CoreShareDecision decision_;
};

TEST_F(CoreShareTest, KeepsToWhatTheGuaranteedJobLeavesWhileItSuffers) {
  suffers(0.05);
  EXPECT_EQ(decide().reason,
            "CPUs 2-3: guaranteed jobs leave 2 of 4 cores, and g was 5.0 % over its baseline");
  EXPECT_EQ(cores(), "2-3");
}

TEST_F(CoreShareTest, WhatIsLostToWaitingIsSaidSo) {
  job().by_waiting = true;
  suffers(0.389);
  EXPECT_EQ(decide().reason,
            "CPUs 2-3: guaranteed jobs leave 2 of 4 cores, and g lost 38.9 % to waiting for them");
  EXPECT_EQ(decide(kTrial).reason,
            "all cores: keeping to fewer did not help g (38.9 % before, 38.9 % now)");
}

TEST_F(CoreShareTest, AnotherMeasureThanBeforeDoesNotTellWhetherItHelps) {
  confine();
  job().by_waiting = true;
  suffers(0.2);
  decide(kTrial);
  EXPECT_EQ(cores(), "2-3");
  job().by_waiting = false;
  decide();
  EXPECT_EQ(cores(), "");
}

TEST_F(CoreShareTest, WhoHarmsNobodyKeepsAllCores) {
  for (const double slowdown : {0.0, 0.009, 0.0115}) {
    suffers(slowdown);
    EXPECT_EQ(decide().reason, "all cores: no guaranteed job suffers") << slowdown;
    EXPECT_EQ(cores(), "");
  }
  job().slowdown.reset();
  EXPECT_EQ(decide().reason, "all cores: no guaranteed job suffers");
}

TEST_F(CoreShareTest, ASlowdownOfAMomentAgoStillCounts) {
  job().need->whole = false;
  suffers(0.05);
  EXPECT_EQ(decide().reason, "all cores: g was not watched for 10 s yet");
  suffers(0.0);  // its gate has been closed meanwhile
  job().need->whole = true;
  decide(20s);
  EXPECT_EQ(cores(), "2-3");
  decision_ = {};
  suffers(0.05);
  job().need->whole = false;
  decide();
  suffers(0.0);
  job().need->whole = true;
  EXPECT_EQ(decide(kStillInWay + 1s).reason, "all cores: no guaranteed job suffers");
}

TEST_F(CoreShareTest, AJobThatMayBeOnEveryCoreLeavesTheGapsOfAllOfThem) {
  needs(4);
  suffers(0.05);
  EXPECT_EQ(decide().reason, "all cores: guaranteed jobs may be on each of 4 cores at once");
  EXPECT_EQ(cores(), "");
}

TEST_F(CoreShareTest, FollowsWhatIsLeft) {
  confine();
  suffers(0.0);
  needs(3);
  decide();
  EXPECT_EQ(cores(), "3") << "at once";
  needs(1);
  decide();
  EXPECT_EQ(cores(), "1-3");
  needs(4);
  decide();
  EXPECT_EQ(cores(), "");
}

TEST_F(CoreShareTest, StaysConfinedWhileItHelps) {
  confine();
  suffers(0.0);
  for (int i = 0; i < 3600; ++i) decide();
  EXPECT_EQ(cores(), "2-3");
  suffers(0.02);  // less than before
  decide();
  EXPECT_EQ(cores(), "2-3");
}

TEST_F(CoreShareTest, WhatDoesNotHelpIsGivenUpForAWhile) {
  confine();
  decide(kTrial - 2s);
  EXPECT_EQ(cores(), "2-3") << "it gets its time";
  EXPECT_EQ(decide(2s).reason,
            "all cores: keeping to fewer did not help g (5.0 % before, 5.0 % now)");
  EXPECT_EQ(decide().reason, "all cores: keeping to fewer did not help a while ago");
  decide(kGivenUp);
  EXPECT_EQ(cores(), "2-3");
}

TEST_F(CoreShareTest, AllCoresComeBackWithTheEndOfTheGuaranteedJob) {
  confine();
  input_.guaranteed.clear();
  EXPECT_EQ(decide(0s).reason, "all cores: no guaranteed job on the device");
  EXPECT_EQ(cores(), "");
}

TEST_F(CoreShareTest, TheNextGuaranteedJobIsJudgedByItself) {
  confine();
  input_.guaranteed.clear();
  decide();
  input_.guaranteed.push_back({"h", CoreNeed::Seen{2, 2, true}, {}, {}, 0.01});
  EXPECT_EQ(decide().reason, "all cores: no guaranteed job suffers");
}

TEST_F(CoreShareTest, WholePhysicalCoresAreLeft) {
  machine_ = machine({"0,4", "1,5", "2,6", "3,7"});
  input_.cores = 8;
  needs(3);
  suffers(0.05);
  decide();
  EXPECT_EQ(cores(), "3,7");
}

TEST_F(CoreShareTest, AJobThatItsOwnerPinnedLeavesTheOthers) {
  job().allowed = set("2-3");
  needs(7);
  suffers(0.05);
  decide();
  EXPECT_EQ(cores(), "0-1");
  needs(1);
  decide();
  EXPECT_EQ(cores(), "0-1,3");
}

TEST_F(CoreShareTest, SeveralGuaranteedJobsTakeTheirCoresTogether) {
  job().need = CoreNeed::Seen{1, 1, true};
  input_.guaranteed.push_back({"h", CoreNeed::Seen{1, 1, true}, set("0"), {}, 0.01});
  suffers(0.05);
  decide();
  EXPECT_EQ(cores(), "2-3") << "h can only be on 0, so g is on 1";
  input_.guaranteed.back().need.reset();
  EXPECT_EQ(decide().reason, "all cores: the clocks of h's threads are not known yet");
}

TEST_F(CoreShareTest, SaysWhatKeepsItFromDividing) {
  suffers(0.05);
  input_.cores = 2.5;
  EXPECT_THAT(decide().reason, HasSubstr("CPU quota"));
  input_.cores = 4;
  input_.opportunistic = false;
  EXPECT_THAT(decide().reason, HasSubstr("no opportunistic job"));
  input_.opportunistic = true;
  machine_.clear();
  EXPECT_THAT(decide().reason, HasSubstr("not known"));
  machine_ = machine({"0-1"});
  input_.cores = 2;
  EXPECT_THAT(decide().reason, HasSubstr("one core"));
  machine_ = machine({"0", "1"});
  job().need.reset();
  EXPECT_THAT(decide().reason, HasSubstr("clocks of g's threads"));
}

// Whatever comes: what is left is never empty, never a part of a core, and never one that a
// guaranteed job may need.
TEST_F(CoreShareTest, EveryDecisionLeavesTheGuaranteedJobsTheirCores) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 dice{seed};
  const auto upto = [&](unsigned most) {
    return std::uniform_int_distribution<unsigned>{0, most}(dice);
  };
  int confined = 0;
  for (int round = 0; round < 20000; ++round) {
    if (upto(9) == 0) needs(upto(5));
    if (upto(9) == 0) suffers(0.01 * upto(10));
    if (upto(99) == 0) decision_ = {};
    decide(Duration{1s} * upto(5));
    if (decision_.state.cores.empty()) continue;
    ++confined;
    EXPECT_EQ(decision_.state.cores.count() + job().need->most, 4U);
    EXPECT_FALSE(decision_.reason.empty());
  }
  EXPECT_GT(confined, 1000);
}

// --- the coordinator
// ------------------------------------------------------------------------------

/// g computes with one thread on two cores, and takes longer beside o.
class CoresOfJobsTest : public ::testing::Test {
 protected:
  CoresOfJobsTest() {
    join("g", JobClass::kGuaranteed, 10);
    join("o", JobClass::kOpportunistic, 20);
  }
  void join(const std::string& id, JobClass job_class, std::int64_t pid,
            const std::string& law = "gap") {
    wire::Register hello;
    hello.terms.law = law;
    hello.job_id = hello.name = id;
    hello.job_class = job_class;
    hello.pid = pid;
    hello.start_ticks = 1;
    hello.role = "main";
    node_.receive(id, hello, now_);
    (void)node_.take_outgoing();
  }
  /// Passes time, with g's steps `loss` longer than alone, and so much of its time on a core spent
  /// on waiting for it besides.
  void run(Duration time, double loss, double waits = 0.0) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      const double factor = node_.host().compute().window_closed() ? 1.0 : 1.0 + loss;
      const Duration step{static_cast<Duration::rep>(40e6 * factor)};
      now_ += step;
      clocks_[10].run += step;
      if (cores_of("p") == "1") waits = 0.0;  // nobody is on its core
      clocks_[10].delayed += std::chrono::duration_cast<Duration>(step * waits);
      PageReading page;
      page.heartbeat = now_;
      page.step_number = ++steps_;
      page.step_last = step;
      node_.observe_page(JobId{"g"}, 10, page, now_);
      node_.observe_need(JobId{"g"}, clocks_, {}, now_);
      if (++looks_ % 25 == 0) node_.observe_cpu(JobId{"g"}, 10, clocks_, {}, now_);
      node_.sample(now_);
      node_.tick(now_);
      (void)node_.take_outgoing();
    }
  }
  [[nodiscard]] std::string cores_of(const std::string& id) const {
    for (const PageEntry& entry : node_.host().page_entries(now_)) {
      if (entry.job_id == id) return entry.cores.to_string();
    }
    return "no entry";
  }
  /// What `explain` tells about a job's cores.
  [[nodiscard]] std::string cores_told(const std::string& id) {
    const nlohmann::json told = node_.explain(node_.find_told(id), 60s, false, now_);
    std::string all;
    for (const auto& decision : told["decisions"]) {
      if (decision["kind"] == "cores") all += decision["text"].get<std::string>();
    }
    return all;
  }
  [[nodiscard]] nlohmann::json device() { return node_.status("", now_)["devices"][0]; }

  static Device two_cores() {
    Device device;
    device.capacity = Bytes{1U << 30U};
    device.cores = 2;
    return device;
  }
  TimePoint now_{1h};
  NodeCoordinator node_{CoordinatorConfig{}, two_cores(), 77, 5, now_, machine({"0", "1"})};
  ThreadTimes clocks_;
  std::uint64_t steps_ = 0;
  std::uint64_t looks_ = 0;
};

TEST_F(CoresOfJobsTest, BesideAnotherLawWaitingForCoresTellsWhoSuffers) {
  node_.member_gone(JobId{"o"}, 20, Departure::kExited, now_);
  run(30s, 0.3);  // alone, on a machine that was slower
  join("p", JobClass::kOpportunistic, 30, "open");
  run(20s, 0.0, 0.4);
  EXPECT_EQ(cores_of("p"), "1");
  EXPECT_THAT(cores_told("p"), HasSubstr("leave 1 of 2 cores, and g lost 3"));
  run(30s, 0.4, 0.0);  // slower again: that does not mean that it did not help
  EXPECT_EQ(cores_of("p"), "1");
}

TEST_F(CoresOfJobsTest, BesideAnotherLawAMomentAloneIsEnough) {
  node_.member_gone(JobId{"o"}, 20, Departure::kExited, now_);
  run(1s, 0.0);
  join("p", JobClass::kOpportunistic, 30, "open");
  run(20s, 0.4, 0.4);
  EXPECT_EQ(cores_of("p"), "1");
  EXPECT_THAT(cores_told("p"), HasSubstr("leave 1 of 2 cores, and g lost 40.0 % to waiting"));
}

TEST_F(CoresOfJobsTest, WhoComesToAnotherLawIsProtectedToo) {
  for (const auto& [id, pid] : {std::pair{"o", 20}, {"g", 10}}) {
    node_.member_gone(JobId{id}, pid, Departure::kExited, now_);
  }
  join("p", JobClass::kOpportunistic, 30, "open");
  run(10s, 0.0);
  join("g", JobClass::kGuaranteed, 10);
  run(9s, 0.0, 0.4);
  EXPECT_EQ(cores_of("p"), "") << "not watched for 10 s yet";
  const nlohmann::json told = node_.status("g", now_)["jobs"][0];
  EXPECT_EQ(told["slowdown_reason"],
            "not measured yet; at most 40.0 % is lost to waiting for cores; "
            "nothing looks at it alone beside a job with a law of its own");
  run(12s, 0.4, 0.4);
  EXPECT_EQ(cores_of("p"), "1");
}

TEST_F(CoresOfJobsTest, BesideAnotherLawWhoDoesNotWaitForCoresDoesNotSuffer) {
  node_.member_gone(JobId{"o"}, 20, Departure::kExited, now_);
  run(30s, 0.0);
  join("p", JobClass::kOpportunistic, 30, "open");
  run(20s, 0.3, 0.0);
  EXPECT_EQ(device()["opportunistic_cpus_reason"], "all cores: no guaranteed job suffers");
}

TEST_F(CoresOfJobsTest, WhatIsLeftStandsOnThePageOfOpportunisticJobsOnly) {
  run(30s, 0.0);
  EXPECT_EQ(cores_of("o"), "");
  EXPECT_EQ(device()["opportunistic_cpus_reason"], "all cores: no guaranteed job suffers");
  run(10s, 0.2);
  EXPECT_EQ(cores_of("o"), "1");
  EXPECT_EQ(cores_of("g"), "");
  EXPECT_EQ(device()["opportunistic_cpus"], "1");
  EXPECT_THAT(device()["opportunistic_cpus_reason"].get<std::string>(),
              HasSubstr("CPUs 1: guaranteed jobs leave 1 of 2 cores"));
  join("p", JobClass::kOpportunistic, 30);
  EXPECT_EQ(cores_of("p"), "1") << "whoever comes later, too";
}

TEST_F(CoresOfJobsTest, AllCoresAreBackInTheMomentThatTheGuaranteedJobLeaves) {
  run(30s, 0.0);
  run(10s, 0.2);
  ASSERT_EQ(cores_of("o"), "1");
  node_.member_gone(JobId{"g"}, 10, Departure::kExited, now_);
  EXPECT_EQ(cores_of("o"), "");
  EXPECT_EQ(device()["opportunistic_cpus_reason"], "all cores: no guaranteed job on the device");
}

TEST_F(CoresOfJobsTest, ThePageIsWrittenForItsReaders) {
  run(30s, 0.0);
  run(10s, 0.2);
  DevicePageWriter writer{node_.host().device(), 0.01, 77};
  writer.publish(node_.host().page_entries(now_), node_.host().device(), now_);
  const wire::DevicePage& page = writer.page();
  std::size_t index = 0;
  while (std::string{page.entries[index].job_id} != "o") ++index;
  CoreSet::Words words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = page.core_sets[index].cpus[i].load();
  EXPECT_EQ(CoreSet{words}.to_string(), "1");
  EXPECT_EQ(page.entries[index].sequence.load() % 2, 0U);
  node_.member_gone(JobId{"g"}, 10, Departure::kExited, now_);
  writer.publish(node_.host().page_entries(now_), node_.host().device(), now_);
  EXPECT_EQ(page.core_sets[index].cpus[0].load(), 0U);
}

TEST_F(CoresOfJobsTest, TheDecisionIsExplained) {
  run(30s, 0.0);
  run(10s, 0.2);
  EXPECT_THAT(cores_told("o"), HasSubstr("CPUs 1: guaranteed jobs leave 1 of 2 cores, and g was"));
}

TEST_F(CoresOfJobsTest, WithoutATopologyNothingIsDivided) {
  NodeCoordinator blind{CoordinatorConfig{}, two_cores(), 77, 5, now_};
  blind.tick(now_);
  EXPECT_EQ(blind.status("", now_)["devices"][0]["opportunistic_cpus"], "");
}

}  // namespace
}  // namespace commensal::node::core_share_test
