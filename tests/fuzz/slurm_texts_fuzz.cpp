// SPDX-License-Identifier: Apache-2.0
// Any output of Slurm's commands: read, or refused by EngineFailed. And any words of a job's user
// in what scontrol prints of its job: the devices are Slurm's own, or none are known.
#include <algorithm>
#include <string>

#include "coordinator/engines/slurm/slurm_texts.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal::cluster;
using namespace commensal::cluster::slurm;
using commensal::fuzz::require;

template <typename Read>
void read(Read what) {
  try {
    (void)what();
  } catch (const EngineFailed& failed) {
    require(failed.what()[0] != '\0', "a refusal has a reason");
  }
}

bool is_plain(const std::string& name) {
  return std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

void read_as_everything(const std::string& text) {
  read([&] { return jobs_from_squeue(text); });
  read([&] { return ids_from_squeue(text); });
  read([&] { return time_limit_from_squeue(text); });
  read([&] {
    auto nodes = nodes_from_sinfo(text);
    for (const NodeLine& one : nodes) require(is_plain(one.node.name), "a node's name is text");
    return nodes;
  });
  read([&] { return gres_from(text); });
  read([&] { return obstacle_of_node(text, text); });
  read([&] { return id_from_sbatch(text); });
  read([&] { return attempt_of_mark("x", text); });
  read([&] { return devices_from_scontrol(text); });
}

void say(const std::string& name, const std::string& command) {
  const std::string entry = "Nodes=n2 CPU_IDs=1 Mem=100 GRES=gpu:1(IDX:0)";
  const DevicesByNodes real{{"n2", {0}}};
  const auto shown = [&](const std::string& own) {
    return devices_from_scontrol("JobId=2 JobName=" + name + " UserId=a(1) JOB_GRES=gpu:1   " +
                                 own + " MinCPUsNode=1 Features=(null) Command=" + command +
                                 " Power=\n");
  };
  const DevicesByNodes found = shown(entry);
  require(found == real || found.empty(), "a device that a user made up");
  require(shown("").empty(), "a device that a user made up of a job that has none");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text{reinterpret_cast<const char*>(data), size};
  read_as_everything(text);
  say(text, "j.sh");
  say("x", text);
  say(text.substr(0, size / 2), text.substr(size / 2));
  return 0;
}
