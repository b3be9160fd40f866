// SPDX-License-Identifier: Apache-2.0
// One scenario of the cluster coordinator, with a real store: it dies at every change of a file and
// around every call of the engine, the disk is full at every change, the clock is set between any
// two steps. Whatever happens, the scenario ends as it does undisturbed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/fake_engine.h"
#include "tests/coordinator/fault_vfs.h"
#include "tests/coordinator/store_script.h"
#include "tests/sanitizers.h"

namespace commensal::cluster::cluster_crash_test {
namespace {

using namespace std::chrono_literals;
using fault_vfs::Fault;
using nlohmann::json;
using ::testing::HasSubstr;

/// With a sanitizer every sixth point stands for all.
constexpr std::uint64_t kEvery = testing::kSanitized ? 6 : 1;

/// The store of every test in this program is on files that can fail.
const bool kInstalled = (fault_vfs::install(), true);

constexpr std::size_t kLogPages = 12;  // so that the log is emptied several times
constexpr auto kStep = 1ms;

/// Passes every call on, and dies around the n-th.
class DyingEngine final : public Engine {
 private:
  template <typename Call>
  auto call(Call&& body) {
    const bool here = ++calls_ == at_;
    if (here && moment_ == Moment::kBefore) throw CoordinatorDied{};
    auto answer = body();
    if (here) throw CoordinatorDied{};
    return answer;
  }

 public:
  DyingEngine(Engine& below, std::uint64_t& calls, std::uint64_t at, Moment moment)
      : below_(below), calls_(calls), at_(at), moment_(moment) {}

  [[nodiscard]] std::string_view name() const noexcept override { return below_.name(); }
  [[nodiscard]] std::vector<EngineNode> nodes() override {
    return call([&] { return below_.nodes(); });
  }
  void hold(const Attempt& attempt, const JobSpec& spec) override {
    call([&] { return below_.hold(attempt, spec), true; });
  }
  void place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
             JobClass job_class) override {
    call([&] { return below_.place(attempt, placement, job_class), true; });
  }
  void release(const Attempt& attempt) override {
    call([&] { return below_.release(attempt), true; });
  }
  void take_back(const Attempt& attempt, std::chrono::milliseconds grace) override {
    call([&] { return below_.take_back(attempt, grace), true; });
  }
  [[nodiscard]] std::vector<EngineEvent> watch() override {
    return call([&] { return below_.watch(); });
  }
  [[nodiscard]] int descriptor() const noexcept override { return below_.descriptor(); }
  [[nodiscard]] std::vector<Found> adopt() override {
    return call([&] { return below_.adopt(); });
  }
  [[nodiscard]] std::vector<Attempt> attempts() override { return below_.attempts(); }
  [[nodiscard]] std::string store_stamp() override { return below_.store_stamp(); }
  void set_store_stamp(const std::string& stamp) override {
    call([&] { return below_.set_store_stamp(stamp), true; });
  }
  [[nodiscard]] std::uint64_t highest_job() override {
    return call([&] { return below_.highest_job(); });
  }
  void forget(const Attempt& attempt) override {
    call([&] { return below_.forget(attempt), true; });
  }
  [[nodiscard]] std::vector<std::string> logs(const Attempt& attempt) override {
    return below_.logs(attempt);
  }

 private:
  Engine& below_;
  std::uint64_t& calls_;
  const std::uint64_t at_;
  const Moment moment_;
};

/// Nodes that change a class when they are asked; what was asked of a dead coordinator is
/// forgotten.
class ObligingClasses final : public ClassChanger {
 public:
  void change(const JobRecord& job, JobClass /*job_class*/) override {
    outcomes_.push_back({{job.id, job.attempt}, true, "done"});
  }
  std::vector<Outcome> outcomes() override { return std::exchange(outcomes_, {}); }

 private:
  std::vector<Outcome> outcomes_;
};

/// A coordinator, its machines, and a user who asks again when nobody has answered.
class World {
 public:
  World() {
    machines_.nodes = {FakeWorld::make_node("n1", 2), FakeWorld::make_node("n2", 2)};
    config_.look = 1s;
  }

  std::function<void()> between = [] {};  ///< called before every step and every settle
  std::function<void(int)> after_step = [](int) {};
  int steps = 0;
  std::uint64_t calls = 0;        ///< of the engine
  std::uint64_t die_at_call = 0;  ///< 0: never
  Moment moment = Moment::kBefore;
  int deaths = 0;
  int refusals = 0;  ///< of the store, while the coordinator lives
  bool dies_of_store = true;
  WallTime wall{std::chrono::hours{24 * 365 * 40}};
  std::vector<std::string> told;  ///< estimates, as users are told them

  [[nodiscard]] FakeWorld& machines() { return machines_; }

  /// Does it, and after a death does it again.
  void step(const std::function<void()>& body) {
    for (;;) {
      try {
        between();
        if (!coordinator_) open();
        body();
        for (int i = 0; i < 5; ++i) settle();
        check();
        after_step(++steps);
        return;
      } catch (const CoordinatorDied&) {
        die();
      } catch (const StoreFailed& error) {
        if (!coordinator_ || dies_of_store) {
          die();
        } else {
          refused(error);
        }
      }
    }
  }

  /// What a user asks; the answer counts once it is durable.
  json ask(const json& request) {
    json answer = coordinator_->answer(request, now_);
    settle();
    return answer;
  }
  void submit(const std::string& name, json job, const std::string& after = "") {
    step([&] {
      job["name"] = name;
      if (!after.empty()) job["after"] = ids_.at(after);
      const std::string id =
          ask({{"type", "submit"}, {"job", job}, {"request", "request-" + name}})["id"];
      const auto [known, is_new] = ids_.emplace(name, id);
      EXPECT_EQ(known->second, id) << "one submission, two jobs";
    });
  }
  /// A gang and the job that tries its first step: both are there, or neither.
  void submit_with_pre_run(const std::string& name, json job) {
    step([&] {
      job["name"] = name;
      const json answer = ask({{"type", "submit"},
                               {"job", job},
                               {"request", "request-" + name},
                               {"pre_run_ms", 60'000}});
      for (const auto& [field, key] : {std::pair{"id", name}, std::pair{"pre_run", name + "-0"}}) {
        const auto [known, is_new] = ids_.emplace(key, answer[field]);
        EXPECT_EQ(known->second, answer[field]) << "one submission, several jobs";
      }
      EXPECT_EQ(store_->load().next_job, std::stoull(answer["id"].get<std::string>()) + 1);
    });
  }
  void request(const json& request) {
    step([&] { (void)ask(request); });
  }
  /// Asked twice, the second one may find that there is nothing left to cancel.
  void cancel(const std::string& name) {
    step([&] {
      try {
        (void)ask({{"type", "cancel"}, {"id", ids_.at(name)}});
      } catch (const RequestRefused& error) {
        EXPECT_THAT(error.what(), HasSubstr("has ended: cancelled"));
      }
    });
  }
  /// A job whose own rule parks it tells what the rule needs, all at once.
  void tells_flat(const std::string& name) {
    json points = json::array();
    for (int age = 700; age >= 0; age -= 10) {
      points.push_back({{"age_ms", age * 1000}, {"loss", 1}});
    }
    step([&] {
      try {
        (void)ask(
            {{"type", "report_loss"}, {"id", ids_.at(name)}, {"attempt", 1}, {"points", points}});
      } catch (const RequestRefused& error) {
        EXPECT_THAT(error.what(), HasSubstr("is over"));
      }
    });
  }
  void resume(const std::string& name) {
    step([&] {
      try {
        (void)ask({{"type", "resume"}, {"id", ids_.at(name)}});
      } catch (const RequestRefused& error) {
        EXPECT_THAT(error.what(), HasSubstr("is not parked: it is"));
      }
    });
  }
  /// Something happens on the machines: to the attempt of a job that runs.
  void happens(const std::string& name, const std::function<void(const Attempt&)>& what) {
    bool done = false;
    step([&] {
      if (std::exchange(done, true)) return;
      for (std::uint32_t number = 3; number > 0; --number) {
        const Attempt attempt{JobId{ids_.at(name)}, number};
        if (machines_.runs(attempt)) return what(attempt);
      }
      ADD_FAILURE() << name << " does not run";
    });
  }
  void ends(const std::string& name, int code) {
    happens(name, [this, code](const Attempt& attempt) { machines_.end(attempt, code); });
  }
  void pass(Duration time) {
    bool done = false;
    step([&] {
      if (std::exchange(done, true)) return;
      now_ += time;
      wall += std::chrono::duration_cast<WallTime::duration>(time);
    });
  }
  /// Notes what those that wait are told.
  void look() {
    step([&] {
      std::vector<std::string> seen;
      const json answer = ask({{"type", "queue"}});
      for (const json& job : answer["jobs"]) {
        if (job.contains("estimate")) seen.push_back(job["name"].dump() + job["estimate"].dump());
      }
      told.insert(told.end(), seen.begin(), seen.end());
    });
  }

  /// What has become of the jobs, by name: their states, one after the other, with attempts.
  std::map<std::string, std::string> lives() {
    std::map<std::string, std::string> all;
    for (const auto& [name, id] : ids_) {
      const json answer = coordinator_->answer({{"type", "explain"}, {"id", id}}, now_);
      for (const json& line : answer["history"]) {
        all[name] += line["to"].get<std::string>() + '.' + line["attempt"].dump() + ' ';
      }
    }
    return all;
  }

  /// Nothing is started twice, no two attempts of one job run, and no engine keeps what is over.
  void check() const {
    std::map<JobId, int> running;
    for (const auto& [attempt, known] : machines_.attempts) {
      if (machines_.runs(attempt)) ++running[attempt.job];
    }
    for (const auto& [job, count] : running) EXPECT_LE(count, 1) << job.str();
    for (const auto& [name, id] : ids_) {
      for (std::uint32_t number = 1; number < 4; ++number) {
        EXPECT_LE(machines_.starts({JobId{id}, number}), 1) << name << ' ' << number;
      }
    }
  }

  void restart() {
    close();
    open();
  }

 private:
  void open() {
    store_.emplace(folder_.path() / "cluster.db", kLogPages);
    fake_.emplace(machines_);
    engine_.emplace(*fake_, calls, die_at_call, moment);
    classes_.emplace();
    coordinator_.emplace(
        config_, *store_, *engine_, *classes_, *policy_, [this] { return wall; }, log_, now_);
  }
  void close() {
    coordinator_.reset();
    classes_.reset();
    engine_.reset();
    fake_.reset();
    store_.reset();
  }
  void die() {
    ++deaths;
    close();
    fault_vfs::arm({});
    die_at_call = 0;
    check();
  }
  /// As the daemon does: it goes on, and says what is the matter.
  void refused(const StoreFailed& error) {
    ++refusals;
    EXPECT_EQ(error.why(), StoreFailed::Why::kFull);
    EXPECT_THAT(error.what(), HasSubstr("make space"));
    const std::size_t before = machines_.calls.size();
    std::vector<Attempt> ran;
    for (const auto& [attempt, known] : machines_.attempts) {
      if (machines_.runs(attempt)) ran.push_back(attempt);
    }
    for (int i = 0; i < 3; ++i) {
      coordinator_->take_back_changes();
      (void)coordinator_->answer({{"type", "queue"}}, now_);  // can still be asked
      try {
        coordinator_->settle(now_ += kStep);
      } catch (const StoreFailed&) {
        ++refusals;
      }
    }
    coordinator_->take_back_changes();
    for (std::size_t i = before; i < machines_.calls.size(); ++i) {
      EXPECT_FALSE(machines_.calls[i].starts_with("take_back")) << machines_.calls[i];
    }
    for (const Attempt& attempt : ran) EXPECT_TRUE(machines_.runs(attempt)) << attempt.job.str();
    fault_vfs::arm({});  // there is room again
  }
  void settle() {
    between();
    now_ += kStep;
    wall += kStep;
    coordinator_->settle(now_);
  }

  const TemporaryFolder folder_;
  FakeWorld machines_;
  ClusterConfig config_;
  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("antman", {});
  std::shared_ptr<spdlog::logger> log_ =
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_st>());
  TimePoint now_{1h};
  std::map<std::string, std::string> ids_;
  std::optional<Store> store_;
  std::optional<FakeEngine> fake_;
  std::optional<DyingEngine> engine_;
  std::optional<ObligingClasses> classes_;
  std::optional<ClusterCoordinator> coordinator_;
};

json job(const std::string& asked, const std::string& tenant = "default", int gpus = 1,
         const std::string& command = "train") {
  return {{"tenant", tenant},
          {"class", asked},
          {"gpus", gpus},
          {"cpu_milli", 0},
          {"host_memory_mib", 0},
          {"environment", json::object()},
          {"command", json::array({command})},
          {"directory", "/"}};
}

/// Submissions, a reservation, starts, an upgrade, retries, cancelled jobs, a drained node, a job
/// that is parked and resumed, a gang with its pre-run.
void play(World& world) {
  world.request({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  world.submit("first", job("guaranteed", "vision"));
  world.submit("auto", job("auto", "vision"));
  world.submit("waits", job("guaranteed", "vision"));
  world.submit("gang", job("guaranteed", "default", 4));  // three devices are kept for it
  world.submit("beside", job("opportunistic"));
  world.submit("after", job("opportunistic"), "first");
  world.submit("stubborn", job("opportunistic", "default", 1, "stubborn"));
  world.look();
  world.happens("beside", [&](const Attempt& attempt) { world.machines().lose(attempt); });
  world.look();
  world.request({{"type", "drain"}, {"node", "n2"}});
  world.pass(11s);
  world.request({{"type", "undrain"}, {"node", "n2"}});
  world.cancel("waits");
  world.cancel("stubborn");
  world.step([&] { world.machines().tick(); });
  world.pass(100s);
  world.ends("first", 0);  // `gang` has all devices
  world.look();
  world.submit("like-first", job("guaranteed", "vision"));
  world.look();
  world.ends("gang", 75);  // as a program that wants to be tried again
  world.look();
  world.pass(30s);
  world.ends("like-first", 0);
  world.ends("beside", 0);
  world.ends("after", 1);
  world.ends("gang", 0);  // no guaranteed job waits: `auto` is upgraded
  world.look();
  world.ends("auto", 3);
  world.pass(5s);
  json flat = job("opportunistic");
  flat["park_when_flat"] = {{"window_ms", 600'000}, {"change", 0.01}};
  world.submit("flat", flat);
  world.tells_flat("flat");
  world.resume("flat");
  world.ends("flat", 0);
  world.submit_with_pre_run("tried", job("guaranteed", "default", 2));
  world.ends("tried-0", 0);
  world.ends("tried", 0);
}

/// As it is undisturbed.
struct Undisturbed {
  std::map<int, std::map<std::string, std::string>> lives;  ///< after each step
  std::vector<std::string> told;
  [[nodiscard]] const auto& in_the_end() const { return lives.rbegin()->second; }
  std::uint64_t changes = 0;
  std::uint64_t calls = 0;
};
const Undisturbed& undisturbed() {
  static const Undisturbed value = [] {
    fault_vfs::arm({});
    World world;
    Undisturbed seen;
    world.after_step = [&](int step) { seen.lives[step] = world.lives(); };
    play(world);
    seen.changes = fault_vfs::changes();
    seen.calls = world.calls;
    seen.told = world.told;
    return seen;
  }();
  return value;
}

TEST(ClusterScenario, HasEveryKindOfWritePoint) {
  std::set<std::string> states;
  for (const auto& [name, life] : undisturbed().in_the_end()) {
    SCOPED_TRACE(name + ": " + life);
    for (const char* state : {"submitted", "queued", "reserved", "starting", "running", "upgrading",
                              "parked", "finished", "failed", "cancelled", "lost"}) {
      if (life.find(state) != std::string::npos) states.insert(state);
    }
    const std::string last = life.substr(life.rfind(' ', life.size() - 2) + 1);
    EXPECT_THAT(last, ::testing::ContainsRegex("finished|failed|cancelled"));
  }
  EXPECT_EQ(states.size(), 11U);
  EXPECT_GT(undisturbed().changes, 100U);
  EXPECT_GT(undisturbed().calls, 100U);
  EXPECT_THAT(undisturbed().told, ::testing::Contains(HasSubstr("in about")));
}

struct Enough {};

/// Plays it, and compares what has become of the jobs: at the end, or, if it need not be `whole`,
/// after the first step that was disturbed.
void expect_the_same(World& world, bool whole) {
  if (!whole) {
    world.after_step = [&world](int) {
      if (world.deaths + world.refusals > 0) throw Enough{};
    };
  }
  try {
    play(world);
  } catch (const Enough&) {  // NOLINT(bugprone-empty-catch)
    // What is compared below.
  }
  const auto& expected = undisturbed().lives.at(world.steps);
  EXPECT_EQ(world.lives(), expected) << "after step " << world.steps;
  world.restart();
  EXPECT_EQ(world.lives(), expected) << "after one more restart";
  world.check();
}

/// Every eighth scenario is played to its end.
bool is_whole(std::uint64_t at) { return at / kEvery % 8 == 0; }

class ClusterDies : public ::testing::TestWithParam<Fault> {};

TEST_P(ClusterDies, AtEveryChangeOfAFileAndNothingIsLostNorStartedTwice) {
  const std::uint64_t every = GetParam() == Fault::kFreeze ? kEvery : 3 * kEvery;
  std::uint64_t points = 0;
  for (std::uint64_t at = 1;; at += every) {
    SCOPED_TRACE("change " + std::to_string(at));
    World world;
    fault_vfs::arm({.fault = GetParam(), .at = at});
    expect_the_same(world, is_whole(at));
    if (world.deaths == 0) break;
    ASSERT_EQ(world.deaths, 1);
    ASSERT_FALSE(HasFailure());
    ++points;
  }
  fault_vfs::arm({});
  EXPECT_GT(points, undisturbed().changes / every / 2);
}

std::string fault_name(const ::testing::TestParamInfo<Fault>& tested) {
  return tested.param == Fault::kFreeze ? "Before" : "InTheMiddle";
}

INSTANTIATE_TEST_SUITE_P(Writes, ClusterDies, ::testing::Values(Fault::kFreeze, Fault::kFreezeTorn),
                         fault_name);

TEST(ClusterDiesAtCalls, OfTheEngineBeforeOrAfterItsWork) {
  for (const Moment moment : {Moment::kBefore, Moment::kAfter}) {
    // What a call has done and what it has not is the contract suite's; a third of them will do.
    const std::uint64_t every = moment == Moment::kBefore ? kEvery : 3 * kEvery;
    std::uint64_t points = 0;
    for (std::uint64_t at = 1; at <= undisturbed().calls; at += every) {
      SCOPED_TRACE("call " + std::to_string(at));
      World world;
      world.die_at_call = at;
      world.moment = moment;
      expect_the_same(world, is_whole(at));
      ASSERT_FALSE(HasFailure());
      ASSERT_EQ(world.deaths, 1);
      ++points;
    }
    EXPECT_EQ(points, (undisturbed().calls + every - 1) / every);
  }
}

TEST(ClusterOnAFullDisk, RefusesClearlyKeepsWhatRunsAndGoesOn) {
  std::uint64_t points = 0;
  int refusals = 0;
  for (std::uint64_t at = 1;; at += 3 * kEvery) {
    SCOPED_TRACE("change " + std::to_string(at));
    World world;
    world.dies_of_store = false;
    fault_vfs::arm({.fault = Fault::kFailOn, .at = at, .code = SQLITE_FULL});
    expect_the_same(world, is_whole(at));
    ASSERT_FALSE(HasFailure());
    if (world.refusals == 0 && world.deaths == 0) break;
    refusals += world.refusals;
    ++points;
  }
  fault_vfs::arm({});
  EXPECT_GT(points, undisturbed().changes / kEvery / 6);
  EXPECT_GT(refusals, 0);
}

TEST(ClusterClock, MaySetBackOrForwardBetweenAnyTwoStepsAndChangesNothing) {
  int moments = 0;
  {
    World world;
    world.between = [&] { ++moments; };
    play(world);
  }
  ASSERT_GT(moments, 100);
  for (const auto jump : {-1h, 1h}) {
    for (int at = 1; at <= moments; at += 7 * static_cast<int>(kEvery)) {
      SCOPED_TRACE("before moment " + std::to_string(at) + ": " + std::to_string(jump.count()) +
                   " h");
      World world;
      int moment = 0;
      world.between = [&] {
        if (++moment == at) world.wall += jump;
      };
      play(world);
      ASSERT_EQ(world.told, undisturbed().told);
      ASSERT_EQ(world.lives(), undisturbed().in_the_end());
    }
  }
}

TEST(ClusterClock, ThatIsSetAtEveryStepChangesNothing) {
  World world;
  auto jump = std::chrono::duration_cast<WallTime::duration>(1h);
  world.between = [&] {
    world.wall += jump;
    jump = -jump;
  };
  play(world);
  EXPECT_EQ(world.told, undisturbed().told);
  EXPECT_EQ(world.lives(), undisturbed().in_the_end());
}

}  // namespace
}  // namespace commensal::cluster::cluster_crash_test
