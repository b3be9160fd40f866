// SPDX-License-Identifier: Apache-2.0
// Any frames at a cluster coordinator, by its owner, a user, an operator or a node: each is
// answered or refused with a reason. Each line of the input is a frame; its first byte says whose
// it is.
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/requests.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/fake_engine.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal;
using namespace commensal::cluster;
using fuzz::require;
using namespace std::chrono_literals;

class NoClasses final : public ClassChanger {
 public:
  void change(const JobRecord& /*job*/, JobClass /*job_class*/) override {}
  std::vector<Outcome> outcomes() override { return {}; }
};

/// A folder in memory, for the store.
const std::filesystem::path& folder() {
  static const struct Folder {
    Folder() {
      std::string name = "/dev/shm/commensal-fuzz-XXXXXX";
      require(::mkdtemp(name.data()) != nullptr, "a folder");
      path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::filesystem::path path;
  } kFolder;
  return kFolder.path;
}

keys::AllowedKey key(const std::string& name, keys::Role role) {
  return {.name = name,
          .key = {},
          .role = role,
          .tenants = role == keys::Role::kUser ? std::vector<std::string>{"vision"}
                                               : std::vector<std::string>{},
          .created_ms = 0,
          .revoked_ms = std::nullopt};
}

/// A coordinator with an empty store.
class Cluster {
 public:
  void receive(char who, const std::string& frame) {
    const Caller caller = who == 'u'   ? Caller::of(user_)
                          : who == 'b' ? Caller::of(operator_)
                          : who == 'n' ? Caller::of(node_)
                                       : Caller::owner();
    try {
      const Reply reply = answer_request(coordinator_, {reports_, orders_, placements_}, caller,
                                         read_request({frame}), now_);
      require(!reply.text().empty(), "an answer has a text");
    } catch (const RequestRefused& refused) {
      require(refused.what()[0] != '\0', "a refusal has a reason");
    } catch (const EngineFailed& failed) {
      require(failed.what()[0] != '\0', "a refusal has a reason");
    }
    now_ += 1ms;
    coordinator_.settle(now_);
  }

 private:
  const keys::AllowedKey user_ = key("user", keys::Role::kUser);
  const keys::AllowedKey operator_ = key("operator", keys::Role::kOperator);
  const keys::AllowedKey node_ = key("fake-0", keys::Role::kNode);
  FakeWorld world_;
  NoClasses classes_;
  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("antman", {});
  std::shared_ptr<spdlog::logger> log_ =
      std::make_shared<spdlog::logger>("fuzz", std::make_shared<spdlog::sinks::null_sink_st>());
  TimePoint now_{1h};
  Store store_{folder() / "cluster.db"};
  FakeEngine engine_{world_};
  ClusterCoordinator coordinator_{
      {}, store_, engine_, classes_, *policy_, [] { return WallTime{24h}; }, log_, now_};
  NodeReports reports_;
  NodeOrders orders_{"run"};
  NodePlacements placements_{coordinator_, "run"};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const auto& left : std::filesystem::directory_iterator{folder()}) {
    std::filesystem::remove_all(left.path());
  }
  Cluster cluster;
  std::string_view text{reinterpret_cast<const char*>(data), size};
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (!line.empty()) cluster.receive(line.front(), std::string{line.substr(1)});
  }
  return 0;
}
