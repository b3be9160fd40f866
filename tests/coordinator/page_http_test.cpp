// SPDX-License-Identifier: Apache-2.0
// The page's server with real connections: what it gives, to whom, and what it withstands.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/page/files.h"
#include "coordinator/page/http_server.h"
#include "coordinator/page/peer_user.h"
#include "coordinator/wire/handover.h"

namespace commensal::page::page_http_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kToken(64, 'c');

/// Stands in for the coordinator's loop: answers questions and requests.
class FakeLoop {
 public:
  explicit FakeLoop(Board& board, RequestBox& requests) : board_(board), requests_(requests) {}
  ~FakeLoop() { stop(); }

  void wake() {
    {
      const std::scoped_lock lock{mutex_};
      woken_ = true;
    }
    changed_.notify_all();
  }
  void start() {
    thread_ = std::thread{[this] { work(); }};
  }
  void stop() {
    {
      const std::scoped_lock lock{mutex_};
      leaving_ = woken_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] std::vector<json> seen() {
    const std::scoped_lock lock{mutex_};
    return seen_;
  }

 private:
  void work() {
    for (;;) {
      {
        std::unique_lock lock{mutex_};
        changed_.wait(lock, [&] { return woken_; });
        woken_ = false;
        if (leaving_) return;
      }
      const std::uint64_t question = board_.asked();
      for (auto& [number, request] : requests_.take()) {
        {
          const std::scoped_lock lock{mutex_};
          seen_.push_back(request);
        }
        requests_.answer(number, answer(request));
      }
      board_.answered(question);
    }
  }
  static json answer(const json& request) {
    const auto error = [](const char* code) {
      return json{{"type", "error"}, {"code", code}, {"what", "because"}};
    };
    const std::string id = request.value("id", "");
    if (id == "404") return error("unknown_job");
    if (id == "409") return error("refused");
    if (id == "503") return error("unavailable");
    if (id == "400") return error("malformed");
    return {{"type", request["type"]}, {"id", id}};
  }

  Board& board_;
  RequestBox& requests_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
  bool leaving_ = false;
  std::vector<json> seen_;
  std::thread thread_;
};

class PageHttpTest : public ::testing::Test {
 protected:
  PageHttpTest() {
    options_.token = kToken;
    options_.patience = 60s;
    board_.put({{"jobs", R"([{"id":"1"}])"}, {"nodes", "[]"}});
  }
  ~PageHttpTest() override {
    server_.reset();
    loop_.stop();
  }

  void start(bool with_loop = true) {
    if (with_loop) loop_.start();
    HttpSources sources;
    sources.board = &board_;
    sources.requests = &requests_;
    sources.look = [this] { ++looks_; };
    sources.metrics = [] { return std::string{"commensal_test 1\n"}; };
    sources.served = [this](const std::string& path, int status) {
      const std::scoped_lock lock{served_mutex_};
      ++served_[path + " " + std::to_string(status)];
    };
    server_.emplace(options_, sources);
  }
  [[nodiscard]] int port() const { return server_->address().port; }
  [[nodiscard]] httplib::Client client() const {
    httplib::Client client{"127.0.0.1", port()};
    client.set_read_timeout(60);
    return client;
  }
  [[nodiscard]] static httplib::Headers with_token() {
    return {{"Authorization", "Bearer " + kToken}};
  }
  [[nodiscard]] httplib::Result post(const json& body, const httplib::Headers& headers) const {
    return client().Post("/api/v1/requests", headers, body.dump(), "application/json");
  }

  /// Sends bytes as they are; returns all that comes back until the other side ends it.
  [[nodiscard]] std::string raw(const std::string& bytes) const {
    const wire::UniqueFd fd = connect();
    EXPECT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    return read_all(fd.get());
  }
  [[nodiscard]] wire::UniqueFd connect() const {
    wire::UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    return fd;
  }
  static std::string read_all(int fd) {
    std::string text;
    char bytes[4096];
    for (ssize_t size = 0; (size = ::recv(fd, bytes, sizeof bytes, 0)) > 0;) {
      text.append(bytes, static_cast<std::size_t>(size));
    }
    return text;
  }
  static void read_until(int fd, std::string& text, const std::string& wanted) {
    char bytes[4096];
    while (text.find(wanted) == std::string::npos) {
      const ssize_t size = ::recv(fd, bytes, sizeof bytes, 0);
      ASSERT_GT(size, 0) << "ended before " << wanted << " after: " << text;
      text.append(bytes, static_cast<std::size_t>(size));
    }
  }
  void wait_for_listeners(int count) const {
    while (board_.listeners() != count) std::this_thread::sleep_for(1ms);
  }
  [[nodiscard]] std::string live(const std::string& more = "") const {
    return "GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port()) + "\r\n" +
           more + "\r\n";
  }

  HttpOptions options_;
  Board board_{[this] { loop_.wake(); }, 2};
  RequestBox requests_{[this] { loop_.wake(); }, 8};
  FakeLoop loop_{board_, requests_};
  std::atomic<int> looks_ = 0;
  std::mutex served_mutex_;
  std::map<std::string, int> served_;
  std::optional<HttpServer> server_;
};

TEST_F(PageHttpTest, EveryFileComesWithHeadersThatKeepOthersOut) {
  start();
  for (const File& file : files()) {
    const auto answer = client().Get(std::string{file.path});
    ASSERT_TRUE(answer) << file.path;
    EXPECT_EQ(answer->status, 200) << file.path;
    EXPECT_EQ(answer->body, file.content) << file.path;
    EXPECT_EQ(answer->get_header_value("Content-Type"), file.type);
    const std::string policy = answer->get_header_value("Content-Security-Policy");
    EXPECT_THAT(policy, AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'self';"),
                              HasSubstr("frame-ancestors 'none'"), Not(HasSubstr("unsafe"))));
    EXPECT_EQ(answer->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(answer->get_header_value("X-Frame-Options"), "DENY");
    EXPECT_EQ(answer->get_header_value("Referrer-Policy"), "no-referrer");
    EXPECT_FALSE(answer->has_header("Access-Control-Allow-Origin"));
  }
  EXPECT_GE(files().size(), 5U);
}

TEST_F(PageHttpTest, ThePageHasNoScriptOrStyleInIt) {
  for (const File& file : files()) {
    if (file.path != "/") continue;
    const std::string page{file.content};
    for (const char* inside : {"<style", " style=", " onclick=", " onload=", "javascript:",
                               "http://", "https://", "//cdn"}) {
      EXPECT_THAT(page, Not(HasSubstr(inside)));
    }
    EXPECT_THAT(page, Not(::testing::ContainsRegex("<script[^>]*>[^<]")));
    return;
  }
  FAIL() << "there is no page";
}

TEST_F(PageHttpTest, TheStateIsJsonWholeAndInParts) {
  start();
  const auto state = client().Get("/api/v1/state");
  ASSERT_TRUE(state);
  EXPECT_EQ(json::parse(state->body),
            json::parse(R"({"version": 1, "jobs": [{"id": "1"}], "nodes": []})"));
  EXPECT_EQ(state->get_header_value("Content-Type"), "application/json");
  const auto jobs = client().Get("/api/v1/jobs");
  EXPECT_EQ(json::parse(jobs->body), json::parse(R"({"version": 1, "jobs": [{"id": "1"}]})"));
  const auto tenants = client().Get("/api/v1/tenants");
  EXPECT_EQ(json::parse(tenants->body), json::parse(R"({"version": 1, "tenants": null})"));
  const auto metrics = client().Get("/metrics");
  EXPECT_EQ(metrics->body, "commensal_test 1\n");
  EXPECT_THAT(metrics->get_header_value("Content-Type"), StartsWith("text/plain; version=0.0.4"));
  EXPECT_GE(looks_, 4);
}

TEST_F(PageHttpTest, OtherPathsAndMethodsAreNotThere) {
  start();
  for (const char* path : {"/nothing", "/api/v1/", "/api/v2/state", "/..", "/%2e%2e/etc/passwd",
                           "/page.css/../../x", "/api/v1/jobs/1"}) {
    const auto answer = client().Get(path, with_token());
    ASSERT_TRUE(answer) << path;
    EXPECT_EQ(answer->status, 404) << path;
    EXPECT_EQ(json::parse(answer->body)["code"], "unknown_path") << path;
  }
  httplib::Headers headers = with_token();
  EXPECT_EQ(client().Delete("/api/v1/jobs", headers, "{}", "application/json")->status, 404);
  EXPECT_EQ(client().Post("/api/v1/state", headers, "{}", "application/json")->status, 404);
}

TEST_F(PageHttpTest, AChangeReachesTheLoopAndItsAnswerComesBack) {
  start();
  const json request{{"type", "cancel"}, {"id", "7"}, {"reason", "no \"need\""}};
  const auto answer = post(request, with_token());
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(json::parse(answer->body), json({{"type", "cancel"}, {"id", "7"}}));
  EXPECT_EQ(loop_.seen(), std::vector<json>{request});
  for (const auto& [id, status] :
       std::map<std::string, int>{{"404", 404}, {"409", 409}, {"503", 503}, {"400", 400}}) {
    const auto refused = post({{"type", "cancel"}, {"id", id}}, with_token());
    EXPECT_EQ(refused->status, status);
    EXPECT_EQ(json::parse(refused->body)["what"], "because");
  }
}

TEST_F(PageHttpTest, NoChangeWithoutTokenTypeOrOrigin) {
  start();
  const std::string body = json{{"type", "cancel"}, {"id", "7"}}.dump();
  const auto status = [&](httplib::Headers headers, const char* type = "application/json") {
    return client().Post("/api/v1/requests", headers, body, type)->status;
  };
  EXPECT_EQ(status({}), 401);
  EXPECT_EQ(status({{"Authorization", "Bearer " + std::string(64, 'd')}}), 401);
  EXPECT_EQ(status({{"Authorization", kToken}}), 401);
  EXPECT_EQ(status({{"Cookie", "token=" + kToken}}), 401);
  EXPECT_EQ(status(with_token(), "text/plain"), 415);
  EXPECT_EQ(status(with_token(), "application/x-www-form-urlencoded"), 415);
  httplib::Headers headers = with_token();
  headers.emplace("Origin", "http://evil.example");
  EXPECT_EQ(status(headers), 403);
  headers = with_token();
  headers.emplace("Sec-Fetch-Site", "cross-site");
  EXPECT_EQ(status(headers), 403);
  headers = with_token();
  headers.emplace("Host", "evil.example:" + std::to_string(port()));
  EXPECT_EQ(status(headers), 403);
  EXPECT_EQ(client().Post("/api/v1/requests?token=" + kToken, {}, body, "application/json")->status,
            401)
      << "the address is no place for what changes things";
  EXPECT_TRUE(loop_.seen().empty());
}

TEST_F(PageHttpTest, OnlyChangesAreTaken) {
  start();
  const std::string nested = std::string(20'000, '[') + std::string(20'000, ']');
  for (const std::string& body : std::vector<std::string>{
           "", "{", "[]", "7", "null", R"({"type": "submit"})", R"({"type": 7})", R"({"id": "1"})",
           R"({"type": "logs", "id": "1"})", "\xff\xfe", nested,
           R"({"type": "cancel", "id": )" + nested + '}'}) {
    const auto answer = client().Post("/api/v1/requests", with_token(), body, "application/json");
    EXPECT_EQ(answer->status, 400) << body;
    EXPECT_EQ(json::parse(answer->body)["type"], "error");
  }
  const auto large = client().Post("/api/v1/requests", with_token(), std::string(200'000, ' '),
                                   "application/json");
  if (large) {  // or the connection has ended before all of it was sent
    EXPECT_EQ(large->status, 413);
  }
  EXPECT_TRUE(loop_.seen().empty());
  EXPECT_EQ(client().Get("/api/v1/state")->status, 200) << "and it goes on";
}

TEST_F(PageHttpTest, WhatIsSentIsNeverInTheHeadersOfTheAnswer) {
  start();
  const std::string host = "Host: 127.0.0.1:" + std::to_string(port()) + "\r\n";
  for (const std::string& bytes :
       {"GET /api/v1/live?x=%0d%0aX-Injected:%201&token=%0d%0aX-Injected:1 HTTP/1.1\r\n" + host +
            "\r\n",
        "GET /%0d%0aX-Injected:%201 HTTP/1.1\r\n" + host + "\r\n",
        "GET /nothing%0d%0a%0d%0a<script> HTTP/1.1\r\n" + host + "\r\n",
        "GET / HTTP/1.1\r\n" + host + "Origin: http://x%0d%0aX-Injected: 1\r\n\r\n",
        "GET / HTTP/1.1\r\n" + host + "X-Injected: 1\r\nHost: evil\r\n\r\n",
        "GET /page.css HTTP/1.1\r\n" + host + "Range: bytes=0-1\r\nX-Injected: 1\r\n\r\n"}) {
    const std::string answer = raw(bytes);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 ")) << bytes;
    EXPECT_THAT(answer, Not(HasSubstr("X-Injected"))) << bytes;
    EXPECT_THAT(answer, Not(HasSubstr("<script>"))) << bytes;
  }
}

TEST_F(PageHttpTest, ARefusedBodyIsNeverTheNextRequest) {
  start();
  const std::string host = "Host: 127.0.0.1:" + std::to_string(port()) + "\r\n";
  const std::string hidden = "GET /metrics HTTP/1.1\r\n" + host + "\r\n";
  const std::string answer =
      raw("POST /api/v1/requests HTTP/1.1\r\n" + host +
          "Content-Type: application/json\r\nContent-Length: " + std::to_string(hidden.size()) +
          "\r\n\r\n" + hidden);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(answer, Not(HasSubstr("commensal_test")));
}

TEST_F(PageHttpTest, BytesThatAreNoRequestEndTheirConnectionOnly) {
  start();
  for (const std::string& bytes :
       {std::string{"\r\n\r\n"}, std::string{"GET\r\n\r\n"}, std::string(100, '\0') + "\r\n\r\n",
        std::string{"GET / HTTP/9.9\r\n\r\n"},
        "GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n",
        std::string{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"} + "\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(100'000, 'a') + "\r\n\r\n",
        std::string{"GET / HTTP/1.1\r\nno header\r\n\r\n"}}) {
    EXPECT_THAT(raw(bytes), Not(StartsWith("HTTP/1.1 200"))) << bytes.substr(0, 40);
  }
  EXPECT_EQ(client().Get("/")->status, 200);
}

TEST_F(PageHttpTest, AListenerGetsTheStateThenWhatChanges) {
  start();
  const wire::UniqueFd fd = connect();
  const std::string request = live();
  ASSERT_GT(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  std::string text;
  read_until(fd.get(), text, R"("nodes":[]})");
  EXPECT_THAT(text, AllOf(HasSubstr("Content-Type: text/event-stream"), HasSubstr("retry: 1000\n"),
                          HasSubstr("event: state\n"), HasSubstr(R"(data: {"version":1,"jobs")")));
  text.clear();
  board_.put({{"jobs", "[]"}});
  read_until(fd.get(), text, "\n\n");
  EXPECT_THAT(text, HasSubstr(R"(data: {"version":2,"jobs":[]})"));
  EXPECT_THAT(text, Not(HasSubstr("nodes")));
}

TEST_F(PageHttpTest, WhoComesBackIsToldWhatIsNew) {
  start();
  const auto first = [&](const std::string& id) {
    const wire::UniqueFd fd = connect();
    const std::string request = live(id.empty() ? "" : "Last-Event-ID: " + id + "\r\n");
    EXPECT_GT(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    std::string text;
    read_until(fd.get(), text, "}\n\n");
    return text;
  };
  const std::string whole = first("");
  const std::size_t at = whole.find("id: ") + 4;
  const std::string id = whole.substr(at, whole.find('\n', at) - at);
  wait_for_listeners(0);
  board_.put({{"jobs", "[]"}});
  EXPECT_THAT(first(id), AllOf(HasSubstr(R"({"version":2,"jobs":[]})"), Not(HasSubstr("nodes"))));
  for (const char* other : {"ffffffff-1", "1", "-", "x-1", "00000000-99999999999999999999999"}) {
    wait_for_listeners(0);
    EXPECT_THAT(first(other), HasSubstr("nodes")) << "of another process: everything";
  }
}

TEST_F(PageHttpTest, NoMoreListenThanMayAndPlacesBecomeFree) {
  start();
  const std::string request = live();
  {
    const wire::UniqueFd one = connect();
    const wire::UniqueFd two = connect();
    for (const int fd : {one.get(), two.get()}) {
      ASSERT_GT(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), 0);
      std::string text;
      read_until(fd, text, "}\n\n");
    }
    EXPECT_EQ(board_.listeners(), 2);
    EXPECT_THAT(raw(request),
                AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("as many listen already")));
  }
  for (int i = 0; board_.listeners() > 0; ++i) {  // the server sees it when it writes
    board_.put({{"jobs", std::to_string(i)}});
    std::this_thread::sleep_for(1ms);
  }
}

TEST_F(PageHttpTest, AListenerThatDoesNotReadIsDropped) {
  options_.slow = 1s;
  start();
  const wire::UniqueFd fd = connect();
  const std::string request = live();
  ASSERT_GT(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  wait_for_listeners(1);
  for (int i = 0; board_.listeners() > 0; ++i) {
    board_.put({{"jobs", "\"" + std::string(1'000'000, static_cast<char>('a' + i % 26)) + "\""}});
    std::this_thread::sleep_for(1ms);
  }
}

TEST_F(PageHttpTest, AQuietListenerIsToldThatItIsStillThere) {
  options_.quiet = 10ms;
  start();
  const wire::UniqueFd fd = connect();
  const std::string request = live();
  ASSERT_GT(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  std::string text;
  read_until(fd.get(), text, ": still here\n\n");
}

TEST_F(PageHttpTest, ItEndsWhileOthersListenAndWait) {
  start(false);  // nobody answers
  const wire::UniqueFd fd = connect();
  const std::string request = live();
  ASSERT_GT(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
  wait_for_listeners(1);
  auto waits = std::async(std::launch::async, [&] {
    return post({{"type", "cancel"}}, with_token());
  });
  while (requests_.take().empty()) std::this_thread::sleep_for(1ms);
  server_.reset();
  const auto answer = waits.get();
  EXPECT_TRUE(!answer || answer->status == 503);
  (void)read_all(fd.get());
}

TEST_F(PageHttpTest, ACoordinatorThatIsBusyIsNotWaitedForForever) {
  options_.patience = 10ms;
  start(false);
  EXPECT_EQ(client().Get("/api/v1/state")->status, 200) << "what there is";
  const auto answer = post({{"type", "cancel"}}, with_token());
  EXPECT_EQ(answer->status, 503);
  EXPECT_THAT(json::parse(answer->body)["what"], HasSubstr("has not answered"));
}

TEST_F(PageHttpTest, APortInUseIsNamed) {
  start();
  HttpOptions second = options_;
  second.address.port = static_cast<std::uint16_t>(port());
  Board board{[] {}, 1};
  RequestBox box{[] {}, 1};
  HttpSources sources;
  sources.board = &board;
  sources.requests = &box;
  try {
    const HttpServer server{second, sources};
    ADD_FAILURE() << "two share a port";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(port())),
                                    HasSubstr("Address already in use"), HasSubstr("--http")));
  }
  second.address = {"192.0.2.1", 0};  // nobody has it (RFC 5737)
  EXPECT_THROW((HttpServer{second, sources}), std::runtime_error);
}

TEST_F(PageHttpTest, ThePortOfBeforeIsTakenAgainIfItIsFree) {
  start();
  const auto before = static_cast<std::uint16_t>(port());
  Board board{[] {}, 1};
  RequestBox box{[] {}, 1};
  HttpSources sources;
  sources.board = &board;
  sources.requests = &box;
  HttpOptions next = options_;
  next.port_before = before;
  {
    const HttpServer another{next, sources};
    EXPECT_NE(another.address().port, before) << "it is not free";
    EXPECT_NE(another.address().port, 0);
  }
  server_.reset();
  const HttpServer again{next, sources};
  EXPECT_EQ(again.address().port, before);
}

TEST_F(PageHttpTest, WhatWasServedIsCountedWithoutWordsOfOthers) {
  start();
  (void)client().Get("/api/v1/state");
  (void)client().Get("/page.css");
  (void)client().Get("/x1");
  (void)client().Get("/x2");
  (void)client().Post("/api/v1/requests", "{}", "application/json");
  const std::map<std::string, int> all{{"/api/v1/state 200", 1},
                                       {"/page.css 200", 1},
                                       {"other 404", 2},
                                       {"/api/v1/requests 401", 1}};
  for (;;) {  // counted after the answer was sent, by one thread a connection
    {
      const std::scoped_lock lock{served_mutex_};
      if (served_ == all) break;
    }
    std::this_thread::sleep_for(1ms);
  }
}

TEST_F(PageHttpTest, TheKernelSaysWhoseConnectionItIs) {
  start();
  const wire::UniqueFd fd = connect();
  sockaddr_in own{};
  socklen_t size = sizeof own;
  ASSERT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
  const std::uint16_t mine = ntohs(own.sin_port);
  const auto there = static_cast<std::uint16_t>(port());
  EXPECT_EQ(user_of_peer("127.0.0.1", mine, "127.0.0.1", there), ::geteuid());
  EXPECT_EQ(user_of_peer("127.0.0.2", mine, "127.0.0.1", there), std::nullopt);
  EXPECT_EQ(user_of_peer("127.0.0.1", 1, "127.0.0.1", there), std::nullopt)
      << "not that of who listens";
  EXPECT_EQ(user_of_peer("::1", mine, "::1", there), std::nullopt);
  EXPECT_EQ(user_of_peer("localhost", mine, "127.0.0.1", there), std::nullopt);
  EXPECT_EQ(user_of_peer("::1", mine, "127.0.0.1", there), std::nullopt);
}

}  // namespace
}  // namespace commensal::page::page_http_test
