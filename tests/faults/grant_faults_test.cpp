// SPDX-License-Identifier: Apache-2.0
// kill -9 of a job, of the daemon and of both, after every step of every grant: the real
// NodeCoordinator and jobs that behave like ours, with a transport that delivers one message at a
// time. After each death the dead start again, and the grants must be those of an undisturbed run.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/node/node_coordinator.h"
#include "tests/sanitizers.h"

namespace commensal::node::grant_faults_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;

constexpr Bytes kCapacity = 1000_MiB;
/// With a sanitizer, which takes a minute for all of them, every fifth step stands for all.
constexpr std::size_t kEvery = testing::kSanitized ? 5 : 1;
using Grants = std::map<std::string, std::pair<Bytes, Bytes>>;  // job: told limit, held

/// One process as the coordinator's client and the allocator make it: it obeys at once and fills
/// whatever it is granted.
struct Process {
  wire::Register hello;
  Bytes limit;
  Bytes held;
  Revision revision = 0;
  bool joined = false;  ///< has heard from a coordinator in its life
};

/// A machine: one coordinator, jobs, and the messages between them.
class Machine {
 public:
  Machine() { start_daemon(false); }

  void start_job(const std::string& id, JobClass job_class, Bytes min, std::optional<Bytes> max) {
    Process process;
    process.hello.job_id = id;
    process.hello.name = id;
    process.hello.tenant = "t";
    process.hello.job_class = job_class;
    process.hello.terms.memory.min = min;
    if (max) process.hello.terms.memory.max = max;
    process.hello.pid = ++next_pid_;
    process.hello.start_ticks = static_cast<std::uint64_t>(next_pid_);
    process.hello.role = "main";
    processes_[id] = process;
    to_daemon_.emplace_back(id, process.hello);
  }
  /// As a process dies: its unread messages go with it; what it sent may still arrive.
  void kill_job(const std::string& id, bool sent_arrives) {
    const auto found = processes_.find(id);
    if (found == processes_.end()) return;
    const wire::Register hello = found->second.hello;
    processes_.erase(found);
    std::erase_if(to_jobs_, [&](const auto& letter) { return letter.first == id; });
    if (!sent_arrives) {
      std::erase_if(to_daemon_, [&](const auto& letter) { return letter.first == id; });
    }
    if (daemon_) daemon_->member_gone(JobId{id}, hello.pid, Departure::kExited, now_);
    collect();
  }
  void kill_daemon() {
    daemon_.reset();
    to_daemon_.clear();
    to_jobs_.clear();
  }
  /// Starts a coordinator; the jobs that live find it and say what they have.
  void start_daemon(bool after_crash) {
    CoordinatorConfig config;
    if (after_crash) config.recovery = 1500ms;
    Device device;
    device.capacity = kCapacity;
    device.cores = 2;
    daemon_ = std::make_unique<NodeCoordinator>(config, device, ++next_pid_, 1, now_);
    for (auto& [id, process] : processes_) {
      wire::Register again = process.hello;
      wire::UsedDevice& used = again.devices.front();
      used.held_bytes = process.held.count();
      used.revision = process.revision;
      if (process.joined) used.limit_bytes = process.limit.count();
      to_daemon_.emplace_back(id, again);
    }
  }
  void ask(const std::string& id, Bytes needed) {
    const Process& process = processes_.at(id);
    to_daemon_.emplace_back(
        id, wire::AskMemory{id, process.hello.pid, needed.count(), process.held.count()});
  }
  void set_most(const std::string& id, Bytes most) {
    if (!processes_.contains(id)) return;
    wire::SetRequest request;
    request.job = id;
    request.terms.memory = MemoryRange{processes_.at(id).hello.terms.memory.min, most};
    to_daemon_.emplace_back("command line", request);
  }

  /// Delivers the next message. False: there is none.
  bool step() {
    if (!to_daemon_.empty()) {
      const auto [peer, message] = std::move(to_daemon_.front());
      to_daemon_.pop_front();
      if (daemon_) daemon_->receive(peer, message, now_);
      collect();
      return true;
    }
    if (to_jobs_.empty()) return false;
    const auto [peer, message] = std::move(to_jobs_.front());
    to_jobs_.pop_front();
    if (const auto found = processes_.find(peer); found != processes_.end()) {
      hear(found->second, message);
    }
    return true;
  }
  void pass(Duration time) {
    now_ += time;
    if (daemon_) daemon_->tick(now_);
    collect();
  }
  /// Runs until nobody has anything to say for longer than any deadline; calls `each` per step.
  void settle(const std::function<void()>& each) {
    for (int quiet = 0; quiet < 24; ++quiet) {
      while (step()) {
        each();
        quiet = 0;
      }
      pass(250ms);
      each();
    }
  }

  [[nodiscard]] bool has_daemon() const { return daemon_ != nullptr; }
  [[nodiscard]] Bytes held() const {
    Bytes sum;
    for (const auto& [id, process] : processes_) sum += process.held;
    return sum;
  }
  [[nodiscard]] Bytes charged() const {
    return daemon_ ? daemon_->host().ledger().total_charged() : 0_B;
  }
  /// What each job may hold, by the ledger, and what it holds.
  [[nodiscard]] Grants grants() const {
    Grants result;
    for (const auto& [id, process] : processes_) {
      const LeaseKey key{JobId{id}, process.hello.pid};
      const bool known = daemon_ && daemon_->host().ledger().contains(key);
      result[id] = {known ? daemon_->host().ledger().limit(key) : 0_B, process.held};
    }
    return result;
  }
  [[nodiscard]] const std::map<std::string, Process>& processes() const { return processes_; }

 private:
  void collect() {
    if (!daemon_) return;
    for (Outgoing& out : daemon_->take_outgoing()) {
      to_jobs_.emplace_back(out.peer, std::move(out.message));
    }
  }
  void hear(Process& process, const wire::Message& message) {
    if (const auto* registered = std::get_if<wire::Registered>(&message)) {
      process.joined = true;
      process.limit = Bytes{registered->limit_bytes};
      process.revision = registered->revision;
      process.held = process.limit;
    } else if (const auto* change = std::get_if<wire::Change>(&message)) {
      wire::Answer answer{process.hello.job_id,
                          process.hello.pid,
                          change->revision,
                          wire::Outcome::kApplied,
                          0,
                          0,
                          0,
                          ""};
      if (change->revision < process.revision) {
        answer.outcome = wire::Outcome::kStale;
      } else {
        process.revision = change->revision;
        if (change->limit_bytes) process.limit = Bytes{*change->limit_bytes};
        process.held = process.limit;
      }
      answer.held_bytes = process.held.count();
      to_daemon_.emplace_back(process.hello.job_id, answer);
    } else if (const auto* error = std::get_if<wire::Error>(&message);
               error != nullptr && error->code == "unknown_job") {
      wire::Register again = process.hello;
      wire::UsedDevice& used = again.devices.front();
      used.held_bytes = process.held.count();
      used.revision = process.revision;
      if (process.joined) used.limit_bytes = process.limit.count();
      to_daemon_.emplace_back(process.hello.job_id, again);
    }
  }

  TimePoint now_{100h};  // so that the clock can go back
  std::int64_t next_pid_ = 100;
  std::unique_ptr<NodeCoordinator> daemon_;
  std::map<std::string, Process> processes_;
  std::deque<std::pair<std::string, wire::Message>> to_daemon_;
  std::deque<std::pair<std::string, wire::Message>> to_jobs_;
};

/// What happens on the machine: a grant to an empty device, one that another job makes room for,
/// one between a minimum and a maximum, a question, a change by hand.
struct Act {
  const char* name;
  std::function<void(Machine&)> begin;
};

std::vector<Act> acts() {
  return {
      {"o", [](Machine& m) { m.start_job("o", JobClass::kOpportunistic, 0_B, std::nullopt); }},
      {"g", [](Machine& m) { m.start_job("g", JobClass::kGuaranteed, 400_MiB, 400_MiB); }},
      {"p", [](Machine& m) { m.start_job("p", JobClass::kOpportunistic, 100_MiB, 300_MiB); }},
      {"ask",
       [](Machine& m) {
         if (m.processes().contains("p")) m.ask("p", 50_MiB);
       }},
      {"set", [](Machine& m) { m.set_most("o", 150_MiB); }},
  };
}

enum class Victim : std::uint8_t { kNobody, kJob, kDaemon, kBoth };

struct Death {
  Victim victim = Victim::kNobody;
  std::string job;           ///< of kJob and kBoth
  bool sent_arrives = true;  ///< of the killed job
  std::size_t after_steps = 0;
};

class GrantFaults : public ::testing::Test {
 protected:
  /// Plays all acts with a death after so many steps; everything dead starts again once things are
  /// quiet. Returns the grants at the end and the number of steps.
  static std::pair<Grants, std::size_t> play(const Death& death) {
    Machine machine;
    std::size_t steps = 0;
    bool dead = false;
    const auto check = [&] {
      ASSERT_LE(machine.held(), kCapacity);
      ASSERT_LE(machine.charged(), kCapacity);
    };
    const auto each = [&] {
      check();
      if (death.victim == Victim::kNobody || dead || ++steps <= death.after_steps) {
        if (death.victim == Victim::kNobody) ++steps;
        return;
      }
      dead = true;
      const Grants before = machine.grants();
      if (death.victim != Victim::kDaemon) machine.kill_job(death.job, death.sent_arrives);
      if (death.victim != Victim::kJob) machine.kill_daemon();
      // A death takes nothing from the survivors.
      for (const auto& [id, grant] : machine.grants())
        EXPECT_EQ(grant.second, before.at(id).second);
      check();
    };
    const auto all = acts();
    for (std::size_t act = 0; act < all.size(); ++act) {
      all[act].begin(machine);
      machine.settle(each);
      revive(machine, death, act, each);
    }
    // What was asked by hand is asked again: a new process does not know of it.
    all.back().begin(machine);
    machine.settle(check);
    return {machine.grants(), steps};
  }

 private:
  /// Starts again what is dead: the daemon first, then jobs of acts that were played already.
  static void revive(Machine& machine, const Death& death, std::size_t act,
                     const std::function<void()>& each) {
    if (!machine.has_daemon()) {
      machine.start_daemon(true);
      machine.settle(each);
    }
    for (std::size_t i = 0; i <= act; ++i) {
      const Act played = acts()[i];
      if (played.name == death.job && !machine.processes().contains(death.job)) {
        played.begin(machine);
        machine.settle(each);
      }
    }
  }
};

TEST_F(GrantFaults, Law3_EveryDeathAtEveryStepLeavesASoundLedgerAndTheDeadComeBack) {
  const auto [undisturbed, steps] = play({});
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(undisturbed.at("g").first, 400_MiB);
  EXPECT_EQ(undisturbed.at("o").first, 150_MiB);
  EXPECT_EQ(undisturbed.at("p").first, 300_MiB);
  std::size_t deaths = 0;
  for (const Victim victim : {Victim::kJob, Victim::kDaemon, Victim::kBoth}) {
    for (const std::string job : {"o", "g", "p"}) {
      for (const bool sent_arrives : {true, false}) {
        if (victim == Victim::kDaemon && (job != "o" || !sent_arrives)) continue;
        for (std::size_t step = 0; step < steps; step += kEvery) {
          SCOPED_TRACE("victim " + std::to_string(static_cast<int>(victim)) + " with job " + job +
                       ", after step " + std::to_string(step) +
                       (sent_arrives ? "" : ", its last messages are lost"));
          EXPECT_EQ(play({victim, job, sent_arrives, step}).first, undisturbed);
          ++deaths;
          if (HasFailure()) return;
        }
      }
    }
  }
  RecordProperty("deaths", std::to_string(deaths));
}

// The same life with a clock that jumps: forward as after a suspended machine, and backward, which
// CLOCK_MONOTONIC never does. Then waiting may take as long as the clock was set back, no more.
TEST_F(GrantFaults, Law3_AClockThatJumpsAtAnyStepChangesNoGrant) {
  const auto [undisturbed, steps] = play({});
  for (const Duration jump : {Duration{10h}, Duration{-10h}}) {
    for (std::size_t step = 0; step < steps; step += kEvery) {
      SCOPED_TRACE("after step " + std::to_string(step) + (jump > 0s ? ", forward" : ", backward"));
      Machine machine;
      std::size_t seen = 0;
      const auto each = [&] {
        ASSERT_LE(machine.held(), kCapacity);
        ASSERT_LE(machine.charged(), kCapacity);
        if (seen++ == step) machine.pass(jump);
      };
      for (const Act& act : acts()) {
        act.begin(machine);
        machine.settle(each);
      }
      if (jump < 0s) {
        machine.pass(-jump);
        machine.settle(each);
      }
      EXPECT_EQ(machine.grants(), undisturbed);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace commensal::node::grant_faults_test
