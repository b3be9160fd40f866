// SPDX-License-Identifier: Apache-2.0
// The parts of a gang over several nodes: what they say, what is made of it, and who keeps them
// together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <random>

#include "coordinator/engines/local/gang_head.h"
#include "tests/coordinator/local_world.h"

namespace commensal::cluster::local::gang_test {
namespace {

using namespace std::chrono_literals;
using Kind = EngineEvent::Kind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::string without_end(const std::string& line) {
  EXPECT_TRUE(line.ends_with('\n'));
  return line.substr(0, line.size() - 1);
}

Outcome exited(int code, std::string reason = "why") {
  return {Kind::kExited, code, std::move(reason)};
}

TEST(GangTalkTest, ReportsAndOrdersComeBackAsTheyWere) {
  for (const Report& report :
       std::vector<Report>{PartReady{3, 4321}, PartEnded{0, exited(3, "rank 1 \"ended\"\nwith 3")},
                           PartEnded{1, {Kind::kTakenBack, 143, "taken back"}},
                           PartEnded{2, {Kind::kVanished, std::nullopt, "gone"}}}) {
    EXPECT_EQ(report_of(without_end(line_of(report))), report);
  }
  for (const Order& order : std::vector<Order>{StartRanks{80}, StopRanks{1500ms}}) {
    EXPECT_EQ(order_of(without_end(line_of(order))), order);
  }
}

TEST(GangTalkTest, NoLineIsLongerThanLaunchersCarry) {
  for (const std::string& reason :
       {std::string(5000, 'x'), std::string(5000, '\n'), std::string(5000, '\xff')}) {
    const std::string line = line_of(PartEnded{1, exited(2, reason)});
    EXPECT_LE(line.size(), kLongestLine);
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    const auto report = report_of(without_end(line));
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(std::get<PartEnded>(*report).outcome.exit_code, 2);
    EXPECT_THAT(std::get<PartEnded>(*report).outcome.reason, ::testing::EndsWith("..."));
  }
}

TEST(GangTalkTest, OtherLinesAreNone) {
  for (const char* line :
       {"", "hello", "{}", "[]", "3", "null", R"({"ready":3})", R"({"ready":{"group":1}})",
        R"({"ended":{"group":1}})", R"({"ready":{"group":-1,"port":"x"}})", R"({"start":{}})",
        R"({"stop":{"grace_ms":"soon"}})", "{\"ready\":"}) {
    EXPECT_FALSE(report_of(line).has_value()) << line;
    EXPECT_FALSE(order_of(line).has_value()) << line;
  }
}

TEST(GangTalkTest, PiecesBecomeLines) {
  LineReader reader;
  EXPECT_THAT(reader.add("one\ntw"), ElementsAre("one"));
  EXPECT_THAT(reader.add(""), IsEmpty());
  EXPECT_THAT(reader.add("o\n\nthree\n"), ElementsAre("two", "", "three"));
  for (int i = 0; i < 1000; ++i) EXPECT_THAT(reader.add(std::string(1000, 'x')), IsEmpty());
  const auto lines = reader.add("\nnext\n");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_LT(lines[0].size(), 10'000U) << "what has no end does not grow";
  EXPECT_EQ(lines[1], "next");
}

TEST(GangTalkTest, WhoReadsNoMoreIsNoError) {
  ::signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  EXPECT_TRUE(write_line(ends[1], "a line\n"));
  ::close(ends[0]);
  EXPECT_FALSE(write_line(ends[1], "another\n"));
  ::close(ends[1]);
  EXPECT_THROW((void)write_line(ends[1], "x\n"), std::system_error);
}

class GangBookTest : public ::testing::Test {
 protected:
  void all_ready() {
    for (const std::size_t group : {2U, 0U, 1U}) book_.note(PartReady{group, 1000 + int(group)});
  }
  GangBook book_{{"a", "b", "c"}};
};

TEST_F(GangBookTest, RanksStartWhenAllAreThereAndMeetAtTheFirstOnesPort) {
  book_.note(PartReady{2, 1002});
  book_.note(PartReady{2, 1002});
  book_.note(PartReady{0, 1000});
  EXPECT_FALSE(book_.all_ready());
  book_.note(PartReady{1, 1001});
  EXPECT_TRUE(book_.all_ready());
  EXPECT_EQ(book_.port(), 1000);
}

TEST_F(GangBookTest, AllEndWell) {
  all_ready();
  for (const std::size_t group : {1U, 0U}) book_.note(PartEnded{group, exited(0)});
  EXPECT_FALSE(book_.has_cause()) << "one goes on";
  book_.note(PartEnded{2, exited(0)});
  EXPECT_TRUE(book_.all_ended());
  EXPECT_EQ(book_.outcome("srun ended with 0"), exited(0, "all ranks ended with 0"));
}

TEST_F(GangBookTest, TheFirstFailureCountsAndNamesItsNode) {
  all_ready();
  book_.note(PartEnded{0, exited(0)});
  book_.note(PartEnded{1, exited(3, "rank 4 ended with 3")});
  EXPECT_TRUE(book_.has_cause());
  book_.note(PartEnded{2, {Kind::kTakenBack, 143, "taken back"}});
  book_.taken_back();
  EXPECT_EQ(book_.outcome("srun ended with 0"), exited(3, "rank 4 ended with 3 (node b)"));
}

TEST_F(GangBookTest, AFailureCountsMoreThanKeepersThatWereToldToEnd) {
  all_ready();
  book_.note(PartEnded{0, {Kind::kVanished, std::nullopt, "SIGTERM"}});
  book_.note(PartEnded{1, exited(3, "rank 4 ended with 3")});
  book_.note(PartEnded{2, {Kind::kVanished, std::nullopt, "SIGTERM"}});
  EXPECT_EQ(book_.outcome("").exit_code, 3);
}

TEST_F(GangBookTest, AKeeperThatIsGoneCountsMoreThanThoseThatEndForIt) {
  all_ready();
  book_.note(PartEnded{0, {Kind::kVanished, std::nullopt, "its keeper got SIGTERM"}});
  book_.note(PartEnded{2, {Kind::kVanished, std::nullopt, "its keeper got SIGTERM"}});
  EXPECT_EQ(book_.outcome("srun ended with 137"),
            (Outcome{Kind::kVanished, std::nullopt,
                     "its keeper on b is gone and left no outcome (srun ended with 137)"}));
}

TEST_F(GangBookTest, WhereAllKeepersWereToldToEndTheFirstSaysSo) {
  all_ready();
  for (const std::size_t group : {1U, 0U, 2U}) {
    book_.note(PartEnded{group, {Kind::kVanished, std::nullopt, "SIGTERM"}});
    EXPECT_TRUE(book_.has_cause());
  }
  EXPECT_EQ(book_.outcome("").reason, "SIGTERM (node b)");
}

TEST_F(GangBookTest, TakenBackHasTheFirstCodeThatIsNotZero) {
  all_ready();
  book_.taken_back();
  book_.taken_back();
  EXPECT_EQ(book_.outcome("").exit_code, 0);
  book_.note(PartEnded{0, {Kind::kTakenBack, 0, "taken back"}});
  book_.note(PartEnded{1, {Kind::kTakenBack, 143, "taken back"}});
  book_.note(PartEnded{2, {Kind::kTakenBack, std::nullopt, "taken back before it began"}});
  EXPECT_EQ(book_.outcome(""), (Outcome{Kind::kTakenBack, 143, "taken back"}));
}

TEST_F(GangBookTest, AllThatEndedWellBeforeItWasTakenBackHaveEndedWell) {
  all_ready();
  for (const std::size_t group : {0U, 1U, 2U}) book_.note(PartEnded{group, exited(0)});
  book_.taken_back();
  book_.told_to_end();
  EXPECT_EQ(book_.outcome("").kind, Kind::kExited);
}

TEST_F(GangBookTest, KeepersThatNeverCameAreNamed) {
  book_.note(PartReady{1, 0});
  EXPECT_THAT(book_.outcome("srun ended with 1").reason,
              AllOf(HasSubstr("no keeper on a, c"), HasSubstr("srun ended with 1")));
  book_.waited_in_vain(600s);
  EXPECT_TRUE(book_.has_cause());
  EXPECT_THAT(book_.outcome("srun was killed").reason, HasSubstr("no keeper on a, c within 600 s"));
  EXPECT_EQ(book_.outcome("").kind, Kind::kVanished);
}

TEST_F(GangBookTest, WhatSlurmEndsIsLost) {
  all_ready();
  book_.told_to_end();
  EXPECT_EQ(book_.outcome("").kind, Kind::kVanished);
  EXPECT_THAT(book_.outcome("").reason, HasSubstr("SIGTERM, but not from the coordinator"));
}

TEST_F(GangBookTest, ReportsOfNodesThatThereAreNotAndSecondOnesChangeNothing) {
  all_ready();
  book_.note(PartReady{3, 1});
  book_.note(PartEnded{77, exited(3)});
  EXPECT_FALSE(book_.has_cause());
  book_.note(PartEnded{1, exited(0)});
  book_.note(PartEnded{1, exited(9)});
  EXPECT_FALSE(book_.has_cause());
}

TEST(GangBookLawTest, WhateverComesTheOutcomeHasAReasonAndNothingFailedIsWell) {
  std::mt19937 random{20261126};
  for (int round = 0; round < 2000; ++round) {
    GangBook book{{"a", "b"}};
    bool bad = false;
    for (int i = 0; i < 8; ++i) {
      const std::size_t group = random() % 3;
      switch (random() % 6) {
        case 0:
        case 1: book.note(PartReady{group, 7}); break;
        case 2: book.note(PartEnded{group, exited(0)}); break;
        case 3:
          bad = bad || (group < 2 && !book.all_ended());
          book.note(PartEnded{group, exited(1)});
          break;
        case 4: book.taken_back(); break;
        default: book.told_to_end(); break;
      }
    }
    const Outcome outcome = book.outcome("srun ended with 0");
    EXPECT_FALSE(outcome.reason.empty());
    EXPECT_EQ(outcome.kind == Kind::kVanished, !outcome.exit_code.has_value());
    if (outcome.kind == Kind::kExited && outcome.exit_code == 0) {
      EXPECT_TRUE(book.all_ended()) << round;
    }
    const bool failed = outcome.kind == Kind::kExited && outcome.exit_code != 0;
    EXPECT_TRUE(bad || !failed) << round;
  }
}

/// A head whose launcher is a script that speaks as keepers do.
class GangHeadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::sigprocmask(SIG_SETMASK, nullptr, &signals_), 0);
    std::filesystem::create_directories(world_.state() / "jobs");
    std::filesystem::create_directories(world_.state() / "logs");
    folder_.make();
    placed_.devices = {{"a", 0}, {"b", 0}};
    placed_.uuids = {"host", "host"};
    held_.grace = 0ms;
  }
  void TearDown() override {
    const timespec none{};
    sigset_t taken;
    sigemptyset(&taken);
    for (const int number : {SIGTERM, SIGCHLD}) sigaddset(&taken, number);
    while (::sigtimedwait(&taken, nullptr, &none) > 0) {  // what came late is for nobody
    }
    ASSERT_EQ(::sigprocmask(SIG_SETMASK, &signals_, nullptr), 0);
  }
  Outcome run(const std::string& script, GangHead::Waits waits = {}) {
    placed_.launcher = {"/bin/sh", "-c", script};
    GangHead head{folder_, held_, placed_, waits};
    return head.run();
  }
  static std::string say(const Report& report) {
    return "echo '" + without_end(line_of(report)) + "'\n";
  }

  sigset_t signals_{};
  LocalWorld world_;
  const AttemptFolder folder_{world_.state(), {JobId{"7"}, 1}};
  HeldJob held_;
  Placed placed_;
};

TEST_F(GangHeadTest, SaysStartWithThePortOnceAllAreThere) {
  const Outcome outcome = run(
      say(PartReady{1, 0}) + "test ! -e " + folder_.path().native() + "/begun || exit 9\n" +
      say(PartReady{0, 4321}) + "read -r order\ntest \"$order\" = '" +
      without_end(line_of(StartRanks{4321})) + "' || exit 8\ntest -e " + folder_.path().native() +
      "/begun || exit 7\n" + say(PartEnded{0, exited(0)}) + say(PartEnded{1, exited(0)}));
  EXPECT_EQ(outcome, exited(0, "all ranks ended with 0"));
}

TEST_F(GangHeadTest, AFailureIsAnOrderToTheOthers) {
  const Outcome outcome =
      run(say(PartReady{0, 1}) + say(PartReady{1, 0}) + "read -r start\n" +
          say(PartEnded{1, exited(3, "rank 1 ended with 3")}) +
          "read -r order\ntest \"$order\" = '" + without_end(line_of(StopRanks{0ms})) +
          "' || exit 9\n" + say(PartEnded{0, {Kind::kTakenBack, 143, "taken back"}}));
  EXPECT_EQ(outcome, exited(3, "rank 1 ended with 3 (node b)"));
}

TEST_F(GangHeadTest, KeepersThatDoNotComeAreNotWaitedForForEver) {
  const Outcome outcome = run(say(PartReady{1, 0}) + "cat > /dev/null; exec sleep 1000", {0s, 0s});
  EXPECT_EQ(outcome.kind, Kind::kVanished);
  EXPECT_THAT(outcome.reason, HasSubstr("no keeper on a"));
  EXPECT_FALSE(folder_.has_begun());
}

TEST_F(GangHeadTest, OthersWordsAreNoReports) {
  const Outcome outcome = run("echo hello; printf '%s' '{\"ready\":'; exit 4");
  EXPECT_EQ(outcome.kind, Kind::kVanished);
  EXPECT_THAT(outcome.reason, HasSubstr("/bin/sh ended with 4"));
}

TEST_F(GangHeadTest, TakenBackBeforeAllAreThereStartsNothing) {
  folder_.set_take_back(0ms);
  const Outcome outcome = run("kill -TERM $PPID\nread -r order\ntest \"$order\" = '" +
                              without_end(line_of(StopRanks{0ms})) + "' || exit 9\n" +
                              say(PartReady{0, 1}) + say(PartReady{1, 0}));
  EXPECT_EQ(outcome.kind, Kind::kTakenBack);
  EXPECT_FALSE(folder_.has_begun());
}

TEST_F(GangHeadTest, SigtermFromElsewhereIsAnEndThatIsLost) {
  const Outcome outcome = run(say(PartReady{0, 1}) + say(PartReady{1, 0}) +
                              "read -r start\nkill -TERM $PPID\nread -r order\n" +
                              say(PartEnded{0, exited(143)}) + say(PartEnded{1, exited(143)}));
  EXPECT_EQ(outcome.kind, Kind::kVanished);
  EXPECT_THAT(outcome.reason, StartsWith("its keeper got SIGTERM"));
}

TEST_F(GangHeadTest, ALauncherThatDoesNotEndIsKilledAfterTheGrace) {
  const Outcome outcome = run(say(PartReady{0, 1}) + say(PartReady{1, 0}) + "read -r start\n" +
                                  say(PartEnded{0, exited(5, "rank 0 ended with 5")}) +
                                  "trap '' TERM; while :; do sleep 1000; done",
                              {600s, 0s});
  EXPECT_EQ(outcome.exit_code, 5);
}

TEST_F(GangHeadTest, WhatHasBegunBeforeIsNotStarted) {
  ASSERT_TRUE(folder_.set_begun());
  EXPECT_THROW((void)run(say(PartReady{0, 1}) + say(PartReady{1, 0}) + "read -r start"),
               std::runtime_error);
}

TEST_F(GangHeadTest, OnlySeveralNodesWithALauncherNeedOne) {
  EXPECT_FALSE(needs_head(placed_));
  placed_.launcher = {"srun"};
  EXPECT_TRUE(needs_head(placed_));
  placed_.devices = {{"a", 0}, {"a", 1}};
  EXPECT_FALSE(needs_head(placed_));
}

}  // namespace
}  // namespace commensal::cluster::local::gang_test
