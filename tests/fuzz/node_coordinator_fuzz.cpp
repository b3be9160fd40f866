// SPDX-License-Identifier: Apache-2.0
// Any sequence of messages, pages, deaths and times at a node coordinator: it throws nothing,
// charges nobody beyond the device but for what was held already, and every change that it sends is
// newer than the one before.
#include <algorithm>
#include <map>
#include <string>

#include "coordinator/node/node_coordinator.h"
#include "coordinator/wire/laws.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal;
using namespace commensal::node;
using fuzz::Input;
using fuzz::require;

constexpr std::uint64_t kMiB = 1U << 20U;

std::string name(Input& in) { return std::string(1, static_cast<char>('a' + in.below(5))); }
std::int64_t pid(Input& in) { return static_cast<std::int64_t>(1 + in.below(6)); }
std::uint64_t size(Input& in) {
  const std::uint64_t value = in.number();
  return value < 4096 ? value * kMiB : value;
}
// As `decode` lets them through.
Revision revision(Input& in) { return std::min(in.number(), wire::kMaxRevision); }
double share(Input& in) { return static_cast<double>(in.byte()) / 200.0; }
/// A law, none, or a name that is none.
std::string law(Input& in) {
  const std::size_t which = in.below(wire::kLaws.size() + 2);
  if (which < wire::kLaws.size()) return std::string{wire::to_string(wire::kLaws[which])};
  return which == wire::kLaws.size() ? "" : in.text(4);
}

wire::Register hello(Input& in) {
  wire::Register m;
  m.job_id = name(in);
  m.name = m.job_id;
  m.tenant = "t";
  m.job_class = in.byte() % 2 == 0 ? JobClass::kGuaranteed : JobClass::kOpportunistic;
  m.terms.memory.min = Bytes{size(in)};
  if (in.byte() % 2 == 0) m.terms.memory.max = Bytes{size(in)};
  m.terms.share = {share(in), share(in)};
  m.pid = pid(in);
  m.start_ticks = in.below(3);
  m.role = in.byte() % 4 == 0 ? "helper" : in.byte() % 2 == 0 ? "rank" : "main";
  m.rank = static_cast<int>(in.number());
  m.world_size = static_cast<int>(in.number());
  wire::UsedDevice& used = m.devices.front();
  used.held_bytes = in.byte() % 4 == 0 ? size(in) : 0;
  used.revision = in.byte() % 4 == 0 ? revision(in) : 0;
  if (in.byte() % 4 == 0) used.limit_bytes = size(in);
  m.terms.law = law(in);
  if (in.byte() % 4 == 0) m.terms.slo = share(in);
  return m;
}

wire::Message message(Input& in, Revision told) {
  switch (in.below(6)) {
    case 0: return hello(in);
    case 1: {
      wire::Stats m{name(in), pid(in), nlohmann::json::object(), in.byte() % 8 == 0};
      m.stats["memory"] = {{"device_bytes", size(in)}, {"wanted_bytes", size(in)}};
      return m;
    }
    case 2: {
      const std::string job = name(in);
      const Revision number = in.byte() % 2 == 0 ? told : revision(in);
      return wire::Answer{job,      pid(in),  number,   static_cast<wire::Outcome>(in.below(4)),
                          size(in), size(in), size(in), ""};
    }
    case 3: return wire::AskMemory{name(in), pid(in), size(in), size(in)};
    case 4: {
      wire::SetRequest m;
      m.job = name(in);
      if (in.byte() % 2 == 0) m.terms.memory = MemoryRange{Bytes{size(in)}, Bytes{size(in)}};
      if (in.byte() % 2 == 0) m.terms.share = ShareRange{share(in), share(in)};
      if (in.byte() % 2 == 0) m.paused = in.byte() % 2 == 0;
      if (in.byte() % 4 == 0) m.terms.law = law(in);
      if (in.byte() % 4 == 0) m.terms.slo = share(in);
      if (in.byte() % 4 == 0) m.terms.idle_class = in.byte() % 2 == 0;
      return m;
    }
    default: return wire::StatusRequest{in.byte() % 2 == 0 ? name(in) : ""};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_of_data) {
  Input in{data, size_of_data};
  CoordinatorConfig config;
  Device device;
  device.capacity = Bytes{1000 * kMiB};
  device.cores = 2;
  device.machine = Bytes{4000 * kMiB};
  if (in.byte() % 4 == 0) device.fraction = 0.8;
  if (in.byte() % 4 == 0) config.recovery = std::chrono::milliseconds{1500};
  TimePoint now{std::chrono::hours{1}};
  NodeCoordinator node{config, device, 1, 2, now};
  std::map<PeerId, Revision> told;
  while (!in.empty()) {
    const Bytes before = node.host().ledger().total_charged();
    bool may_exceed = false;  // only by what a process says that it holds already
    const PeerId peer = name(in);
    switch (in.below(4)) {
      case 0:
        now += Duration{std::chrono::milliseconds{in.below(3000)}};
        node.tick(now);
        break;
      case 1: {
        PageReading reading;
        reading.heartbeat = TimePoint{Duration{static_cast<std::int64_t>(in.number())}};
        reading.step_number = in.number();
        reading.step_last = Duration{static_cast<std::int64_t>(in.number())};
        reading.memory_wanted = Bytes{size(in)};
        reading.waits = in.byte() % 2 == 0;
        reading.burst = Duration{static_cast<std::int64_t>(in.number())};
        node.observe_page(JobId{name(in)}, pid(in), reading, now);
        if (in.byte() % 2 == 0) node.sample(now);
        break;
      }
      case 2:
        node.member_gone(JobId{name(in)}, pid(in), static_cast<Departure>(in.below(3)), now);
        break;
      default: {
        const wire::Message sent = message(in, told[peer]);
        may_exceed = std::holds_alternative<wire::Register>(sent);
        node.receive(peer, sent, now);
      }
    }
    for (const Outgoing& out : node.take_outgoing()) {
      require(!wire::encode(out.message).empty(), "every answer can be written");
      if (const auto* change = std::get_if<wire::Change>(&out.message)) {
        told[out.peer] = change->revision;
        require(!change->limit_bytes ||
                    *change->limit_bytes <= node.host().device().capacity.count() ||
                    *change->limit_bytes <= node.host().ledger().total_charged().count(),
                "no limit above the device");
      }
    }
    const Bytes charged = node.host().ledger().total_charged();
    require(may_exceed || charged <= std::max(before, node.host().device().capacity),
            "law 3: the ledger never grants more than the device has");
    for (const PageEntry& entry : node.host().page_entries(now)) {
      require(entry.share_min >= 0 && entry.share_min <= 1 && entry.share_max >= 0 &&
                  entry.share_max <= 1,
              "shares are between 0 and 1");
    }
  }
  require(node.status("", now).is_object(), "the status can be told");
  return 0;
}
