// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/cluster/authorisation.h"
#include "coordinator/cluster/job_json.h"
#include "coordinator/cluster/node_job.h"
#include "coordinator/cluster/output_reader.h"
#include "coordinator/cluster/request_field.h"
#include "coordinator/wire/json_text.h"
#include "coordinator/wire/messages.h"

namespace commensal::cluster {
namespace {

using keys::AllowedKey;
using nlohmann::json;

constexpr std::size_t kOutputPart = std::size_t{128} << 10U;

RequestRefused forbidden(const std::string& reason) { return {"forbidden", reason}; }

void check_allowed(const AllowedKey& caller, std::string_view type,
                   const std::optional<std::string>& tenant) {
  const Verdict verdict = authorise(caller, type, tenant);
  if (!verdict.allowed) throw forbidden(verdict.reason);
}

/// A submission acts for its own tenant, and looks at the job that it follows.
void check_submission(const ClusterCoordinator& coordinator, const AllowedKey& caller,
                      const json& request) {
  check_allowed(caller, "submit", std::nullopt);
  std::optional<JobSpec> spec;
  try {
    spec = spec_from_json(request.value("job", json{}));
  } catch (const std::invalid_argument& error) {
    throw RequestRefused("malformed", error.what());
  }
  check_allowed(caller, "submit", spec->tenant.empty() ? "default" : spec->tenant);
  if (spec->after) check_allowed(caller, "explain", coordinator.tenant_of(spec->after->str()));
}

void check_caller(const ClusterCoordinator& coordinator, const AllowedKey& caller,
                  const std::string& type, const json& request) {
  if (type == "submit") {
    check_submission(coordinator, caller, request);
  } else if (type == "inputs" || type == "add_input" || type == "remove_input") {
    const std::string tenant = wire::text_of(request, "tenant");
    check_allowed(caller, type, tenant.empty() ? "default" : tenant);
  } else {
    const std::string id = wire::text_of(request, "id");
    check_allowed(caller, type, id.empty() ? std::nullopt : coordinator.tenant_of(id));
  }
}

/// Leaves what is of other tenants out of lists.
void narrow(json& list, const AllowedKey& caller, const char* tenant) {
  json seen = json::array();
  for (json& entry : list) {
    if (may_see(caller, wire::text_of(entry, tenant))) seen.push_back(std::move(entry));
  }
  list = std::move(seen);
}

void narrow_answer(json& answer, const AllowedKey& caller, std::string_view type) {
  if (type == "tenants") narrow(answer.at("tenants"), caller, "name");
  if (type != "nodes") return;
  for (json& node : answer.at("nodes")) {
    if (const auto report = node.find("report"); report != node.end()) {
      narrow(report->at("jobs"), caller, "tenant");
    }
  }
}

/// Bytes as the characters of the same numbers: any output fits into JSON, and comes out as it was.
std::string as_characters(std::string_view bytes) {
  std::string characters;
  characters.reserve(bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80U) {
      characters += c;
    } else {  // two bytes of UTF-8
      characters += static_cast<char>(0xC0U | byte >> 6U);
      characters += static_cast<char>(0x80U | (byte & 0x3FU));
    }
  }
  return characters;
}

std::string as_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// The jobs that a caller may see, as a JSON list.
std::string queue_of(ClusterCoordinator& coordinator, const AllowedKey* caller, const json& request,
                     TimePoint now) {
  std::string jobs = "[";
  coordinator.queue(request, now, [&](const JobRecord& job, const json& shown) {
    if (caller != nullptr && !may_see(*caller, job.spec.tenant)) return;
    if (jobs.size() > 1) jobs += ',';
    jobs += as_text(shown);
  });
  return jobs += ']';
}

json read_log(ClusterCoordinator& coordinator, json request, TimePoint now) {
  request["type"] = "logs";
  json answer = coordinator.answer(request, now);
  const json files = std::exchange(answer["files"], json::array());
  answer.erase("files");
  answer["ranks"] = files.size();
  try {
    const auto rank = request.value("rank", std::uint64_t{0});
    const OutputPlace from{request.value("file", ""), request.value("offset", std::uint64_t{0})};
    OutputPart part{"", from, false};
    if (rank < files.size()) {
      part = read_output(files.at(rank).get<std::string>(), from, kOutputPart);
    }
    answer["text"] = as_characters(part.bytes);
    answer["file"] = part.next.file;
    answer["offset"] = part.next.offset;
    answer["more"] = part.more;
  } catch (const json::exception&) {
    throw RequestRefused("malformed", "rank and offset are numbers, file is text");
  } catch (const std::runtime_error& error) {
    throw RequestRefused("unavailable", error.what());
  }
  return answer;
}

json take_report(const Nodes& nodes, const AllowedKey* caller, json& request, TimePoint now) {
  if (caller == nullptr) {
    throw forbidden(
        "a node reports with a key of its own: commensal keys allow NAME KEY --role node");
  }
  json report = request.value("report", json{});
  json answer = json::object();
  try {
    const json told = request.value("placements", json{});
    NodeReports::check(report);
    nodes.placements.check(told);  // all of it is looked at before anything of it is taken
    json orders = nodes.orders.exchange(caller->name, report, request.value("orders", json{}));
    if (!orders.is_null()) answer["orders"] = std::move(orders);
    json placements = nodes.placements.exchange(caller->name, told, now);
    if (!placements.is_null()) answer["placements"] = std::move(placements);
    nodes.reports.take(caller->name, std::move(report), now);
  } catch (const std::invalid_argument& problem) {
    throw RequestRefused("malformed", problem.what());
  }
  return answer;
}

/// An operator's change of the class of a job that is none of the cluster's, on a node that
/// reports. The same request again says how far it has come.
json set_class(const ClusterCoordinator& coordinator, NodeOrders& orders, const json& request) {
  const std::string node = wire::text_of(request, "node");
  const std::string job = wire::text_of(request, "job");
  if (node.empty() || job.empty()) throw RequestRefused("malformed", "it names a node and a job");
  const auto job_class = field<JobClass>(request, "class");
  const auto attempt = attempt_of_node_job(job);
  if (attempt && coordinator.tenant_of(attempt->job.str())) {
    throw RequestRefused("refused", fmt::format("{} is the cluster's job {}: its class follows "
                                                "from its tenant's quota",
                                                job, attempt->job.str()));
  }
  const auto said = orders.ask(node, job, job_class, std::chrono::milliseconds::zero());
  if (const std::string problem = orders.why_not(node, job);
      said.outcome == wire::Outcome::kDeferred && !problem.empty()) {
    throw RequestRefused("unavailable", problem);
  }
  return {
      {"node", node}, {"job", job}, {"outcome", to_string(said.outcome)}, {"reason", said.reason}};
}

}  // namespace

json read_request(const std::vector<std::string>& frames) {
  if (frames.size() != 1) {
    throw RequestRefused("malformed", fmt::format("a message is one frame, not {}", frames.size()));
  }
  if (frames.front().size() > wire::kMaxFrameBytes) {
    throw RequestRefused("oversized", fmt::format("a message has at most {} bytes, not {}",
                                                  wire::kMaxFrameBytes, frames.front().size()));
  }
  json request;
  try {
    request = wire::parse_json(frames.front());
  } catch (const wire::BadJson& problem) {
    throw RequestRefused("malformed", fmt::format("a message {}", problem.what()));
  }
  if (!request.is_object()) throw RequestRefused("malformed", "a message is a JSON object");
  const auto version = request.find("v");
  if (version == request.end() || *version != wire::kProtocolVersion) {
    throw RequestRefused(
        "version", fmt::format("this coordinator speaks version {}, not {}", wire::kProtocolVersion,
                               version == request.end() ? "none" : as_text(*version)));
  }
  return request;
}

bool is_report(const json& request) { return wire::text_of(request, "type") == kHeartbeat; }

bool is_question(const json& request) {
  constexpr std::array<std::string_view, 10> kQuestions{"queue",  "explain", "logs",   "read_log",
                                                        "nodes",  "tenants", "inputs", "state",
                                                        "health", kHeartbeat};
  return std::ranges::find(kQuestions, wire::text_of(request, "type")) != kQuestions.end();
}

std::string Reply::text() const {
  std::string all = as_text(object);
  if (!jobs) return all;
  const std::string_view more{object.empty() ? "" : ","};
  return fmt::format("{{\"jobs\":{}{}{}", *jobs, more, std::string_view{all}.substr(1));
}

Reply answer_request(ClusterCoordinator& coordinator, const Nodes& nodes, Caller asker,
                     json request, TimePoint now) {
  const AllowedKey* const caller = asker.key();
  const std::string type = wire::text_of(request, "type");
  if (caller != nullptr) check_caller(coordinator, *caller, type, request);
  if (type == kHeartbeat) return {take_report(nodes, caller, request, now)};
  if (type == "set_class") return {set_class(coordinator, nodes.orders, request)};
  if (type == "read_log") return {read_log(coordinator, std::move(request), now)};
  if (type == "queue") return {json::object(), queue_of(coordinator, caller, request, now)};
  json answer = coordinator.answer(request, now);
  if (type == "nodes") {
    nodes.reports.add_to(answer, now);
    nodes.placements.add_to(answer);
  }
  if (caller != nullptr) narrow_answer(answer, *caller, type);
  return {std::move(answer)};
}

}  // namespace commensal::cluster
