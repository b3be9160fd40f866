// SPDX-License-Identifier: Apache-2.0
// A running commensald gets frames that are malformed, cut, doubled, out of order, too large, or no
// ZeroMQ at all: it goes on, the jobs' leases are as before, and a sound request is served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <zmq.hpp>

#include "coordinator/wire/pages.h"
#include "coordinator/wire/paths.h"
#include "tests/coordinator/fake_job.h"

namespace commensal::node::frames_test {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMiB = 1U << 20U;
constexpr Revision kLastRevision = std::numeric_limits<Revision>::max();

/// A daemon with an opportunistic and a guaranteed job that have settled.
class FrameFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    const Finished started = folder_.start({"--memory-budget", "1000MiB"});
    ASSERT_EQ(started.code, 0) << started.output;
    opportunistic_.emplace(folder_, registration("o", JobClass::kOpportunistic, 0));
    guaranteed_.emplace(folder_, registration("g", JobClass::kGuaranteed, 400 * kMiB, 400 * kMiB));
    ASSERT_TRUE(eventually([&] { return leases() == settled(); })) << leases();
    daemon_ = folder_.pid();
  }
  void TearDown() override {
    // The same daemon, the same leases, and a third job gets what it asks for.
    EXPECT_EQ(folder_.pid(), daemon_) << "it did not start again";
    EXPECT_TRUE(eventually([&] { return leases() == settled(); })) << leases();
    const FakeJob third{folder_, registration("n", JobClass::kGuaranteed, 100 * kMiB, 100 * kMiB)};
    EXPECT_TRUE(eventually([&] {
      const json now = leases();
      return now.contains("n") && now["n"] == 100 * kMiB && now["o"] == 500 * kMiB;
    })) << leases();
  }

  static json settled() { return {{"o", 600 * kMiB}, {"g", 400 * kMiB}}; }
  [[nodiscard]] std::uint64_t granted_of_the_budget() const {
    const json device = folder_.status()["devices"][0];
    return device["granted_bytes"].get<std::uint64_t>() -
           device["beyond_budget_bytes"].get<std::uint64_t>();
  }
  /// What each living job is granted, if that is what it is charged with; else zero.
  [[nodiscard]] json leases() const {
    json result = json::object();
    const json status = folder_.status();
    for (const json& job : status["jobs"]) {
      if (job["ended"] == true) continue;
      const json& lease = job["lease"];
      const bool settled = lease["granted_bytes"] == lease["charged_bytes"];
      result[job["job"]["id"].get<std::string>()] = settled ? lease["granted_bytes"] : json(0);
    }
    return result;
  }

  /// A process in whose name a test lies; its end is noticed at once.
  class Liar {
   public:
    explicit Liar(wire::Register hello) : hello_(std::move(hello)) {
      child_ = ::fork();
      if (child_ == 0) {
        for (;;) ::pause();
      }
      std::ifstream file{"/proc/" + std::to_string(child_) + "/stat"};
      const std::string text{std::istreambuf_iterator<char>{file}, {}};
      std::istringstream fields{text.substr(text.rfind(')') + 1)};
      std::string field;
      for (int number = 3; number <= 22; ++number) fields >> field;
      hello_.pid = child_;
      hello_.start_ticks = std::stoull(field);
    }
    ~Liar() {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    Liar(const Liar&) = delete;
    Liar& operator=(const Liar&) = delete;
    wire::Register& hello() noexcept { return hello_; }

   private:
    wire::Register hello_;
    pid_t child_ = -1;
  };

  /// A connection that says what it likes.
  class Line {
   public:
    explicit Line(const DaemonFolder& folder) {
      socket_.set(zmq::sockopt::linger, 5000);
      socket_.connect(wire::ipc_endpoint(wire::control_socket_path(folder.path(), "default")));
    }
    /// Listens now and then: of more answers than a queue holds, an unread one is lost.
    void say(std::string_view frame) {
      say_unheard(frame);
      if (++said_ % 500 == 0) wait_until_heard();
    }
    void say_unheard(std::string_view frame) { (void)socket_.send(zmq::buffer(frame), {}); }
    void say_parts(const std::vector<std::string>& parts) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const bool last = i + 1 == parts.size();
        (void)socket_.send(zmq::buffer(parts[i]),
                           last ? zmq::send_flags::none : zmq::send_flags::sndmore);
      }
    }
    /// Waits until the daemon has taken everything: it answers in order.
    void wait_until_heard() {
      const std::string marker = "no job has this id " + std::to_string(++asked_);
      say_unheard(wire::encode(wire::SetRequest{marker, {}}));
      socket_.set(zmq::sockopt::rcvtimeo, 20000);
      zmq::message_t reply;
      while (socket_.recv(reply)) {
        if (reply.to_string().find(marker) != std::string::npos) return;
      }
      FAIL() << "the coordinator does not answer";
    }

   private:
    int asked_ = 0;
    int said_ = 0;
    zmq::context_t context_{1};
    zmq::socket_t socket_{context_, zmq::socket_type::dealer};
  };

  [[nodiscard]] std::uint64_t malformed() const {
    return folder_.status()["coordinator"]["malformed_frames_total"].get<std::uint64_t>();
  }
  /// Everything that a job or the command line may say, as the settled jobs would say it.
  [[nodiscard]] std::vector<std::string> sound_frames() const {
    const auto pid = static_cast<std::int64_t>(opportunistic_->pid());
    auto hello = registration("x", JobClass::kOpportunistic, 0, 0);
    hello.pid = ::getpid();
    return {wire::encode(hello),
            wire::encode(wire::Stats{"o", pid, {{"schema", 1}}, false}),
            wire::encode(wire::Answer{"o", pid, 1, wire::Outcome::kApplied, 0, 0, 600 * kMiB, ""}),
            wire::encode(wire::AskMemory{"o", pid, 0, 600 * kMiB}),
            wire::encode(wire::StatusRequest{""}),
            wire::encode(wire::SetRequest{"nobody", {.memory = MemoryRange{{}, Bytes{1}}}, true})};
  }

  DaemonFolder folder_;
  std::optional<FakeJob> opportunistic_;
  std::optional<FakeJob> guaranteed_;
  pid_t daemon_ = 0;
};

TEST_F(FrameFaults, CutAnywhere) {
  Line line{folder_};
  std::uint64_t sent = 0;
  for (const std::string& frame : sound_frames()) {
    for (std::size_t length = 0; length < frame.size(); ++length, ++sent) {
      line.say(std::string_view{frame}.substr(0, length));
    }
  }
  line.wait_until_heard();
  EXPECT_EQ(malformed(), sent) << "none of them is a message";
}

TEST_F(FrameFaults, WithBytesChangedAtRandom) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  Line line{folder_};
  // Of a process that is not there: one that survives the change is answered "unknown_job".
  const std::string frame =
      wire::encode(wire::Answer{"nobody", 1, 1, wire::Outcome::kApplied, 0, 0, 1, ""});
  for (int i = 0; i < 3000; ++i) {
    std::string changed = frame;
    for (std::size_t n = 1 + random() % 4; n > 0; --n) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    line.say(changed);
  }
  line.wait_until_heard();
  EXPECT_GT(malformed(), 0U);
}

TEST_F(FrameFaults, WhoReadsNoAnswerHoldsNobodyUp) {
  Line deaf{folder_};
  for (int i = 0; i < 5000; ++i) deaf.say_unheard("no message");
  Line line{folder_};
  line.wait_until_heard();
  eventually([&] { return malformed() == 5000U; });
}

TEST_F(FrameFaults, Oversized) {
  Line line{folder_};
  line.say(std::string(wire::kMaxFrameBytes + 1, ' '));
  line.wait_until_heard();
  EXPECT_EQ(malformed(), 1U);
  // Beyond what the transport takes, the connection ends; others are not concerned.
  Line other{folder_};
  other.say(std::string(17U << 20U, ' '));
  line.wait_until_heard();
}

TEST_F(FrameFaults, InSeveralParts) {
  Line line{folder_};
  const std::string status = wire::encode(wire::StatusRequest{""});
  line.say_parts({"", status});
  line.say_parts({status, status});
  line.say_parts(std::vector<std::string>(200, "x"));
  line.wait_until_heard();
  EXPECT_EQ(malformed(), 3U);
}

TEST_F(FrameFaults, DoubledAndOutOfOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  Liar late{registration("late", JobClass::kOpportunistic, 0, 0)};
  const std::int64_t pid = late.hello().pid;
  std::vector<std::string> life{
      wire::encode(late.hello()),
      wire::encode(wire::Stats{"late", pid, {{"schema", 1}}, false}),
      wire::encode(wire::Answer{"late", pid, 1, wire::Outcome::kApplied, 0, 0, 0, ""}),
      wire::encode(wire::Answer{"late", pid, 2, wire::Outcome::kDeferred, 0, 1, 1, "x"}),
      wire::encode(wire::Answer{"late", pid, 1, wire::Outcome::kStale, 0, 0, 0, ""}),
      wire::encode(wire::AskMemory{"late", pid, 1, 0}),
      wire::encode(wire::Stats{"late", pid, {{"schema", 1}}, true})};
  Line line{folder_};
  for (int round = 0; round < 30; ++round) {
    std::shuffle(life.begin(), life.end(), random);
    for (const std::string& frame : life) {
      line.say(frame);
      line.say(frame);
    }
  }
  line.wait_until_heard();
  EXPECT_EQ(malformed(), 0U);
  EXPECT_LE(granted_of_the_budget(), 1000 * kMiB);
  EXPECT_EQ(folder_.status("late")["jobs"][0]["lease"]["granted_bytes"], 0);
}

TEST_F(FrameFaults, NumbersAtTheirLimits) {
  Line line{folder_};
  const auto pid = static_cast<std::int64_t>(opportunistic_->pid());
  line.say(wire::encode(wire::Answer{"o", pid, kLastRevision, wire::Outcome::kApplied,
                                     kLastRevision, kLastRevision, kLastRevision, ""}));
  line.say(wire::encode(wire::AskMemory{"o", pid, kLastRevision, 600 * kMiB}));
  line.say(wire::encode(wire::AskMemory{"g", guaranteed_->pid(), kLastRevision, kLastRevision}));
  line.say(wire::encode(
      wire::Stats{"o",
                  pid,
                  {{"memory", {{"device_bytes", kLastRevision}, {"wanted_bytes", kLastRevision}}}},
                  false}));
  wire::SetRequest set;
  set.job = "o";
  set.terms.memory = MemoryRange{Bytes{kLastRevision}, Bytes{kLastRevision}};
  line.say(wire::encode(set));
  line.wait_until_heard();
}

TEST_F(FrameFaults, ARegistrationWithNumbersAtTheirLimits) {
  Line line{folder_};
  Liar liar{registration("liar", JobClass::kGuaranteed, kLastRevision, kLastRevision)};
  liar.hello().rank = std::numeric_limits<int>::min();
  liar.hello().world_size = std::numeric_limits<int>::min();
  liar.hello().epoch = kLastRevision;
  line.say(wire::encode(liar.hello()));
  line.wait_until_heard();
  EXPECT_EQ(leases()["g"], 400 * kMiB);
  EXPECT_LE(granted_of_the_budget(), 1000 * kMiB);
}

TEST_F(FrameFaults, ARevisionAtItsLimit) {
  Line line{folder_};
  Liar liar{registration("liar", JobClass::kOpportunistic, 0)};
  liar.hello().devices[0].revision = kLastRevision;
  line.say(wire::encode(liar.hello()));
  const auto pid = static_cast<std::int64_t>(opportunistic_->pid());
  line.say(wire::encode(wire::Answer{"o", pid, kLastRevision, wire::Outcome::kStale, 0, 0, 0, ""}));
  line.wait_until_heard();
}

TEST_F(FrameFaults, Law3_ALieAboutWhatIsHeldTakesNothingFromOthers) {
  Line line{folder_};
  Liar liar{registration("liar", JobClass::kOpportunistic, 0)};
  Liar other{registration("other", JobClass::kOpportunistic, 0)};
  for (Liar* one : {&liar, &other}) {  // the sum of both is small again
    one->hello().devices[0].held_bytes = kLastRevision - 5;
    line.say(wire::encode(one->hello()));
  }
  line.wait_until_heard();
  EXPECT_EQ(leases()["g"], 400 * kMiB);
  const FakeJob late{folder_, registration("l", JobClass::kOpportunistic, 0)};
  EXPECT_TRUE(eventually([&] { return leases().contains("l"); }));
  EXPECT_EQ(leases()["l"], 0) << "nothing is free, as far as one can tell";
}

/// A job that writes anything on its page, while the daemon reads it many times a second.
TEST_F(FrameFaults, APageThatIsScribbledOver) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random{seed};
  Line line{folder_};
  for (const JobClass job_class : {JobClass::kGuaranteed, JobClass::kOpportunistic}) {
    Liar liar{registration("liar", job_class, 0, 0)};
    wire::UniqueFd memfd = wire::make_page_memfd("scribbled");
    const wire::MappedPage own{memfd.get(), wire::kPageSize, true};
    auto* page = own.as<wire::JobPage>();
    page->header = {wire::kJobPageMagic, wire::kPageVersion, wire::kPageSize, 0, 0};
    std::memcpy(page->job_id, "liar", 5);
    const wire::UniqueFd pages =
        wire::connect_handover(wire::pages_socket_path(folder_.path(), "default").native());
    wire::Handover hello;
    hello.job_id = "liar";
    hello.pid = liar.hello().pid;
    hello.fds.push_back(std::move(memfd));
    hello.fds.push_back(wire::open_pidfd(hello.pid));
    wire::send_handover(pages.get(), hello);
    ASSERT_EQ(wire::receive_handover(pages.get())->kind, wire::HandoverKind::kDevicePage);
    line.say(wire::encode(liar.hello()));
    line.wait_until_heard();
    // The whole page, its header and id too: they were read once, and are not asked again.
    auto* words = own.as<wire::Word>();
    const std::uint64_t extremes[] = {0, 1, UINT64_MAX, INT64_MAX, std::uint64_t{1} << 63U};
    for (int round = 0; round < 30; ++round) {
      for (std::size_t i = 0; i < wire::kPageSize / sizeof *words; ++i) {
        words[i].store(random() % 2 == 0 ? extremes[random() % 5] : random());
      }
      const json status = folder_.status();  // a round trip: the daemon has looked meanwhile
      for (const json& job : status["jobs"]) {
        const double share = job["gate"]["share"].get<double>();
        EXPECT_TRUE(share >= 0.0 && share <= 1.0) << share;
      }
    }
    EXPECT_EQ(leases(), (json{{"o", 600 * kMiB}, {"g", 400 * kMiB}, {"liar", 0}}));
  }
}

/// Bytes on the sockets from peers that do not speak the protocol below the messages.
TEST_F(FrameFaults, NoZeroMqAndNoHandover) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  const auto connect_to = [](const std::filesystem::path& path, int type) {
    wire::UniqueFd fd{::socket(AF_UNIX, type | SOCK_CLOEXEC, 0)};
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  };
  std::vector<wire::UniqueFd> open;  // some stay connected and say no more
  for (int i = 0; i < 40; ++i) {
    std::string bytes(1 + random() % 2000, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    for (const bool pages : {false, true}) {
      wire::UniqueFd fd =
          pages ? connect_to(wire::pages_socket_path(folder_.path(), "default"), SOCK_SEQPACKET)
                : connect_to(wire::control_socket_path(folder_.path(), "default"), SOCK_STREAM);
      (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (i % 2 == 0) open.push_back(std::move(fd));
    }
  }
  Line line{folder_};
  line.wait_until_heard();
}

}  // namespace
}  // namespace commensal::node::frames_test
