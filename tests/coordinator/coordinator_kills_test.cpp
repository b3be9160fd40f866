// SPDX-License-Identifier: Apache-2.0
// commensal-coordinator itself, killed before every change of its files and every start of a
// program, on this machine and on a real Slurm cluster of four nodes: nothing that was acknowledged
// is lost, and nothing starts twice. A full disk, and a wall clock that is set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/engines/local/attempt_folder.h"
#include "tests/coordinator/coordinator_process.h"
#include "tests/coordinator/slurm_cluster.h"
#include "tests/sanitizers.h"

namespace commensal::cluster::coordinator_kills_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Points from one death to the next; 1: each of them (./scripts/soak).
std::uint64_t stride(std::uint64_t usual) {
  const char* said = std::getenv("COMMENSAL_KILL_STRIDE");  // NOLINT(concurrency-mt-unsafe)
  if (said == nullptr) return testing::kSanitized ? 3 * usual : usual;
  const std::string text{said};
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value == 0) {
    throw std::invalid_argument("COMMENSAL_KILL_STRIDE is a number from 1 on, not " + text);
  }
  return value;
}

struct EngineUnderKills {
  std::string name;
  std::vector<std::string> options;
  std::uint64_t usual_stride;
  std::uint64_t least_points;          ///< of an undisturbed run
  std::function<std::string()> lacks;  ///< what this machine has not for it; empty: nothing
  std::function<void()> use;
  friend std::ostream& operator<<(std::ostream& out, const EngineUnderKills& engine) {
    return out << engine.name;
  }
};

/// Jobs and what is known of them, whatever happens to coordinators.
class Story {
 public:
  explicit Story(const EngineUnderKills& engine)
      : coordinator_(engine.options), engine_state_(coordinator_.state() / engine.name) {}
  ~Story() {
    coordinator_.kill();
    if (!std::filesystem::exists(engine_state_ / "jobs")) return;
    for (const Attempt& attempt : local::attempts_in(engine_state_)) {  // of a test that failed
      const auto keeper = local::AttemptFolder{engine_state_, attempt}.keeper();
      if (!keeper) continue;
      const wire::UniqueFd pidfd = local::open_process(keeper->process);
      if (pidfd) (void)local::send_signal(pidfd.get(), SIGKILL);
    }
  }
  Story(const Story&) = delete;
  Story& operator=(const Story&) = delete;

  CoordinatorProcess& coordinator() { return coordinator_; }
  json ask(const json& request) { return coordinator_.ask(request); }

  /// Submits, under the name as the request's own; what is answered is noted as acknowledged.
  json submit(const std::string& name, const std::string& asked, const std::string& script) {
    const json answer =
        ask({{"type", "submit"},
             {"request", name},
             {"job",
              {{"name", name},
               {"tenant", "vision"},
               {"class", asked},
               {"gpus", 1},
               {"cpu_milli", 0},
               {"host_memory_mib", 0},
               {"environment", json::object()},
               {"command",
                {"/bin/sh", "-c",
                 "echo started >> $COMMENSAL_CLUSTER_JOB-$COMMENSAL_CLUSTER_ATTEMPT.starts; " +
                     script}},
               {"directory", coordinator_.work().native()}}}});
    if (answer["type"] == "submit") {
      const std::string id = answer["id"];
      EXPECT_EQ(ids_.emplace(name, id).first->second, id) << name << " is two jobs";
    }
    return answer;
  }
  std::string state_of(const std::string& name) {
    const json answer = ask({{"type", "explain"}, {"id", ids_.at(name)}});
    return answer["job"]["state"];
  }
  void until(const std::string& what, const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + 2min;
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error("not in two minutes: " + what + "; " + coordinator_.log());
      }
      ::poll(nullptr, 0, 20);
    }
  }
  void until_state(const std::string& name, const std::set<std::string>& states) {
    until(name + " is " + *states.begin(), [&] { return states.contains(state_of(name)); });
  }

  /// Submissions, a job that waits for quota, ends of both kinds, a cancelled job.
  void play() {
    EXPECT_EQ(ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}})["type"], "quota");
    (void)submit("first", "guaranteed", "exit 0");
    (void)submit("second", "guaranteed", "exit 3");
    (void)submit("beside", "opportunistic", "exit 0");
    (void)submit("cancelled", "opportunistic", "exec sleep 1000");
    until_state("cancelled", {"running", "cancelled"});
    const json answer = ask({{"type", "cancel"}, {"id", ids_.at("cancelled")}});
    // Asked again after a death there may be nothing left to cancel.
    if (answer["type"] == "error") {
      EXPECT_THAT(answer["what"].get<std::string>(), HasSubstr("has ended: cancelled"));
    }
    until("all have ended", [&] { return ask({{"type", "queue"}})["jobs"].empty(); });
    until("the engine keeps nothing", [&] {
      (void)ask({{"type", "nodes"}});
      return local::attempts_in(engine_state_).empty();
    });
  }

  [[nodiscard]] const std::string& id(const std::string& name) const { return ids_.at(name); }
  /// What the keeper of its first attempt has left.
  [[nodiscard]] std::optional<local::Outcome> outcome(const std::string& name) const {
    return local::AttemptFolder{engine_state_, {JobId{id(name)}, 1}}.outcome();
  }
  [[nodiscard]] int starts(const std::string& name, int attempt) {
    std::ifstream file{coordinator_.work() /
                       (ids_.at(name) + '-' + std::to_string(attempt) + ".starts")};
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }

  /// All is as it would be without a death.
  void check() {
    EXPECT_EQ(ids_.size(), 4U);
    const json all = ask({{"type", "queue"}, {"all", true}})["jobs"];
    EXPECT_EQ(all.size(), 4U) << all;
    const std::map<std::string, std::string> ends{{"first", "finished"},
                                                  {"second", "failed"},
                                                  {"beside", "finished"},
                                                  {"cancelled", "cancelled"}};
    for (const auto& [name, end] : ends) check(name, end);
  }

 private:
  void check(const std::string& name, const std::string& end) {
    SCOPED_TRACE(name);
    const json told = ask({{"type", "explain"}, {"id", ids_.at(name)}});
    EXPECT_EQ(told["job"]["state"], end) << told;
    EXPECT_EQ(told["job"]["attempt"], 1) << told;
    std::map<std::string, int> times;
    for (const json& line : told["history"]) ++times[line["to"].get<std::string>()];
    EXPECT_EQ(times["submitted"], 1) << told;
    EXPECT_EQ(times["starting"], 1) << told;
    EXPECT_EQ(times[end], 1) << told;
    // One that is cancelled while it starts may not have come to its first line.
    EXPECT_LE(starts(name, 1), 1);
    if (name != "cancelled") {
      EXPECT_EQ(starts(name, 1), 1);
    }
    EXPECT_EQ(starts(name, 2), 0);
  }

  CoordinatorProcess coordinator_;
  const std::filesystem::path engine_state_;
  std::map<std::string, std::string> ids_;
};

class CoordinatorUnderFaults : public ::testing::TestWithParam<EngineUnderKills> {
 protected:
  void SetUp() override {
    if (const std::string lacks = GetParam().lacks(); !lacks.empty()) GTEST_SKIP() << lacks;
    GetParam().use();
  }
};

TEST_P(CoordinatorUnderFaults, KilledAtEachChangeLosesNothingAndStartsNothingTwice) {
  std::uint64_t points = 0;
  {
    Story story{GetParam()};
    story.play();
    story.check();
    points = story.coordinator().control().points;
    EXPECT_EQ(story.coordinator().deaths(), 0);
  }
  ASSERT_GE(points, GetParam().least_points);
  const std::uint64_t every = stride(GetParam().usual_stride);
  int rounds = 0;
  std::uint64_t died = 0;
  for (std::uint64_t at = 1 + every / 2; at <= points; at += every, ++rounds) {
    SCOPED_TRACE("killed before point " + std::to_string(at) + " of " + std::to_string(points));
    Story story{GetParam()};
    process_faults::Control& control = story.coordinator().control();
    control.torn = rounds % 2 == 1;
    control.die_at = at;
    // At every other point the next one dies, too, while it begins or not long after.
    story.coordinator().next_life = [at, rounds](int deaths) {
      return deaths == 1 && rounds % 2 == 1 ? 1 + at % 13 : 0;
    };
    story.play();
    story.check();
    ASSERT_FALSE(HasFailure()) << story.coordinator().log();
    if (story.coordinator().deaths() == 0) break;  // news came together: there were fewer points
    ++died;
  }
  std::cout << died << " of " << points << " points\n";
  EXPECT_GE(died, std::max<std::uint64_t>(1, GetParam().least_points / every));
}

TEST_P(CoordinatorUnderFaults, KilledAgainAndAgainLosesNothingAndStartsNothingTwice) {
  Story story{GetParam()};
  // Each lives for a little longer than the one before, so that many die while they begin, and
  // all of the story comes about in the end.
  story.coordinator().next_life = [](int deaths) { return 1 + 2 * deaths; };
  story.coordinator().control().die_at = 1;
  story.play();
  story.check();
  EXPECT_GE(story.coordinator().deaths(), 6);
}

const EngineUnderKills kLocal{"local", {"--devices", "4"},           6,
                              150,     [] { return std::string{}; }, [] {}};
constexpr const char* kUntilTold = "while [ ! -e go ]; do sleep 0.05; done";

TEST_P(CoordinatorUnderFaults, OnAFullDiskRefusesClearlyAnswersQuestionsKeepsJobsAndGoesOn) {
  Story story{GetParam()};
  (void)story.ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", nullptr}});
  (void)story.submit("stays", "guaranteed", kUntilTold);
  (void)story.submit("ends", "guaranteed", "while [ ! -e end ]; do sleep 0.05; done");
  for (const char* name : {"stays", "ends"}) story.until_state(name, {"running"});
  pid_t pid = story.coordinator().pid();
  const auto nodes = story.ask({{"type", "nodes"}})["nodes"].size();
  EXPECT_GE(nodes, 1U);

  story.coordinator().control().full = true;
  const auto refused = [&](const json& answer) {
    EXPECT_EQ(answer["code"], "unavailable") << answer;
    EXPECT_THAT(answer["what"].get<std::string>(),
                AllOf(HasSubstr("cluster.db"), HasSubstr("make space")));
  };
  refused(story.submit("later", "guaranteed", "exit 0"));
  refused(story.ask({{"type", "cancel"}, {"id", story.id("stays")}}));
  refused(story.ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 2}}));
  EXPECT_EQ(story.state_of("stays"), "running");
  // The end of a job cannot be written down, and is in nobody's way.
  std::ofstream{story.coordinator().work() / "end"};
  story.until("its keeper has left how it ended",
              [&] { return story.outcome("ends").has_value(); });
  const auto answers_questions = [&] {
    EXPECT_EQ(story.state_of("stays"), "running");
    EXPECT_EQ(story.state_of("ends"), "running");
    EXPECT_EQ(story.ask({{"type", "queue"}})["jobs"].size(), 2U);
    EXPECT_EQ(story.ask({{"type", "nodes"}})["nodes"].size(), nodes);
    refused(story.submit("later", "guaranteed", "exit 0"));
  };
  for (int i = 0; i < 5; ++i) answers_questions();
  EXPECT_EQ(story.coordinator().pid(), pid);
  // So does one that begins now.
  story.coordinator().kill();
  for (int i = 0; i < 5; ++i) answers_questions();
  pid = story.coordinator().pid();

  story.coordinator().control().full = false;
  story.until("there is room again",
              [&] { return story.submit("later", "guaranteed", "exit 0")["type"] == "submit"; });
  story.until_state("ends", {"finished"});
  story.until_state("later", {"finished"});
  EXPECT_EQ(story.state_of("stays"), "running");
  std::ofstream{story.coordinator().work() / "go"};
  story.until_state("stays", {"finished"});
  for (const char* name : {"stays", "ends", "later"}) {
    EXPECT_EQ(story.starts(name, 1), 1) << name;
    EXPECT_EQ(story.starts(name, 2), 0) << name;
  }
  EXPECT_EQ(story.ask({{"type", "queue"}, {"all", true}})["jobs"].size(), 3U);
  EXPECT_EQ(story.coordinator().pid(), pid);
}

TEST(CoordinatorsClock, MayBeSetAheadAndBackWhileJobsRunAndWait) {
  Story story{kLocal};
  (void)story.ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  (void)story.submit("runs", "guaranteed", kUntilTold);
  (void)story.submit("waits", "guaranteed", "exit 0");
  story.until_state("runs", {"running"});
  const pid_t pid = story.coordinator().pid();
  process_faults::Control& control = story.coordinator().control();
  for (const std::int64_t hours : {1, -1, 0}) {
    control.clock_ms = std::chrono::milliseconds{std::chrono::hours{hours}}.count();
    const std::string name = "at " + std::to_string(hours);
    (void)story.submit(name, "opportunistic", "exit 0");
    story.until_state(name, {"finished"});
    EXPECT_EQ(story.state_of("runs"), "running");
    EXPECT_EQ(story.state_of("waits"), "queued");
    // One that begins anew finds times of the future or of long ago in its store.
    if (hours < 0) story.coordinator().kill();
  }
  EXPECT_NE(story.coordinator().pid(), pid);
  std::ofstream{story.coordinator().work() / "go"};
  for (const char* name : {"runs", "waits"}) {
    story.until_state(name, {"finished"});
    EXPECT_EQ(story.starts(name, 1), 1) << name;
    EXPECT_EQ(story.starts(name, 2), 0) << name;
  }
}

std::string name_of(const ::testing::TestParamInfo<EngineUnderKills>& tested) {
  return tested.param.name;
}

INSTANTIATE_TEST_SUITE_P(Local, CoordinatorUnderFaults, ::testing::Values(kLocal), name_of);

INSTANTIATE_TEST_SUITE_P(Slurm, CoordinatorUnderFaults,
                         ::testing::Values(EngineUnderKills{"slurm",
                                                            {"--engine", "slurm"},
                                                            60,
                                                            150,
                                                            [] { return SlurmCluster::lacks(); },
                                                            [] { slurm_cluster().use(); }}),
                         name_of);

}  // namespace
}  // namespace commensal::cluster::coordinator_kills_test
