// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/http_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "coordinator/page/access.h"
#include "coordinator/page/files.h"
#include "coordinator/page/peer_user.h"
#include "coordinator/wire/json_text.h"

namespace commensal::page {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr int kThreadsBeside = 8;
constexpr std::size_t kMostBody = 64UL * 1024;
constexpr auto kLookAgain = 1s;  // at the node, while a listener waits

constexpr const char* kState = "/api/v1/state";
constexpr const char* kLive = "/api/v1/live";
constexpr const char* kRequests = "/api/v1/requests";
constexpr const char* kMetrics = "/metrics";

httplib::Headers security_headers() {
  return {{"Content-Security-Policy",
           "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
           "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
          {"X-Content-Type-Options", "nosniff"},
          {"X-Frame-Options", "DENY"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Resource-Policy", "same-origin"},
          {"Cross-Origin-Opener-Policy", "same-origin"},
          {"Cache-Control", "no-store"}};
}

/// One for each message of docs/cluster.md that the page may send.
bool is_change(const json& request) {
  const auto type = request.is_object() ? request.find("type") : request.end();
  return request.is_object() && type != request.end() &&
         (*type == "cancel" || *type == "resume" || *type == "drain" || *type == "undrain" ||
          *type == "quota");
}

int status_of(const json& answer) {
  if (answer.value("type", "") != "error") return 200;
  const std::string code = answer.value("code", "");
  if (code.starts_with("unknown_")) return 404;
  if (code == "refused") return 409;
  if (code == "unavailable") return 503;
  return 400;
}

void say(httplib::Response& response, int status, const std::string& what) {
  static const std::map<int, const char*> kCodes{
      {400, "malformed"}, {401, "no_token"},  {403, "not_from_here"}, {404, "unknown_path"},
      {413, "oversized"}, {415, "malformed"}, {503, "unavailable"}};
  const auto code = kCodes.find(status);
  response.status = status;
  response.set_content(json{{"type", "error"},
                            {"code", code == kCodes.end() ? "failed" : code->second},
                            {"what", what}}
                           .dump(),
                       "application/json");
}

std::optional<std::string> header(const httplib::Request& request, const char* name) {
  if (!request.has_header(name)) return std::nullopt;
  return request.get_header_value(name);
}

std::string token_of(const httplib::Request& request) {
  const std::string authorization = request.get_header_value("Authorization");
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.starts_with(kScheme)) return authorization.substr(kScheme.size());
  // An EventSource of a browser sends no headers of its own.
  return request.path == kLive ? request.get_param_value("token") : "";
}

Need need_of(const httplib::Request& request) {
  if (request.method != "GET" && request.method != "HEAD") return Need::kWrite;
  const bool state = request.path.starts_with("/api/") || request.path == kMetrics;
  return state ? Need::kRead : Need::kNothing;
}

bool same_user(const httplib::Request& request) {
  const auto user =
      user_of_peer(request.remote_addr, static_cast<std::uint16_t>(request.remote_port),
                   request.local_addr, static_cast<std::uint16_t>(request.local_port));
  return user && (*user == ::geteuid() || *user == 0);
}

Caller caller_of(const httplib::Request& request, Need need) {
  Caller caller;
  for (std::size_t i = 0; i < request.get_header_value_count("Host"); ++i) {
    caller.hosts.push_back(request.get_header_value("Host", i));
  }
  caller.origin = header(request, "Origin");
  caller.fetch_site = header(request, "Sec-Fetch-Site");
  caller.content_type = header(request, "Content-Type");
  caller.encoded = request.has_header("Content-Encoding");
  caller.token = token_of(request);
  caller.same_user = need == Need::kRead && caller.token.empty() && same_user(request);
  return caller;
}

/// The version in an id "EPOCH-VERSION" of this process; 0: another one's, or none.
std::uint64_t version_of(const std::string& id, const std::string& epoch) {
  if (!id.starts_with(epoch + "-")) return 0;
  std::uint64_t version = 0;
  const char* const first = id.data() + epoch.size() + 1;
  const char* const last = id.data() + id.size();
  const auto [end, error] = std::from_chars(first, last, version);
  return error == std::errc{} && end == last ? version : 0;
}

void socket_options(socket_t socket) {
  // Not SO_REUSEPORT, as the library would: two processes would share one port.
  const int yes = 1;
  (void)::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  (void)::fcntl(socket, F_SETFD, FD_CLOEXEC);
}

}  // namespace

struct HttpServer::Inside {
  Inside(HttpOptions given, HttpSources has) : options(std::move(given)), sources(std::move(has)) {
    std::uint32_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) {
      throw std::runtime_error("no random numbers");
    }
    epoch = fmt::format("{:08x}", random);
    server.set_socket_options(socket_options);
    server.new_task_queue = [] { return new httplib::ThreadPool(kMostListeners + kThreadsBeside); };
    server.set_keep_alive_max_count(1);  // a refused body is never taken for the next request
    server.set_read_timeout(options.slow.count());
    server.set_write_timeout(options.slow.count());
    server.set_payload_max_length(kMostBody);
    bind();
    rules = {names_of(options.address.host, options.address.port, options.hosts), options.token};
    route();
    thread = std::thread{[this] {
      server.listen_after_bind();
      ended = true;
    }};
  }

  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  ~Inside() {
    sources.board->close();
    sources.requests->close();
    while (!ended) {  // it may not have begun yet
      server.stop();
      std::this_thread::sleep_for(1ms);
    }
    thread.join();
  }

  void bind() {
    Address& address = options.address;
    if (address.port != 0) {
      errno = 0;
      if (server.bind_to_port(address.host, address.port)) return;
      throw std::runtime_error(fmt::format(
          "cannot serve the page on {}: {}; choose another address with --http, or --http off",
          to_string(address), errno == 0 ? "no such address" : std::strerror(errno)));
    }
    if (options.port_before && server.bind_to_port(address.host, *options.port_before)) {
      address.port = *options.port_before;
      return;
    }
    errno = 0;
    const int port = server.bind_to_any_port(address.host);
    if (port <= 0) {
      throw std::runtime_error(fmt::format(
          "cannot serve the page on {}: {}; choose another address with --http, or --http off",
          to_string(address), errno == 0 ? "no such address" : std::strerror(errno)));
    }
    address.port = static_cast<std::uint16_t>(port);
  }

  void route() {
    server.set_default_headers(security_headers());
    server.set_pre_routing_handler([this](const auto& request, auto& response) {
      const Need need = need_of(request);
      const Verdict verdict = judge(need, caller_of(request, need), rules);
      if (verdict.status == 200) return httplib::Server::HandlerResponse::Unhandled;
      say(response, verdict.status, verdict.reason);
      return httplib::Server::HandlerResponse::Handled;
    });
    server.set_error_handler([](const auto&, auto& response) {
      if (!response.body.empty()) return;
      say(response, response.status,
          response.status == 404 ? "there is nothing at this path" : "the request cannot be read");
    });
    server.set_exception_handler([](const auto&, auto& response, const std::exception_ptr&) {
      say(response, 500, "the page has failed to answer");
    });
    server.set_logger([this](const auto& request, const auto& response) {
      sources.served(known(request.path) ? request.path : "other", response.status);
    });
    for (const File& file : files()) {
      server.Get(std::string{file.path}, [file](const auto&, auto& response) {
        response.set_content(file.content.data(), file.content.size(), std::string{file.type});
      });
    }
    server.Get(kState, [this](const auto&, auto& response) {
      response.set_content(fresh()->json(), "application/json");
    });
    for (const char* name : {"coordinator", "summary", "jobs", "nodes", "tenants", "events", "load",
                             "node", "reports"}) {
      server.Get(std::string{"/api/v1/"} + name, [this, name](const auto&, auto& response) {
        const auto snapshot = fresh();
        const auto part = snapshot->parts.find(name);
        response.set_content(
            fmt::format("{{\"version\":{},\"{}\":{}}}", snapshot->version, name,
                        part == snapshot->parts.end() ? "null" : *part->second.text),
            "application/json");
      });
    }
    server.Get(kLive, [this](const auto& request, auto& response) { listen(request, response); });
    server.Post(kRequests,
                [this](const auto& request, auto& response) { change(request, response); });
    server.Get(kMetrics, [this](const auto&, auto& response) {
      (void)fresh();
      response.set_content(sources.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    });
  }

  [[nodiscard]] static bool known(const std::string& path) {
    const auto all = files();
    return path == kMetrics || path == kLive || path == kRequests || path == kState ||
           std::any_of(all.begin(), all.end(), [&](const File& file) { return file.path == path; });
  }

  std::shared_ptr<const Snapshot> fresh() {
    sources.look();
    return sources.board->fresh(options.patience);
  }

  void change(const httplib::Request& request, httplib::Response& response) {
    const json message = wire::try_parse_json(request.body).value_or(nullptr);
    if (!is_change(message)) {
      return say(response, 400,
                 "a change is a JSON object whose type is cancel, resume, drain, undrain or quota");
    }
    const auto answer = sources.requests->ask(message, options.patience);
    if (!answer) {
      return say(response, 503, "the coordinator has not answered; see what has become of it");
    }
    response.status = status_of(*answer);
    response.set_content(answer->dump(-1, ' ', false, json::error_handler_t::replace),
                         "application/json");
  }

  /// Events of one listener: the parts that have changed since the last one it had.
  void listen(const httplib::Request& request, httplib::Response& response) {
    auto listener = sources.board->listen();
    if (!listener) return say(response, 503, "as many listen already as may; close another page");
    struct State {
      Board::Listener listener;
      std::uint64_t seen;
      bool first = true;
      std::chrono::steady_clock::time_point told = std::chrono::steady_clock::now();
    };
    auto state = std::make_shared<State>(
        State{*std::move(listener), version_of(request.get_header_value("Last-Event-ID"), epoch)});
    response.set_chunked_content_provider("text/event-stream",
                                          [this, state](std::size_t, httplib::DataSink& sink) {
                                            if (sources.board->closed() || !sink.is_writable())
                                              return false;  // or nobody is there
                                            std::string text = event_for(*state);
                                            if (text.empty()) return true;
                                            state->told = std::chrono::steady_clock::now();
                                            return sink.write(text.data(), text.size());
                                          });
  }

  template <typename State>
  std::string event_for(State& state) {
    sources.look();
    std::shared_ptr<const Snapshot> snapshot;
    if (state.first) {
      snapshot = sources.board->fresh(options.patience);
      state.first = false;
      if (snapshot->version <= state.seen) return ": nothing new\n\n";
    } else {
      snapshot = sources.board->newer(
          state.seen, std::min<std::chrono::milliseconds>(kLookAgain, options.quiet));
    }
    if (snapshot) {
      const std::string text = fmt::format("retry: 1000\nid: {}-{}\nevent: state\ndata: {}\n\n",
                                           epoch, snapshot->version, snapshot->json(state.seen));
      state.seen = snapshot->version;
      return text;
    }
    const bool quiet = std::chrono::steady_clock::now() - state.told >= options.quiet;
    return quiet ? ": still here\n\n" : "";
  }

  HttpOptions options;
  HttpSources sources;
  AccessRules rules;
  std::string epoch;  // of this process: versions of another one mean nothing here
  httplib::Server server;
  std::atomic<bool> ended = false;
  std::thread thread;
};

HttpServer::HttpServer(HttpOptions options, HttpSources sources)
    : inside_(std::make_unique<Inside>(std::move(options), std::move(sources))) {}

HttpServer::~HttpServer() = default;

const Address& HttpServer::address() const noexcept { return inside_->options.address; }

}  // namespace commensal::page
