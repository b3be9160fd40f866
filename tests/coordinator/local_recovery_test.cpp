// SPDX-License-Identifier: Apache-2.0
// What the local engine makes of a folder, wherever the machine or its processes stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/coordinator/local_world.h"

namespace commensal::cluster::local_recovery_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = EngineEvent::Kind;

/// What engine and keeper leave in an attempt's folder, in this order. A name that ends with .new
/// is half of a note: the power went off while it was written.
const std::vector<std::string> kSteps{"spec.json.new",   "spec.json",   "placement.json.new",
                                      "placement.json",  "released",    "lock",
                                      "keeper.json.new", "keeper.json", "begun",
                                      "result.json.new", "result.json"};
constexpr std::size_t kHeld = 2;  // steps after which it is so
constexpr std::size_t kReleased = 5;
constexpr std::size_t kBegun = 9;
constexpr std::size_t kEnded = 11;

class LocalRecoveryTest : public ::testing::Test {
 protected:
  /// Makes the folder as it is after `count` of the steps, from notes of an attempt that was run.
  void make_prefix(const Attempt& attempt, std::size_t count) {
    const local::AttemptFolder whole = finished_one();
    const local::AttemptFolder folder = world_.folder(attempt);
    fs::create_directories(folder.path());
    for (std::size_t i = 0; i < count; ++i) {
      const std::string& name = kSteps[i];
      if (name.ends_with(".new")) {
        const std::string note = text_of(whole.path() / name.substr(0, name.size() - 4));
        std::ofstream{folder.path() / name} << note.substr(0, note.size() / 2);
      } else {
        fs::remove(folder.path() / (name + ".new"));
        fs::copy_file(whole.path() / name, folder.path() / name);
      }
    }
  }

  /// An attempt that ended with 6.
  local::AttemptFolder finished_one() {
    const Attempt model{JobId{"model"}, 1};
    if (model_.empty()) {
      const auto engine = world_.make();
      start(*engine, model, spec());
      (void)end(*engine, model);
      model_ = world_.state().parent_path() / "model";
      fs::create_directories(model_ / "jobs");
      fs::rename(world_.state() / "jobs" / "model", model_ / "jobs" / "model");
    }
    return {model_, model};
  }

  [[nodiscard]] JobSpec spec() const { return world_.script("exit 6"); }
  static void start(Engine& engine, const Attempt& attempt, const JobSpec& spec) {
    engine.hold(attempt, spec);
    engine.place(attempt, {{"left", 0}}, JobClass::kOpportunistic);
    engine.release(attempt);
  }
  /// The event that an attempt ended with; kBegan if it does not come.
  static EngineEvent end(Engine& engine, const Attempt& attempt) {
    EngineEvent last;
    (void)eventually([&] {
      for (const EngineEvent& event : engine.watch()) {
        if (event.attempt == attempt && event.kind != Kind::kBegan) last = event;
      }
      if (last.kind == Kind::kBegan) wait_for_news(engine);
      return last.kind != Kind::kBegan;
    });
    return last;
  }

  LocalWorld world_;
  fs::path model_;
  const Attempt attempt_{JobId{"7"}, 1};
};

TEST_F(LocalRecoveryTest, TheStepsAreThoseThatAnAttemptLeaves) {
  const local::AttemptFolder whole = finished_one();
  for (const std::string& name : kSteps) {
    if (name.ends_with(".new")) continue;
    EXPECT_TRUE(fs::exists(whole.path() / name)) << name;
  }
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator{whole.path()}) {
    const std::string name = entry.path().filename();
    files += name != "keeper.log" ? 1 : 0;  // for people; nobody reads it
  }
  EXPECT_EQ(files, 7U);
}

TEST_F(LocalRecoveryTest, WhereverItStoppedTheCoordinatorGoesOnAndRanksStartOnce) {
  for (std::size_t count = 0; count <= kEnded; ++count) {
    SCOPED_TRACE("after " + std::to_string(count) + " steps");
    const Attempt attempt{JobId{"go-on-" + std::to_string(count)}, 1};
    make_prefix(attempt, count);
    const auto engine = world_.make();
    const auto found = engine->adopt();
    ASSERT_EQ(found.size(), count >= kHeld && count < kBegun ? 1U : 0U);
    for (const Engine::Found& one : found) EXPECT_FALSE(one.running);
    if (count < kBegun) start(*engine, attempt, spec());
    const EngineEvent event = end(*engine, attempt);
    const bool lost = count >= kBegun && count < kEnded;
    EXPECT_EQ(event.kind, lost ? Kind::kVanished : Kind::kExited) << event.reason;
    EXPECT_EQ(event.exit_code, lost ? std::nullopt : std::optional{6});
    EXPECT_EQ(world_.starts(attempt), count < kBegun ? 1 : 0);
    engine->forget(attempt);
    EXPECT_FALSE(fs::exists(world_.folder(attempt).path()));
  }
}

TEST_F(LocalRecoveryTest, WhereverItStoppedItCanBeTakenBack) {
  for (std::size_t count = 0; count <= kEnded; ++count) {
    SCOPED_TRACE("after " + std::to_string(count) + " steps");
    const Attempt attempt{JobId{"back-" + std::to_string(count)}, 1};
    make_prefix(attempt, count);
    const auto engine = world_.make();
    engine->take_back(attempt, 1min);
    EXPECT_THAT(engine->adopt(), IsEmpty());
    if (count < kReleased) {
      EXPECT_THAT(engine->watch(), IsEmpty());
      EXPECT_FALSE(fs::exists(world_.folder(attempt).path()));
    } else {
      const Kind expected = count < kBegun   ? Kind::kTakenBack
                            : count < kEnded ? Kind::kVanished
                                             : Kind::kExited;
      EXPECT_EQ(end(*engine, attempt).kind, expected);
    }
    EXPECT_EQ(world_.starts(attempt), 0);
    engine->forget(attempt);
  }
}

TEST_F(LocalRecoveryTest, WhereverItStoppedWhileItWasTakenBackItDoesNotStart) {
  for (std::size_t count = kReleased; count < kBegun; ++count) {
    SCOPED_TRACE("after " + std::to_string(count) + " steps");
    const Attempt attempt{JobId{"note-" + std::to_string(count)}, 1};
    make_prefix(attempt, count);
    world_.folder(attempt).set_take_back(1min);
    const auto engine = world_.make();
    EXPECT_THAT(engine->adopt(), IsEmpty());
    engine->release(attempt);
    EXPECT_EQ(end(*engine, attempt).kind, Kind::kTakenBack);
    EXPECT_EQ(world_.starts(attempt), 0);
  }
}

/// The keeper's own part: it finds the note though nobody sends it a signal any more.
TEST_F(LocalRecoveryTest, AKeeperThatStartsLateSeesThatItsAttemptWasTakenBack) {
  make_prefix(attempt_, kReleased);
  world_.folder(attempt_).set_take_back(1min);
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::execl(COMMENSAL_KEEPER, COMMENSAL_KEEPER, world_.state().c_str(), "7", "1", nullptr);
    ::_exit(9);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(world_.folder(attempt_).outcome()->kind, Kind::kTakenBack);
  EXPECT_EQ(world_.starts(attempt_), 0);
}

TEST_F(LocalRecoveryTest, AFolderThatIsHalfRemovedGoes) {
  make_prefix(attempt_, kEnded);
  const fs::path folder = world_.folder(attempt_).path();
  fs::rename(folder, folder.parent_path() / ".removed-1");
  const auto engine = world_.make();
  EXPECT_THAT(engine->adopt(), IsEmpty());
  EXPECT_THAT(engine->watch(), IsEmpty());
  EXPECT_FALSE(fs::exists(folder.parent_path()));
}

TEST_F(LocalRecoveryTest, NotesThatCannotBeReadLoseTheAttemptByNameAndNoOther) {
  const Attempt other{JobId{"8"}, 1};
  for (const std::string name : {"spec.json", "placement.json", "result.json"}) {
    make_prefix(attempt_, name == "result.json" ? kEnded : kReleased);
    make_prefix(other, kHeld);
    std::ofstream{world_.folder(attempt_).path() / name} << "{\"job\": 5";
    const auto engine = world_.make();
    const EngineEvent event = end(*engine, attempt_);
    EXPECT_EQ(event.kind, Kind::kVanished);
    EXPECT_THAT(event.reason, HasSubstr(name));
    EXPECT_EQ(engine->adopt().size(), 1U);
    start(*engine, other, spec());
    EXPECT_EQ(end(*engine, other).exit_code, 6);
    engine->forget(attempt_);
    engine->forget(other);
  }
}

TEST_F(LocalRecoveryTest, AnotherProcessWithTheKeepersNumberIsLeftAlone) {
  make_prefix(attempt_, kBegun);
  auto self = local::own_identity();
  self.start_ticks += 1;  // ours is another one
  world_.folder(attempt_).set(local::KeeperNote{self, {}});
  const auto engine = world_.make();
  engine->take_back(attempt_, 0ms);  // SIGTERM would end this test
  EXPECT_EQ(end(*engine, attempt_).kind, Kind::kVanished);
}

TEST_F(LocalRecoveryTest, AfterARestartOfTheMachineItsJobsHaveVanished) {
  make_prefix(attempt_, kBegun);
  auto self = local::own_identity();
  self.boot = "0f0f0f0f-0000-0000-0000-000000000000";
  world_.folder(attempt_).set(local::KeeperNote{self, {}});
  const auto engine = world_.make();
  EXPECT_THAT(end(*engine, attempt_).reason, HasSubstr("machine was started again"));
}

TEST_F(LocalRecoveryTest, FoldersOfOthersAreNotTouched) {
  (void)world_.make();
  const fs::path jobs = world_.state() / "jobs";
  fs::create_directories(jobs / "7" / "01");  // not how we write 1
  fs::create_directories(jobs / "7" / "notes");
  fs::create_directories(jobs / ".hidden" / "1");
  std::ofstream{jobs / "file"} << "x";
  fs::create_directory_symlink("/", jobs / "link");
  const auto engine = world_.make();
  EXPECT_THAT(engine->adopt(), IsEmpty());
  for (const char* name : {"7/01", "7/notes", ".hidden/1", "file", "link"}) {
    EXPECT_TRUE(fs::exists(jobs / name)) << name;
  }
}

}  // namespace
}  // namespace commensal::cluster::local_recovery_test
