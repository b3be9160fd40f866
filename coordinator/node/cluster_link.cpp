// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/cluster_link.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>
#include <zmq.hpp>

#include "coordinator/keys/key_folder.h"
#include "coordinator/keys/remote_client.h"
#include "coordinator/wire/json_text.h"
#include "coordinator/wire/messages.h"

namespace commensal::node {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr int kUnread = 2;  // reports that wait; a newer one says more
constexpr int kAgainMs = 1000;
constexpr int kAgainAtMostMs = 10'000;
constexpr int kProbeMs = 5000;
constexpr std::int64_t kLargestAnswer = 1 << 20;  // a list of placements may be long
constexpr int kAnswersAtOnce = 16;
constexpr std::size_t kMostLeases = 16;  // of a job: one a device
constexpr double kMiB = 1 << 20;

/// Some fields of an object, those that it has.
json picked(const json& object, std::initializer_list<const char*> names) {
  json result = json::object();
  for (const char* name : names) {
    if (const auto found = object.find(name); found != object.end()) result[name] = *found;
  }
  return result;
}

json shown_device(const json& device) {
  json shown = picked(device, {"id", "name", "cores", "capacity_bytes", "granted_bytes",
                               "held_bytes", "free_bytes", "available_bytes", "outside_bytes"});
  shown["type"] = device.value("kind", "");
  shown["use"] = picked(device.value("use", json::object()),
                        {"guaranteed_share", "opportunistic_share", "oracle_share"});
  return shown;
}

json shown_job(const json& job) {
  json shown = picked(job.at("job"), {"id", "name", "tenant", "class", "world_size"});
  shown.update(picked(job, {"slowdown", "slowdown_error", "slowdown_reason", "paused",
                            "started_seconds_ago", "step"}));
  shown["memory"] = picked(job.at("memory"), {"limit_bytes", "device_bytes", "host_bytes",
                                              "parked_bytes", "live_bytes", "wanted_bytes"});
  shown["lease"] = picked(job.at("lease"), {"state", "granted_bytes", "held_bytes"});
  shown["gate"] = picked(job.at("gate"), {"law", "state", "share", "closed_seconds_total"});
  shown["share"] = picked(job.value("share", json::object()), {"now"});
  shown["devices"] = json::array();
  for (const json& device : job.value("devices", json::array())) {
    if (shown["devices"].size() < kMostLeases) shown["devices"].push_back(device);
  }
  shown["leases"] = json::array();
  for (const json& lease : job.value("leases", json::array())) {
    if (shown["leases"].size() == kMostLeases) break;
    shown["leases"].push_back(picked(lease, {"device", "held_bytes", "granted_bytes"}));
  }
  return shown;
}

}  // namespace

json node_report(const json& status, std::size_t most) {
  json devices = json::array();
  double cores = 0.0;
  double memory_mib = 0.0;
  for (const json& device : status.at("devices")) {
    devices.push_back(shown_device(device));
    if (const json& own = device.at("cores"); own.is_number()) {
      cores += own.get<double>();
      memory_mib += device.at("capacity_bytes").get<double>() / kMiB;
    }
  }
  json jobs = json::array();
  std::size_t left_out = 0;
  for (const json& job : status.at("jobs")) {
    if (job.at("ended").get<bool>()) continue;
    if (jobs.size() < most) {
      jobs.push_back(shown_job(job));
    } else {
      ++left_out;
    }
  }
  json report = picked(status.at("coordinator"), {"instance", "pid", "version", "uptime_seconds"});
  report.update({{"cores", cores},
                 {"memory_mib", memory_mib},
                 {"devices", std::move(devices)},
                 {"jobs", std::move(jobs)},
                 {"jobs_left_out", left_out}});
  return report;
}

struct ClusterLink::Socket {
  zmq::context_t context{1};
  zmq::socket_t dealer;
};

ClusterLink::ClusterLink(const Options& options, std::shared_ptr<spdlog::logger> log, TimePoint now)
    : log_(std::move(log)), address_(options.address), next_(now), heard_(now), connected_(now) {
  keys::check_address(address_);
  const keys::KeyFolder folder{options.keys_dir.empty() ? keys::default_key_folder()
                                                        : options.keys_dir};
  own_ = folder.load(options.key);
  server_ = folder.load_public(std::string{keys::kCoordinatorKey});
  socket_ = std::make_unique<Socket>();
  connect();
  log_->info("reports to the cluster's coordinator at {} with the key {}", address_,
             own_.public_key.hex());
}

void ClusterLink::connect() {
  // The context stays: to end one waits for its thread, which may be asking a name server.
  zmq::socket_t& dealer = socket_->dealer;
  dealer = zmq::socket_t{socket_->context, zmq::socket_type::dealer};
  keys::use_keys(dealer, own_, server_);
  dealer.set(zmq::sockopt::linger, 0);
  dealer.set(zmq::sockopt::ipv6, true);
  dealer.set(zmq::sockopt::immediate, true);  // nothing is kept for a coordinator that is away
  dealer.set(zmq::sockopt::sndhwm, kUnread);
  dealer.set(zmq::sockopt::maxmsgsize, kLargestAnswer);
  dealer.set(zmq::sockopt::reconnect_ivl, kAgainMs);
  dealer.set(zmq::sockopt::reconnect_ivl_max, kAgainAtMostMs);
  dealer.set(zmq::sockopt::heartbeat_ivl, kProbeMs);
  dealer.set(zmq::sockopt::heartbeat_timeout, 2 * kProbeMs);
  dealer.connect(address_);
}

ClusterLink::~ClusterLink() = default;

void ClusterLink::beat(const std::function<json()>& report, TimePoint now) {
  try {
    take_answers(now);
    if (now < next_) return;
    next_ = now + kPeriod;
    exchange(report, now);
  } catch (const zmq::error_t& error) {  // the next second may be better, and others depend on us
    ++dropped_;
    note(fmt::format("cannot be told: {}", error.what()));
  }
}

void ClusterLink::exchange(const std::function<json()>& report, TimePoint now) {
  if (now - heard_ >= kSilent) {
    note(
        fmt::format("is silent: it is away, or is another one than coordinator.pub says, or does "
                    "not allow the key {}",
                    own_.public_key.hex()));
    if (now - connected_ >= kSilent) {
      connected_ = now;
      connect();  // libzmq does not try again where it was refused
    }
  }
  // Asked first: a report that nobody reads need not be made.
  if ((socket_->dealer.get(zmq::sockopt::events) & ZMQ_POLLOUT) == 0) {
    ++dropped_;
    return;
  }
  const json message{{"v", wire::kProtocolVersion},
                     {"type", "heartbeat"},
                     {"report", report()},
                     {"orders", orders_.tell()},
                     {"placements", placements_.tell()}};
  const std::string frame = message.dump(-1, ' ', false, json::error_handler_t::replace);
  if (socket_->dealer.send(zmq::buffer(frame), zmq::send_flags::dontwait)) {
    ++sent_;
  } else {
    ++dropped_;
  }
}

void ClusterLink::take_answers(TimePoint now) {
  zmq::message_t part;
  for (int i = 0; i < kAnswersAtOnce && socket_->dealer.recv(part, zmq::recv_flags::dontwait);
       ++i) {
    heard_ = now;
    note(problem_with(part.to_string_view()));
  }
}

// What an answer says besides goes with it.
std::string ClusterLink::problem_with(std::string_view frame) {
  const json answer = wire::try_parse_json(frame).value_or(nullptr);
  const auto in_words = [](const json& what) {
    return what.dump(-1, ' ', false, json::error_handler_t::replace);
  };
  if (!answer.is_object()) return "refuses reports: no JSON object";
  if (answer.value("type", json{}) != "heartbeat") {
    return fmt::format("refuses reports: {}", in_words(answer.value("what", json{})));
  }
  try {
    orders_.take(answer.value("orders", json{}));
  } catch (const std::invalid_argument& problem) {
    return fmt::format("sends orders that are refused: {}", problem.what());
  }
  try {
    if (placements_.take(answer.value("placements", json{}))) placed_anew_ = true;
  } catch (const std::invalid_argument& problem) {
    return fmt::format("sends placements that are refused: {}", problem.what());
  }
  return "";
}

void ClusterLink::note(const std::string& problem) {
  if (problem == problem_) return;
  problem_ = problem;
  if (problem.empty()) {
    log_->info("the cluster's coordinator at {} takes reports", address_);
  } else {
    log_->warn("the cluster's coordinator at {} {}", address_, problem);
  }
}

}  // namespace commensal::node
