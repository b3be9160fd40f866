// SPDX-License-Identifier: Apache-2.0
// An engine without processes: what runs is what a test says.
#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/job_number.h"
#include "coordinator/wire/handover.h"

namespace commensal::cluster {

/// The calls of an engine that can be made to go wrong.
enum class EngineCall : std::uint8_t {
  kNodes,
  kHold,
  kPlace,
  kRelease,
  kTakeBack,
  kWatch,
  kAdopt,
  kForget,
  kHighestJob,
  kSetStoreStamp
};

/// Whether a call goes wrong before it did anything, or when all is done and only its answer fails.
enum class Moment : std::uint8_t { kBefore, kAfter };

/// Thrown in place of the coordinator's death: no std::exception, so that nothing takes it for an
/// error. The test catches it, drops coordinator and engine, and makes new ones of the same world.
struct CoordinatorDied {};

/// What outlives engines and coordinators: machines, and attempts on them.
///
/// A released attempt begins at once and runs until the test ends it, or `tick` does: its command
/// says how. {"exit", "3"} ends with 3 at the next tick; {"stubborn"} does not end when it is taken
/// back, but at the tick after; anything else runs on. Deterministic; no clock, no thread.
class FakeWorld {
 public:
  struct Known {
    JobSpec spec;
    std::vector<DevicePlace> placement;
    JobClass job_class = JobClass::kOpportunistic;
    bool released = false;
    bool begun = false;
    bool taken_back = false;  ///< asked for, and not ended yet
    std::optional<EngineEvent> end;
  };

  FakeWorld() : news_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  std::vector<EngineNode> nodes{make_node("fake-0", 4)};
  bool begin_at_release = true;  ///< else `begin` does
  std::map<Attempt, Known> attempts;
  std::map<Attempt, std::vector<std::string>> logs;  ///< files that a test made
  std::string store_stamp;                           ///< as the engine keeps it
  std::vector<EngineEvent> of_devices;               ///< told at each watch: kUnheld, ...
  std::vector<std::string> calls;  ///< "hold 7.1", in their order, those that failed included

  [[nodiscard]] static EngineNode make_node(const std::string& name, int devices) {
    EngineNode node{name, {}, "fake", 64'000, 262'144, true, ""};
    for (int i = 0; i < devices; ++i) node.devices.push_back(name + "-gpu-" + std::to_string(i));
    return node;
  }

  /// The next `times` calls of this kind throw EngineFailed.
  void fail(EngineCall call, Moment moment = Moment::kBefore, int times = 1) {
    faults_[{call, moment}] = {times, false};
  }
  /// The next call of this kind throws CoordinatorDied.
  void die(EngineCall call, Moment moment) { faults_[{call, moment}] = {1, true}; }
  void no_more_faults() { faults_.clear(); }

  void begin(const Attempt& attempt) {
    Known& known = attempts.at(attempt);
    if (!known.released || known.end || known.begun) return;
    known.begun = true;
    ++starts_[attempt];
    tell();
  }
  void end(const Attempt& attempt, int exit_code) {
    end_as(attempt, EngineEvent::Kind::kExited, exit_code,
           "ended with " + std::to_string(exit_code));
  }
  /// Nobody can say any more what became of a released one.
  void lose(const Attempt& attempt) {
    end_as(attempt, EngineEvent::Kind::kVanished, std::nullopt, "nobody knows");
  }
  /// Loses every trace, as an engine that was set up anew.
  void wipe(const Attempt& attempt) { attempts.erase(attempt); }

  /// Lets time pass.
  void tick() {
    for (auto& [attempt, known] : attempts) {
      if (!known.released || known.end || !known.begun) continue;
      const auto& command = known.spec.command;
      if (known.taken_back) {
        end_as(attempt, EngineEvent::Kind::kTakenBack, 137, "taken back: killed");
      } else if (command.front() == "exit") {
        end(attempt, std::stoi(command.at(1)));
      }
    }
  }

  [[nodiscard]] bool runs(const Attempt& attempt) const {
    const auto found = attempts.find(attempt);
    return found != attempts.end() && found->second.begun && !found->second.end;
  }
  /// How often its ranks were started, forgotten attempts included: never more than once.
  [[nodiscard]] int starts(const Attempt& attempt) const {
    const auto found = starts_.find(attempt);
    return found == starts_.end() ? 0 : found->second;
  }

  // For FakeEngine.
  void go_wrong(EngineCall call, Moment moment) {
    const auto found = faults_.find({call, moment});
    if (found == faults_.end()) return;
    const bool death = found->second.second;
    if (--found->second.first == 0) faults_.erase(found);
    if (death) throw CoordinatorDied{};
    throw EngineFailed("the fake engine was told to fail");
  }
  void end_as(const Attempt& attempt, EngineEvent::Kind kind, std::optional<int> exit_code,
              std::string reason) {
    Known& known = attempts.at(attempt);
    if (!known.released || known.end) return;
    known.end = EngineEvent{attempt, kind, exit_code, std::move(reason)};
    tell();
  }
  void tell() { (void)::eventfd_write(news_.get(), 1); }
  void told() {
    eventfd_t ignored = 0;
    (void)::eventfd_read(news_.get(), &ignored);
  }
  [[nodiscard]] int news() const { return news_.get(); }

 private:
  std::map<Attempt, int> starts_;
  std::map<std::pair<EngineCall, Moment>, std::pair<int, bool>> faults_;
  wire::UniqueFd news_;
};

/// Keeps the contract of Engine. All state is the world's, but for what was told: another object
/// tells it again.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(FakeWorld& world) : world_(world) { world_.tell(); }

  [[nodiscard]] std::string_view name() const noexcept override { return "fake"; }

  [[nodiscard]] std::vector<EngineNode> nodes() override {
    const Call call{world_, EngineCall::kNodes, "nodes"};
    return call.done(world_.nodes);
  }

  void hold(const Attempt& attempt, const JobSpec& spec) override {
    const Call call{world_, EngineCall::kHold, "hold", attempt};
    if (spec.command.empty()) throw std::invalid_argument("no command");
    if (!spec.directory.starts_with('/')) {
      throw std::invalid_argument("directory is not absolute: '" + spec.directory + "'");
    }
    if (!known(attempt)) world_.attempts[attempt].spec = spec;
    call.done();
  }

  void place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
             JobClass job_class) override {
    const Call call{world_, EngineCall::kPlace, "place", attempt};
    FakeWorld::Known* held = known(attempt);
    if (held == nullptr) throw EngineFailed("not held");
    for (const DevicePlace& place : placement) check(place);
    if (placement.empty()) throw EngineFailed("a placement must have a device");
    if (!held->released) {
      held->placement = placement;
      held->job_class = job_class;
    }
    call.done();
  }

  void release(const Attempt& attempt) override {
    const Call call{world_, EngineCall::kRelease, "release", attempt};
    FakeWorld::Known* placed = known(attempt);
    if (placed == nullptr || placed->placement.empty()) throw EngineFailed("not placed");
    placed->released = true;
    if (world_.begin_at_release) world_.begin(attempt);
    call.done();
  }

  void take_back(const Attempt& attempt, std::chrono::milliseconds /*grace*/) override {
    const Call call{world_, EngineCall::kTakeBack, "take_back", attempt};
    FakeWorld::Known* found = known(attempt);
    if (found != nullptr && !found->released) {
      world_.attempts.erase(attempt);
    } else if (found != nullptr && !found->end) {
      found->taken_back = true;
      const bool stays = found->begun && found->spec.command.front() == "stubborn";
      if (!stays) world_.end_as(attempt, EngineEvent::Kind::kTakenBack, 143, "taken back");
    }
    call.done();
  }

  [[nodiscard]] std::vector<EngineEvent> watch() override {
    const Call call{world_, EngineCall::kWatch, "watch"};
    world_.told();
    std::vector<EngineEvent> events;
    for (const auto& [attempt, known] : world_.attempts) {
      if (known.begun && began_.insert(attempt).second) {
        events.push_back({attempt, EngineEvent::Kind::kBegan, std::nullopt, "began"});
      }
      if (known.end && ended_.insert(attempt).second) events.push_back(*known.end);
    }
    events.insert(events.end(), world_.of_devices.begin(), world_.of_devices.end());
    return call.done(events);
  }
  [[nodiscard]] int descriptor() const noexcept override { return world_.news(); }

  [[nodiscard]] std::vector<Found> adopt() override {
    const Call call{world_, EngineCall::kAdopt, "adopt"};
    std::vector<Found> all;
    for (const auto& [attempt, known] : world_.attempts) {
      if (known.end) continue;
      all.push_back({attempt, known.begun, known.placement, known.job_class});
    }
    return call.done(all);
  }

  [[nodiscard]] std::vector<Attempt> attempts() override {
    std::vector<Attempt> all;
    for (const auto& entry : world_.attempts) all.push_back(entry.first);
    return all;
  }
  [[nodiscard]] std::string store_stamp() override { return world_.store_stamp; }
  void set_store_stamp(const std::string& stamp) override {
    const Call call{world_, EngineCall::kSetStoreStamp, "set_store_stamp"};
    world_.store_stamp = stamp;
    call.done();
  }

  [[nodiscard]] std::uint64_t highest_job() override {
    const Call call{world_, EngineCall::kHighestJob, "highest_job"};
    std::uint64_t highest = 0;
    for (const auto& [attempt, known] : world_.attempts) {
      highest = std::max(highest, job_number(attempt.job));
    }
    for (const auto& [attempt, files] : world_.logs) {
      highest = std::max(highest, job_number(attempt.job));
    }
    return call.done(highest);
  }

  void forget(const Attempt& attempt) override {
    const Call call{world_, EngineCall::kForget, "forget", attempt};
    const FakeWorld::Known* found = known(attempt);
    if (found != nullptr && found->end) {
      world_.attempts.erase(attempt);
      began_.erase(attempt);
      ended_.erase(attempt);
    }
    call.done();
  }

  [[nodiscard]] std::vector<std::string> logs(const Attempt& attempt) override {
    const auto found = world_.logs.find(attempt);
    return found == world_.logs.end() ? std::vector<std::string>{} : found->second;
  }

 private:
  /// Writes a call down and lets it go wrong where the world says so.
  class Call {
   public:
    Call(FakeWorld& world, EngineCall kind, std::string name,
         const std::optional<Attempt>& attempt = std::nullopt)
        : world_(world), kind_(kind) {
      if (attempt) name += ' ' + attempt->job.str() + '.' + std::to_string(attempt->number);
      world_.calls.push_back(std::move(name));
      world_.go_wrong(kind_, Moment::kBefore);
    }
    void done() const { world_.go_wrong(kind_, Moment::kAfter); }
    template <typename T>
    T done(T answer) const {
      done();
      return answer;
    }

   private:
    FakeWorld& world_;
    EngineCall kind_;
  };

  FakeWorld::Known* known(const Attempt& attempt) {
    const auto found = world_.attempts.find(attempt);
    return found == world_.attempts.end() ? nullptr : &found->second;
  }
  void check(const DevicePlace& place) const {
    for (const EngineNode& node : world_.nodes) {
      if (node.name == place.node && place.device >= 0 &&
          static_cast<std::size_t>(place.device) < node.devices.size()) {
        return;
      }
    }
    throw EngineFailed("no such device: " + place.node + ' ' + std::to_string(place.device));
  }

  FakeWorld& world_;
  std::set<Attempt> began_;
  std::set<Attempt> ended_;
};

}  // namespace commensal::cluster
