// SPDX-License-Identifier: Apache-2.0
// The loop of commensal-coordinator.
#include "coordinator/cluster/daemon.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <zmq.hpp>

#include "allocator/base/clock.h"
#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/local_cluster.h"
#include "coordinator/cluster/node_classes.h"
#include "coordinator/cluster/node_exchange.h"
#include "coordinator/cluster/node_orders.h"
#include "coordinator/cluster/node_placements.h"
#include "coordinator/cluster/node_reports.h"
#include "coordinator/cluster/remote_door.h"
#include "coordinator/cluster/requests.h"
#include "coordinator/cluster/slurm_cluster.h"
#include "coordinator/cluster/store.h"
#include "coordinator/cluster/store_owner.h"
#include "coordinator/cluster/surroundings.h"
#include "coordinator/engines/local/local_engine.h"
#include "coordinator/node/instance_place.h"
#include "coordinator/node/service.h"
#include "coordinator/policies/registry.h"
#include "coordinator/wire/control_client.h"
#include "coordinator/wire/kernel_name.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/paths.h"
#include "coordinator/wire/router_socket.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;
using node::ExitCode;
using node::StartReport;
using namespace std::chrono_literals;

constexpr int kMessagesAtOnce = 256;  // become durable together
constexpr int kReportsAtOnce = 32;    // of nodes: thousands of them must hold nobody else up
constexpr auto kAfterFailure = 1s;    // between two tries to write down

constexpr const char* kClocks = "clocks";  // the store's note of what they have shown

constexpr auto kBetweenLooks = 1s;  // at the folder of its socket
constexpr auto kNodeAnswers = 3s;
constexpr auto kStatusAnswers = 1s;
constexpr auto kNodeAsked = 500ms;  // between two questions while it defers
constexpr int kNodeTries = 60;

/// Where a node's coordinator listens now.
std::filesystem::path node_socket(const ClusterOptions& options, const std::string& node) {
  const std::filesystem::path folder =
      wire::where_listens(node_folder(options, node), options.instance);
  return wire::control_socket_path(folder, options.instance);
}

/// Asks nodes by the answers to their heartbeats; nothing: the node does not report that job.
AskByHeartbeat ask_by_heartbeat(NodeOrders& orders) {
  return [&orders](const std::string& node,
                   const wire::Message& message) -> std::optional<wire::Message> {
    const auto* request = std::get_if<wire::SetRequest>(&message);
    if (request == nullptr || !request->job_class || !orders.reaches(node, request->job)) {
      return std::nullopt;
    }
    return orders.ask(node, request->job, *request->job_class, kNodeAnswers);
  };
}

/// A node's coordinator, by its socket or, where nobody listens at that, by its heartbeats; this
/// machine's is started by `commensal run` with the first job.
NodeClasses::Ask ask_node(const ClusterOptions& options, NodeOrders& orders) {
  if (options.commensal.empty()) {
    return [](const std::string&, const wire::Message&) -> wire::Message {
      return wire::Error{.code = "unknown_job", .what = "jobs run without commensal"};
    };
  }
  return [options, by_heartbeat = ask_by_heartbeat(orders)](
             const std::string& node, const wire::Message& message) -> wire::Message {
    const wire::ControlClient client{node_socket(options, node), kNodeAnswers};
    try {
      return ask_patiently([&](const wire::Message& asked) { return client.request(asked); },
                           message);
    } catch (const wire::CoordinatorUnreachable&) {
      if (auto answer = by_heartbeat(node, message)) return *std::move(answer);
      throw;
    }
  };
}

/// What this machine's node coordinator says of everything, for the page; of several the first.
page::NodeStatus::Ask node_status(const ClusterOptions& options) {
  const std::string first = options.nodes.empty() ? "" : options.nodes.front().name;
  return [options, first] {
    const wire::ControlClient client{node_socket(options, first), kStatusAnswers};
    const wire::Message answer = client.request(wire::StatusRequest{});
    const auto* reply = std::get_if<wire::StatusReply>(&answer);
    if (reply == nullptr) throw std::runtime_error("the node's answer is no status");
    return reply->status.dump(-1, ' ', false, json::error_handler_t::replace);
  };
}

/// What the engine calls the node that `node_status` asks.
std::string asked_node(const ClusterOptions& options) {
  return options.nodes.empty() ? this_machine().name : options.nodes.front().name;
}

Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

WallTime wall_now() {
  return std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
}

ClusterConfig config_of(const ClusterOptions& options, const node::InstancePlace& place,
                        PageService& page) {
  return {
      .policy = options.policy,
      .pid = getpid(),
      .page = page.url(),
      .page_token_file = page.token_file(),
      .retries = {.infrastructure = options.retries,
                  .semantic = options.semantic_retries,
                  .user = options.user_retries,
                  .first = from_seconds(options.first_retry_seconds)},
      .health = {.failures = options.node_failures},
      .inputs = {.failures = options.bad_input_failures},
      .grace = std::chrono::milliseconds{static_cast<std::int64_t>(options.grace_seconds * 1000)},
      .backups = options.state_dir / "backups",
      .input_lists = options.state_dir / "inputs",
      .surroundings =
          [options, &place] {
            ClusterOptions now = options;
            now.runtime_dir = place.folder();
            return describe_surroundings(now);
          },
      .observer = &page,
      .begin_anew = options.begin_anew};
}

std::filesystem::path store_file(const ClusterOptions& options) {
  std::filesystem::path file = options.state_dir / "cluster.db";
  if (options.begin_anew) return file;
  check_nothing_was_kept_aside(file);
  check_not_lost(file, options.state_dir / options.engine / "jobs");
  return file;
}

json refusal(const std::string& code, const std::string& what) {
  return {{"v", wire::kProtocolVersion}, {"type", "error"}, {"code", code}, {"what", what}};
}

class Daemon {
 public:
  Daemon(const ClusterOptions& options, node::InstancePlace& place,
         std::shared_ptr<spdlog::logger> log)
      : log_(std::move(log)),
        place_(place),
        options_(options),
        socket_path_(cluster_socket_path(place.folder(), options.instance)),
        signals_(node::block_signals()),
        policy_(policies::make_policy(options.policy, options.policy_options)),
        store_(store_file(options)),
        engine_(make_engine(options)),
        classes_(class_asker(options, ask_node(options, orders_), ask_by_heartbeat(orders_)),
                 kNodeAsked, kNodeTries),
        page_(options.page, options.state_dir, options.version, node_status(options), log_,
              asked_node(options)),
        coordinator_(config_of(options, place, page_), store_, *engine_, classes_, *policy_,
                     wall_now, log_, clock_.now()),
        socket_(wire::ipc_endpoint(socket_path_)),
        door_(make_remote_door(options, log_)),
        logs_(
            {.folder = logs_folder(options), .keep = options.keep_logs},
            [this](const JobId& id) { return coordinator_.end_of(id); },
            {.read = [] { return read_clocks(); },
             .counted = CountedTime{store_.note(kClocks)},
             .keep =
                 [this](const std::string& text) {
                   store_.put_note(kClocks, text);
                   store_.commit();
                 }},
            log_) {
    log_->info("commensal-coordinator {} '{}' began: pid {}, policy {}, engine {}, state in {}",
               options.version, options.instance, getpid(), options.policy, engine_->name(),
               options.state_dir.native());
    place_.note({socket_path_});
    if (const std::string warning = place_.warning(); !warning.empty()) log_->warn("{}", warning);
  }

  void run() {
    while (!leaving_) {
      wait();
      serve();
    }
    orders_.stop();  // or its thread would be waited for
    std::error_code ignored;
    if (place_.is_whole()) std::filesystem::remove(socket_path_, ignored);
  }

 private:
  /// What was asked and changes nothing, and by whose key; none: by the owner.
  struct Question {
    json request;
    std::optional<keys::AllowedKey> key;
    [[nodiscard]] Caller caller() const { return key ? Caller::of(*key) : Caller::owner(); }
  };
  struct Answer {
    std::string peer;
    bool remote = false;
    Reply reply{};
    std::optional<Question> question{};
  };

  void wait() {
    std::vector<zmq::pollitem_t> items{{socket_.handle(), 0, ZMQ_POLLIN, 0},
                                       {nullptr, signals_.get(), ZMQ_POLLIN, 0},
                                       {nullptr, page_.descriptor(), ZMQ_POLLIN, 0}};
    const bool engine_tells = engine_->descriptor() >= 0;
    if (engine_tells) items.push_back({nullptr, engine_->descriptor(), ZMQ_POLLIN, 0});
    const std::size_t asked_for_place = items.size();
    if (can_tell_place_) items.push_back({nullptr, place_.descriptor(), ZMQ_POLLIN, 0});
    if (door_) door_->add_to(items);
    const TimePoint due = std::max(coordinator_.next_wake(), not_before_);
    TimePoint wake = std::min({due, page_.next_wake(), logs_.next_wake(), next_place_});
    if (door_) wake = std::min<TimePoint>(wake, door_->next_wake());
    const auto left = std::clamp<std::chrono::milliseconds>(
        std::chrono::ceil<std::chrono::milliseconds>(wake - clock_.now()), 0ms, 60'000ms);
    try {
      zmq::poll(items.data(), items.size(), left);
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
      return;
    }
    if (items[1].revents != 0) take_signal();
    if (can_tell_place_ && items[asked_for_place].revents != 0) can_tell_place_ = place_.tell();
    if (clock_.now() >= next_place_) look_at_place();
    must_settle_ = (engine_tells && items[3].revents != 0) || clock_.now() >= due;
  }

  /// Makes lock and socket again if something has removed them: else commands start another
  /// coordinator, which the store refuses.
  void look_at_place() {
    next_place_ = clock_.now() + kBetweenLooks;
    can_tell_place_ = place_.descriptor() >= 0;
    if (place_.is_whole()) return;
    const std::filesystem::path before = place_.folder();
    const std::string problem = place_.move([this](const std::filesystem::path& folder) {
      socket_path_ = cluster_socket_path(folder, options_.instance);
      socket_.bind(wire::ipc_endpoint(socket_path_));
      place_.note({socket_path_});
      if (options_.log_file.empty()) {
        node::move_log(*log_, wire::log_path(folder, "cluster-" + options_.instance));
      }
    });
    if (problem.empty()) {
      log_->warn("lock or socket in {} was removed: they are in {} again", before.native(),
                 place_.folder().native());
    } else if (problem != place_problem_) {
      log_->error("lock or socket in {} was removed; commands do not reach this coordinator: {}",
                  before.native(), problem);
    }
    place_problem_ = problem;
  }

  void take_signal() {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) != sizeof info) return;
    log_->info("leaves: signal {}; jobs run on", info.ssi_signo);
    leaving_ = true;
  }

  /// Answers what has arrived. Nobody hears of a change before it is durable.
  void serve() {
    std::vector<Answer> answers;
    std::vector<page::RequestBox::Request> changes;  // of the page; answers in their place
    std::string peer;
    std::vector<std::string> frames;
    try {
      for (int i = 0; i < kMessagesAtOnce && socket_.receive(peer, frames); ++i) {
        Answer& one = answers.emplace_back(Answer{.peer = peer});
        answer(
            one, [&] { return read_request(frames); }, Caller::owner());
      }
      if (door_) serve_others(answers);
      changes = page_.take();
      for (page::RequestBox::Request& change : changes) {
        Answer one;
        answer(
            one, [&] { return change.second; }, Caller::owner());
        change.second = std::move(one.reply.object);
      }
      if (must_settle_) coordinator_.settle(clock_.now());
      not_before_ = {};
    } catch (const StoreFailed& error) {
      log_->error("{}", error.what());
      coordinator_.take_back_changes();
      not_before_ = clock_.now() + kAfterFailure;
      for (Answer& answer : answers) answer_without_store(answer, error);
      for (auto& [number, answer] : changes) answer = refusal("unavailable", error.what());
    }
    page_.publish(coordinator_, clock_.now(), [this] { return reports_.picture(clock_.now()); });
    for (auto& [number, answer] : changes) page_.answer(number, std::move(answer));
    for (const Answer& answer : answers) {
      const std::string frame = answer.reply.text();
      const bool sent =
          answer.remote ? door_->send(answer.peer, frame) : socket_.send(answer.peer, frame);
      if (!sent) log_->debug("somebody did not wait for an answer");
    }
    logs_.step(clock_.now());
  }

  /// The same for other machines, by their keys.
  void serve_others(std::vector<Answer>& answers) {
    reports_.expire(clock_.now());
    orders_.expire();
    placements_.expire(clock_.now());
    door_->look();
    RemoteDoor::Asked asked;
    reports_taken_ = 0;
    for (int i = 0; i < kMessagesAtOnce && reports_taken_ < kReportsAtOnce && door_->receive(asked);
         ++i) {
      Answer& one = answers.emplace_back(Answer{.peer = asked.peer, .remote = true});
      if (asked.caller == nullptr) {
        one.reply.object = refusal("forbidden", "this key is not allowed any more");
      } else {
        answer(
            one, [&] { return read_request(asked.frames); }, Caller::of(*asked.caller));
      }
    }
  }

  /// @param read  returns the request, or throws RequestRefused.
  void answer(Answer& answer, const std::function<json()>& read, Caller caller) {
    json request;
    answer.reply = answer_or_refuse(
        [&] {
          request = read();
          if (is_question(request)) {
            answer.question = {request, caller.key() == nullptr ? std::optional<keys::AllowedKey>{}
                                                                : *caller.key()};
          }
          // Reports come from each node each second, and leave nothing to be decided or written
          // down.
          if (is_report(request)) {
            ++reports_taken_;
          } else {
            must_settle_ = true;
          }
          return answer_to(request, caller);
        },
        caller);
    page_.count(request, answer.reply.object);
  }

  /// What could not be made durable is refused. Questions are asked again: what was answered may
  /// have been taken back.
  void answer_without_store(Answer& answer, const StoreFailed& problem) {
    answer.reply = {refusal("unavailable", problem.what())};
    if (!answer.question) return;
    try {
      const Caller caller = answer.question->caller();
      answer.reply =
          answer_or_refuse([&] { return answer_to(answer.question->request, caller); }, caller);
    } catch (const StoreFailed& error) {
      log_->error("{}", error.what());  // nor can it be read
    }
  }

  Reply answer_to(const json& request, Caller caller) {
    Reply reply = answer_request(coordinator_, {reports_, orders_, placements_}, caller, request,
                                 clock_.now());
    json& answer = reply.object;
    const json type = request.value("type", json{});
    if (type == "nodes" && door_) answer["coordinator"]["address"] = door_->address();
    answer["v"] = wire::kProtocolVersion;
    answer["type"] = type;
    return reply;
  }

  Reply answer_or_refuse(const std::function<Reply()>& answer, Caller caller) {
    try {
      return answer();
    } catch (const RequestRefused& error) {
      log_->log(caller.key() == nullptr ? spdlog::level::info : spdlog::level::debug,
                "refused ({}): {}", error.code(), error.what());
      return {refusal(error.code(), error.what())};
    } catch (const EngineFailed& error) {
      return {refusal("unavailable", error.what())};
    }
  }

  std::shared_ptr<spdlog::logger> log_;
  node::InstancePlace& place_;
  const ClusterOptions& options_;
  std::string place_problem_;  // why commands cannot find it at the moment
  TimePoint next_place_{};     // the next look at it
  bool can_tell_place_ = false;
  SteadyClock clock_;
  std::filesystem::path socket_path_;
  wire::UniqueFd signals_;
  std::unique_ptr<policies::ClusterPolicy> policy_;
  Store store_;
  std::unique_ptr<Engine> engine_;
  const std::string run_ = new_run();
  NodeOrders orders_{run_};
  NodeClasses classes_;
  PageService page_;
  ClusterCoordinator coordinator_;
  wire::RouterSocket socket_;
  NodeReports reports_;
  NodePlacements placements_{coordinator_, run_};
  std::unique_ptr<RemoteDoor> door_;  // null: this machine's user alone
  LogRetention logs_;
  TimePoint not_before_;
  int reports_taken_ = 0;  // in this step
  bool must_settle_ = true;
  bool leaving_ = false;
};

}  // namespace

std::filesystem::path cluster_socket_path(const std::filesystem::path& dir,
                                          const std::string& instance) {
  wire::check_instance_name(instance);
  // Instance names of node coordinators may be the same.
  return wire::control_socket_path(dir, "cluster-" + instance);
}

std::filesystem::path default_state_dir() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): at the start
    return value == nullptr ? "" : value;
  };
  if (std::string own = variable("COMMENSAL_STATE_DIR"); !own.empty()) {
    return std::filesystem::path{std::move(own)};
  }
  if (const std::string xdg = variable("XDG_STATE_HOME"); !xdg.empty()) {
    return std::filesystem::path{xdg} / "commensal";
  }
  const std::string home = variable("HOME");
  if (home.empty()) throw wire::BadPath("no folder for state: set COMMENSAL_STATE_DIR or HOME");
  return std::filesystem::path{home} / ".local" / "state" / "commensal";
}

ExitCode run_daemon(const ClusterOptions& options,
                    const std::function<void(const StartReport&)>& started) {
  bool reported = false;
  const auto report = [&](ExitCode code, const std::string& text) {
    if (!reported) started({code, text});
    reported = true;
    return code;
  };
  std::shared_ptr<spdlog::logger> log;
  try {
    umask(077);
    wire::prepare_runtime_dir(options.runtime_dir);
    std::filesystem::create_directories(options.state_dir.parent_path());
    wire::prepare_private_dir(options.state_dir, "state folder");
    const std::string name = "cluster-" + options.instance;
    node::InstancePlace place{options.runtime_dir, name};
    if (!place.held()) return report(ExitCode::kAlreadyRunning, place.obstacle());
    const auto file = options.log_file.empty() && !options.foreground
                          ? wire::log_path(options.runtime_dir, name)
                          : options.log_file;
    log = node::make_log("commensal-coordinator", file, options.foreground, options.log_level);
    std::optional<Daemon> daemon;
    try {
      daemon.emplace(options, place, log);
    } catch (const std::exception& error) {
      place.leave_clean();
      log->error("cannot start: {}", error.what());
      return report(ExitCode::kNoSockets, error.what());
    }
    report(ExitCode::kOk, std::to_string(getpid()));
    daemon->run();
    place.leave_clean();
    return ExitCode::kOk;
  } catch (const wire::BadPath& problem) {
    return report(ExitCode::kNoSockets, problem.what());
  } catch (const std::exception& error) {
    if (log) log->critical("gives up: {}", error.what());
    return report(ExitCode::kInternal, error.what());
  }
}

}  // namespace commensal::cluster
