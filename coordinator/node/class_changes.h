// SPDX-License-Identifier: Apache-2.0
// Changes of running jobs' classes that are under way, on all devices of a job together.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/node/device_coordinator.h"

namespace commensal::node {

/// Drives changes of classes.
///
/// An upgrade first gets the job's floor: until other jobs have given back what it lacks, the job
/// stays opportunistic. Then, and for the reverse at once, the class changes on all the job's
/// devices and its processes are told; one that was guaranteed keeps its floor meanwhile. Who asked
/// hears that it is applied once all of them have taken it, refused if one cannot: then all are as
/// before. If that takes longer than `kPatience` he hears that it is deferred and what it waits
/// for, and the change goes on. The newest change of a job wins.
///
/// Nothing of it outlives the coordinator: after a restart a class is what a job's processes say,
/// and an upgrade that waited has to be asked for again. Not thread safe.
class ClassChanges {
 public:
  /// Between the question and an answer that it is not done yet.
  static constexpr Duration kPatience = std::chrono::seconds(2);
  /// Finds the devices of a live job; none: it has ended.
  using DevicesOf = std::function<std::vector<DeviceCoordinator*>(const JobId&)>;

  /// Takes a change of the class that no device has a problem with.
  void ask(const PeerId& peer, const JobId& job, const wire::SetRequest& message,
           const DevicesOf& devices, TimePoint now);
  /// Takes each change as far as it can go now. Call after anything that jobs said, and by time.
  void update(const DevicesOf& devices, TimePoint now);
  [[nodiscard]] std::vector<Outgoing> take_outgoing();
  /// docs/stats.md, `jobs[].class_change`; null: none is under way.
  [[nodiscard]] nlohmann::json status(const JobId& job) const;

 private:
  enum class Stage : std::uint8_t {
    kMemory,   ///< waits for its floor
    kTelling,  ///< waits for answers
    kUndoing   ///< the same, of what it was before
  };
  struct Underway {
    wire::SetRequest message;
    Stage stage = Stage::kMemory;
    std::vector<PeerId> asked;  // who has not been answered yet
    TimePoint since;            // the first of them asked
    std::string reason;         // what it waits for
    std::string done;           // what the job has as one of its new class
  };
  using Devices = std::vector<DeviceCoordinator*>;
  /// Whether the same change is under way already.
  bool join(const PeerId& peer, const JobId& job, const wire::SetRequest& message,
            const Devices& devices, TimePoint now);
  void withdraw(const JobId& job, const Devices& devices, TimePoint now);
  /// Whether nothing of it is left to do.
  bool advance(const JobId& job, Underway& change, const Devices& devices, TimePoint now);
  void begin_telling(const JobId& job, Underway& change, const Devices& devices, TimePoint now);
  /// Who asked a while ago hears that it is not done yet.
  void defer(const JobId& job, Underway& change, const Devices& devices, TimePoint now);
  bool hear_answers(const JobId& job, Underway& change, const Devices& devices, TimePoint now);
  void reply(const JobId& job, Underway& change, const Devices& devices, wire::Outcome outcome,
             const std::string& reason);

  std::map<JobId, Underway> underway_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace commensal::node
