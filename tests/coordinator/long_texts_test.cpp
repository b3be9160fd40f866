// SPDX-License-Identifier: Apache-2.0
// Whatever reads text that somebody else wrote reads a MiB of anything on a small stack.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "coordinator/cluster/log_name.h"
#include "coordinator/cluster/node_job.h"
#include "coordinator/cluster/requests.h"
#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/engines/local/folder_calls.h"
#include "coordinator/engines/local/gang_talk.h"
#include "coordinator/engines/local/left_groups.h"
#include "coordinator/engines/simulator/json_section.h"
#include "coordinator/engines/slurm/slurm_texts.h"
#include "coordinator/keys/allowed_keys.h"
#include "coordinator/keys/key_folder.h"
#include "coordinator/wire/json_text.h"
#include "coordinator/wire/messages.h"
#include "tests/coordinator/hostile_texts.h"
#include "tests/coordinator/key_world.h"

namespace commensal::long_texts_test {
namespace {

using Reader = std::function<void(const std::string& text)>;

/// Readers of files: each finds the text in its own.
class LongFiles {
 public:
  LongFiles() {
    keys_.prepare();
    (void)keys_.create("peer");
    (void)keys_.create("list");
    std::filesystem::copy_file(keys_.key_file("list"), keys::AllowedStore{keys_}.file());
    cluster::local::prepare_state(folder_.path());
    attempt_.make();
  }

  std::map<std::string, Reader> readers() {
    return {
        {"a key",
         [this](const auto& text) {
           keys::write_text(keys_.key_file("peer"), text);
           (void)keys_.load("peer");
         }},
        {"a public key",
         [this](const auto& text) {
           keys::write_text(keys_.public_file("peer"), text);
           (void)keys_.load_public("peer");
         }},
        {"the list of keys",
         [this](const auto& text) {
           const keys::AllowedStore store{keys_};
           keys::write_text(store.file(), text);
           (void)store.read();
         }},
        {"a note of the local engine",
         [this](const auto& text) {
           keys::write_text(attempt_.path() / "placement.json", text);
           (void)attempt_.placed();
         }},
        {"left groups",
         [this](const auto& text) {
           keys::write_text(folder_.path() / "groups", text);
           (void)cluster::local::LeftGroups{node::kernel_group_files(), folder_.path() / "groups"};
         }},
        {"a file of the simulator",
         [this](const auto& text) {
           keys::write_text(folder_.path() / "cluster.json", text);
           (void)simulator::parse_json((folder_.path() / "cluster.json").native());
         }},
    };
  }

 private:
  keys::TestFolder folder_;
  keys::KeyFolder keys_{folder_.path() / "keys"};
  cluster::local::AttemptFolder attempt_{folder_.path(), {JobId{"7"}, 1}};
};

std::map<std::string, Reader> readers_of_texts() {
  namespace slurm = cluster::slurm;
  return {
      {"JSON", [](const auto& text) { (void)wire::parse_json(text).dump(); }},
      {"JSON of an own file",
       [](const auto& text) { (void)wire::parse_json(text, wire::kOwnFile).dump(); }},
      {"a message to the node", [](const auto& text) { (void)wire::decode(text); }},
      {"a request", [](const auto& text) { (void)cluster::read_request({text}); }},
      {"a report of a part", [](const auto& text) { (void)cluster::local::report_of(text); }},
      {"an order to a part", [](const auto& text) { (void)cluster::local::order_of(text); }},
      {"squeue", [](const auto& text) { (void)slurm::jobs_from_squeue(text); }},
      {"ids of squeue", [](const auto& text) { (void)slurm::ids_from_squeue(text); }},
      {"a time limit", [](const auto& text) { (void)slurm::time_limit_from_squeue(text); }},
      {"sinfo", [](const auto& text) { (void)slurm::nodes_from_sinfo(text); }},
      {"generic resources", [](const auto& text) { (void)slurm::gres_from(text); }},
      {"a node's state", [](const auto& text) { (void)slurm::obstacle_of_node(text, text); }},
      {"scontrol", [](const auto& text) { (void)slurm::devices_from_scontrol(text); }},
      {"nodes of scontrol",
       [](const auto& text) {
         (void)slurm::devices_from_scontrol("Nodes=" + text + " CPU_IDs=0 Mem=0 GRES=gpu:" + text +
                                            "(IDX:" + text + ") MinCPUsNode=1");
       }},
      {"sbatch", [](const auto& text) { (void)slurm::id_from_sbatch(text); }},
      {"a mark", [](const auto& text) { (void)slurm::attempt_of_mark("x", text); }},
      {"a node's job", [](const auto& text) { (void)cluster::attempt_of_node_job("job-" + text); }},
      {"a log's name", [](const auto& text) { (void)cluster::job_of_log(text); }},
  };
}

TEST(LongTextsTest, AreReadOrRefusedByEverybodyOnASmallStack) {
  LongFiles files;
  std::map<std::string, Reader> readers = readers_of_texts();
  readers.merge(files.readers());
  for (const auto& [what, text] : testing::long_texts(wire::kMaxFrameBytes)) {
    for (const auto& [who, read] : readers) {
      SCOPED_TRACE(who + " reads " + what);
      try {
        testing::on_a_small_stack([&, &call = read, &given = text] { call(given); });
      } catch (const std::exception& refused) {
        EXPECT_STRNE(refused.what(), "");
      }
    }
  }
}

std::string refusal(const std::string& text, const wire::JsonBounds& bounds = {}) {
  try {
    (void)wire::parse_json(text, bounds);
  } catch (const wire::BadJson& problem) {
    return problem.what();
  }
  return "";
}

TEST(JsonTextTest, OneValueWithinTheBoundsIsRead) {
  const std::string deep = std::string(33, '[') + std::string(33, ']');
  EXPECT_EQ(refusal(deep), "");
  EXPECT_EQ(refusal('[' + deep + ']'), "nests deeper than 32");
  EXPECT_EQ(refusal(R"({"a":)" + deep + '}'), "nests deeper than 32");
  EXPECT_EQ(refusal("[1,{},[]]", {.values = 4}), "");
  EXPECT_EQ(refusal(R"([1,{"a":2},[]])", {.values = 4}), "has more than 4 values");
  EXPECT_EQ(refusal("12345", {.bytes = 5}), "");
  EXPECT_EQ(refusal("123456", {.bytes = 5}), "has 6 bytes, more than 5");
  EXPECT_EQ(wire::parse_json(R"({"a":1,"a":[2]})"), nlohmann::json({{"a", {2}}}));
}

TEST(JsonTextTest, WhatIsNoJsonIsSaidShortlyAndPrintably) {
  for (const std::string& text :
       {std::string{}, std::string{"{"}, std::string{"1 2"}, std::string{"[1,]"},
        std::string{"1e999"}, std::string{"\"\xff\""}, std::string{"\"\x1b\""},
        std::string{R"("\ud800")"}, std::string(100'000, 'x'), std::string(1, '\0')}) {
    const std::string problem = refusal(text);
    EXPECT_TRUE(problem.starts_with("is not JSON: \"[json.exception.")) << problem;
    EXPECT_LT(problem.size(), 120U);
    EXPECT_EQ(problem.find_first_of("\x1b\xff"), std::string::npos);
    EXPECT_FALSE(wire::try_parse_json(text));
  }
  EXPECT_EQ(wire::try_parse_json("null"), nlohmann::json(nullptr));
}

}  // namespace
}  // namespace commensal::long_texts_test
