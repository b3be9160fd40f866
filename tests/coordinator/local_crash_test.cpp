// SPDX-License-Identifier: Apache-2.0
// The cluster coordinator as a process that dies in the middle of a write, with the local engine
// and real jobs: what it has acknowledged is there, and every job's process was started once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/fault_vfs.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::local_crash_test {
namespace {

using nlohmann::json;

const bool kInstalled = (fault_vfs::install(), true);

constexpr int kDeaths = 6;
constexpr std::size_t kLogPages = 12;  // so that the log is emptied, too

class NoClasses final : public ClassChanger {
 public:
  void change(const JobRecord& job, JobClass /*job_class*/) override {
    outcomes_.push_back({{job.id, job.attempt}, true, "done"});
  }
  std::vector<Outcome> outcomes() override { return std::exchange(outcomes_, {}); }

 private:
  std::vector<Outcome> outcomes_;
};

WallTime wall() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

/// What a coordinator does from its start until all jobs have ended; runs in a child that may die.
class Life {
 public:
  explicit Life(const LocalWorld& world)
      : world_(world), store_(world.work() / "cluster.db", kLogPages), engine_(world.make()) {}

  void live() {
    ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
    const std::string first = submit("first", "guaranteed", "exit 0");
    submit("second", "guaranteed", "exit 3");  // waits for the first one's quota
    submit("beside", "opportunistic", "exit 0");
    const std::string cancelled = submit("cancelled", "opportunistic", "exec sleep 1000");
    until([&] { return state_of(cancelled) == "running" || state_of(cancelled) == "cancelled"; });
    try {
      ask({{"type", "cancel"}, {"id", cancelled}});
    } catch (const RequestRefused&) {  // NOLINT(bugprone-empty-catch)
      // It was cancelled before the death.
    }
    until([&] { return ask({{"type", "queue"}})["jobs"].empty(); });
    coordinator_.settle(clock_.now());  // the engine forgets what has ended
  }

 private:
  json ask(const json& request) {
    json answer = coordinator_.answer(request, clock_.now());
    coordinator_.settle(clock_.now());
    return answer;
  }
  std::string state_of(const std::string& id) {
    return ask({{"type", "explain"}, {"id", id}})["job"]["state"];
  }
  void until(const std::function<bool()>& done) {
    const bool in_time = eventually([&] {
      wait_for_news(*engine_);
      return done();
    });
    if (!in_time) throw std::runtime_error("it takes too long");
  }
  std::string submit(const std::string& name, const std::string& asked, const std::string& script) {
    const JobSpec spec = world_.script(script);
    std::string id = ask({{"type", "submit"},
                          {"request", name},
                          {"job",
                           {{"name", name},
                            {"tenant", "vision"},
                            {"class", asked},
                            {"gpus", 1},
                            {"cpu_milli", 0},
                            {"host_memory_mib", 0},
                            {"environment", json::object()},
                            {"command", spec.command},
                            {"directory", spec.directory}}}})["id"];
    // What is written here was acknowledged.
    std::ofstream{world_.work() / "acknowledged", std::ios::app} << name << ' ' << id << '\n';
    return id;
  }

  const LocalWorld& world_;
  Store store_;
  std::unique_ptr<LocalEngine> engine_;
  NoClasses classes_;
  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("antman", {});
  SteadyClock clock_;
  ClusterCoordinator coordinator_{
      {},
      store_,
      *engine_,
      classes_,
      *policy_,
      wall,
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_st>()),
      clock_.now()};
};

/// Lives in a child of this process. @return how that ended; `changes`: of files, if it lived on.
int in_child(const LocalWorld& world, const fault_vfs::Plan& plan) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      fault_vfs::arm(plan);
      Life{world}.live();
      std::ofstream{world.work() / "changes"} << fault_vfs::changes();
    } catch (const std::exception& error) {
      ::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// All is as it should be, whatever has happened before.
void check(const LocalWorld& world) {
  std::map<std::string, std::string> ids;
  std::ifstream acknowledged{world.work() / "acknowledged"};
  for (std::string name, id; acknowledged >> name >> id;) {
    EXPECT_EQ(ids.emplace(name, id).first->second, id) << name << " is two jobs";
  }
  ASSERT_EQ(ids.size(), 4U);
  Store store{world.work() / "cluster.db", kLogPages};
  EXPECT_TRUE(store.load().jobs.empty());
  EXPECT_EQ(store.ended(100).size(), 4U);
  const std::map<std::string, std::string> ends{{"first", "finished"},
                                                {"second", "failed"},
                                                {"beside", "finished"},
                                                {"cancelled", "cancelled"}};
  for (const auto& [name, end] : ends) {
    const auto job = store.job(JobId{ids[name]});
    ASSERT_TRUE(job.has_value()) << name;
    EXPECT_EQ(to_string(job->state), end) << name;
    EXPECT_EQ(job->attempt, 1U) << name;
    // A job that is cancelled while it starts may not have come to its first line.
    EXPECT_LE(world.starts({job->id, 1}), 1) << name;
    if (name != "cancelled") {
      EXPECT_EQ(world.starts({job->id, 1}), 1) << name;
    }
    EXPECT_EQ(world.starts({job->id, 2}), 0) << name;
  }
  EXPECT_TRUE(local::attempts_in(world.state()).empty()) << "the engine keeps what is over";
}

TEST(LocalCrash, OfTheCoordinatorInAWriteLosesNoRealJobAndStartsNoneTwice) {
  std::uint64_t changes = 0;
  {
    const LocalWorld world;
    ASSERT_EQ(in_child(world, {}), 0);
    std::ifstream{world.work() / "changes"} >> changes;
    check(world);
  }
  ASSERT_GT(changes, 50U);
  int died = 0;
  for (int i = 0; i < kDeaths; ++i) {
    const std::uint64_t at = 1 + changes * static_cast<std::uint64_t>(i) / kDeaths;
    SCOPED_TRACE("change " + std::to_string(at));
    const LocalWorld world;
    const auto fault = i % 2 == 0 ? fault_vfs::Fault::kDie : fault_vfs::Fault::kTear;
    const int status = in_child(world, {.fault = fault, .at = at});
    if (status == fault_vfs::kExitCode) {
      ++died;
      ASSERT_EQ(in_child(world, {}), 0);
    } else {
      ASSERT_EQ(status, 0);  // events came together, and there were fewer writes
    }
    check(world);
  }
  EXPECT_GE(died, kDeaths / 2);
}

}  // namespace
}  // namespace commensal::cluster::local_crash_test
