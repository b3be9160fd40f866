// SPDX-License-Identifier: Apache-2.0
// The node coordinator without its sockets: messages in, messages out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/node/class_changes.h"
#include "coordinator/node/device_coordinator.h"
#include "coordinator/node/expected_jobs.h"

namespace commensal::node {

/// Finds a GPU of the machine by the id that a process gives.
struct FoundDevice {
  std::optional<Device> device;
  std::string problem;  ///< why there is none, in words
};
using FindDevice = std::function<FoundDevice(const std::string& id)>;

/// Keeps the jobs of a node on its devices: each device has a coordinator of its own, and this one
/// knows which process is on which. What concerns more than one device is decided here: the
/// machine's cores, and gangs whose ranks are on several.
///
/// Holds no socket, file or clock: everything comes in as an argument, answers are collected until
/// `take_outgoing`. Not thread safe: one loop drives it.
class NodeCoordinator {
 public:
  /// @param topology  the machine's cores; empty: opportunistic jobs are not kept to some of them.
  /// @param find      called for a device that is not known yet; null: there is the host alone.
  NodeCoordinator(CoordinatorConfig config, Device host, std::int64_t pid,
                  std::uint64_t start_ticks, TimePoint now, CoreTopology topology = {},
                  FindDevice find = nullptr);

  /// Takes a message of a peer.
  void receive(const PeerId& peer, const wire::Message& message, TimePoint now);
  /// Replaces the list of what the cluster has placed here: a job that registers under such an id
  /// is held to it, and one that is to come is expected.
  void take_placements(const std::vector<wire::Placement>& list, TimePoint now);
  /// Notes that the cluster's coordinator has answered, whatever it said.
  void heard_of_cluster(TimePoint now) { expected_.heard(now); }
  /// What became of expected jobs since the last call, as lines for the log.
  [[nodiscard]] std::vector<std::string> take_news() { return expected_.take_news(); }
  /// Counts a frame that could not be used, and answers it.
  void receive_malformed(const PeerId& peer, const wire::BadMessage& problem);

  // What is seen of a process counts on the device where it is.
  /// Notes what a process says that it holds, before `observe_use` compares the two.
  /// @param device  another one that it uses; nothing: the one that it used first.
  void observe_held(const JobId& job, std::int64_t pid, Bytes held,
                    const std::optional<std::string>& device = std::nullopt);
  void observe_page(const JobId& job, std::int64_t pid, const PageReading& reading, TimePoint now);
  void observe_cpu(const JobId& job, std::int64_t pid, const ThreadTimes& threads,
                   std::optional<Duration> io_stalled, TimePoint now);
  void member_gone(const JobId& job, std::int64_t pid, Departure departure, TimePoint now);
  // What is seen of a job counts on each device where it has processes.
  void observe_need(const JobId& job, const ThreadTimes& threads, const wire::CoreSet& allowed,
                    TimePoint now);
  void observe_group(const JobId& job, const GroupOutcome& outcome);
  /// Notes what a device's own accounting shows of a job there.
  void observe_use(const DeviceId& device, const JobId& job, JobUse use, TimePoint now);
  /// Notes how much memory of a device anybody could take now, and what each process held at that
  /// moment, where that is told.
  void observe_available(const DeviceId& device, Bytes available, TimePoint now,
                         const std::map<std::int64_t, Bytes>& holders = {});
  /// Notes the part of the last moments in which a GPU ran anything, as its driver says. Best
  /// called about once a second.
  void observe_busy(const DeviceId& device, double share, TimePoint now);
  /// Processes of guaranteed jobs to look at now, named once: what may run beside them has changed.
  [[nodiscard]] std::vector<LeaseKey> take_timed();

  /// Takes the controllers' samples; call every `sampling_period` while `wants_sampling`.
  void sample(TimePoint now);
  /// Does what is due by time: memory, deadlines, what was not answered. Call a few times a second.
  void tick(TimePoint now);
  [[nodiscard]] bool wants_sampling() const;
  [[nodiscard]] Duration sampling_period(TimePoint now) const noexcept;
  [[nodiscard]] TimePoint next_sample() const noexcept;

  [[nodiscard]] std::vector<Outgoing> take_outgoing();
  /// docs/stats.md, "status". @param job  id or name; empty: everything.
  [[nodiscard]] nlohmann::json status(const std::string& job, TimePoint now);
  /// A job that can be explained: a live one, or one that ended within the last `kHistory`.
  struct Told {
    const DeviceCoordinator* device = nullptr;  ///< null: there is none
    const Job* job = nullptr;
    const DeviceCoordinator::Ended* ended = nullptr;  ///< null: it lives
    std::string problem;                              ///< names those that there are
  };
  /// Finds a job by id or name: a live one before an ended one, the newest of these.
  [[nodiscard]] Told find_told(const std::string& id_or_name) const;

  /// docs/stats.md, "explain". @param told  there is a job.
  [[nodiscard]] nlohmann::json explain(const Told& told, Duration last, bool series,
                                       TimePoint now) const;

  /// The machine without its GPUs; always there.
  [[nodiscard]] DeviceCoordinator& host() noexcept { return *devices_.front(); }
  [[nodiscard]] const DeviceCoordinator& host() const noexcept { return *devices_.front(); }
  /// All devices that are known, the host first. They stay where they are.
  [[nodiscard]] const std::vector<std::unique_ptr<DeviceCoordinator>>& devices() const noexcept {
    return devices_;
  }
  /// Adds a device that is not known yet, so that it is shown before a job is there.
  DeviceCoordinator& add_device(Device device, TimePoint now);
  /// The devices where a process is registered, the one that it used first before the others;
  /// empty: it is not.
  [[nodiscard]] std::vector<const DeviceCoordinator*> devices_of(const JobId& job,
                                                                 std::int64_t pid) const;

  [[nodiscard]] bool has_jobs() const;
  /// Says where it listens from now on, for `status`.
  void listens_on(std::string socket) { config_.socket = std::move(socket); }
  [[nodiscard]] bool has_job(const JobId& job) const;
  /// All live jobs, device by device; one with ranks on several devices is there more than once.
  [[nodiscard]] std::vector<const Job*> jobs() const;
  /// When the last job ended; the start if there was none. Meaningful without live jobs.
  [[nodiscard]] TimePoint idle_since() const;
  [[nodiscard]] std::uint64_t malformed_total() const;
  [[nodiscard]] policies::NodeView view(TimePoint now) const;

 private:
  void handle(const PeerId& peer, const wire::Register& message, TimePoint now);
  void handle(const PeerId& peer, const wire::Stats& message, TimePoint now);
  void handle(const PeerId& peer, const wire::StatusRequest& message, TimePoint now);
  void handle(const PeerId& peer, const wire::SetRequest& message, TimePoint now);
  void handle(const PeerId& peer, const wire::ExplainRequest& message, TimePoint now);
  void handle(const PeerId& peer, const wire::MapRequest& message, TimePoint now);
  /// What a process says about itself goes to its device.
  template <typename Message>
  void hand_on(const PeerId& peer, const Message& message, TimePoint now);

  [[nodiscard]] DeviceCoordinator* find_device(const std::string& id) const;
  /// The same, and looks for one that is not known yet. Null: see `problem`.
  DeviceCoordinator* find_or_add(const std::string& id, std::string& problem, TimePoint now);
  /// Tells a device to which a job is new how it stands elsewhere. @param before  as it stood on a
  /// device that it has left.
  void go_on(DeviceCoordinator& to, const std::optional<Job>& before, const JobId& job,
             TimePoint now);
  /// Where a process is, as `devices_of`.
  [[nodiscard]] std::vector<DeviceCoordinator*> places_of(const JobId& job, std::int64_t pid) const;
  /// The device that a process used first.
  [[nodiscard]] DeviceCoordinator& where(const JobId& job, std::int64_t pid) const;
  [[nodiscard]] std::vector<DeviceCoordinator*> devices_with(const JobId& job) const;
  /// Where its lowest rank is; null: nowhere.
  [[nodiscard]] DeviceCoordinator* device_to_ask(const JobId& job) const;
  [[nodiscard]] FoundJob find_live(const std::string& id_or_name) const;
  [[nodiscard]] nlohmann::json job_status(const JobId& job, TimePoint now) const;
  /// The rest of a request that changes the class, and the change itself.
  void set_with_class(const PeerId& peer, const JobId& job, const wire::SetRequest& message,
                      TimePoint now);
  void update_classes(TimePoint now);
  /// Applies a change on all devices of a job.
  wire::SetReply set_on(const std::vector<DeviceCoordinator*>& devices, const JobId& job,
                        const wire::SetRequest& message, TimePoint now);
  void update_expected(TimePoint now);
  void update_gangs(TimePoint now);
  void update_cores(TimePoint now);
  void send(const PeerId& peer, wire::Message message);

  CoordinatorConfig config_;
  std::int64_t pid_;
  std::uint64_t start_ticks_;
  TimePoint started_;
  FindDevice find_;
  std::vector<std::unique_ptr<DeviceCoordinator>> devices_;
  ClassChanges class_changes_;
  ExpectedJobs expected_;
  CoreTopology topology_;
  CoreShareState core_share_;
  std::string core_share_reason_ = "all cores: no guaranteed job on the device";
  std::vector<Outgoing> outgoing_;
  std::uint64_t malformed_total_ = 0;
};

}  // namespace commensal::node
