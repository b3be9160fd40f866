// SPDX-License-Identifier: Apache-2.0
// One node's ranks, from the first report to the last.
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

#include "coordinator/engines/local/given_devices.h"
#include "coordinator/engines/local/keeper.h"
#include "coordinator/engines/local/rank_environment.h"

namespace commensal::cluster::local {
namespace {

using Kind = EngineEvent::Kind;

struct Work {
  HeldJob held;
  Placed placed;
  std::size_t group = 0;
};

Work work_of(const AttemptFolder& folder, const std::string& node) {
  const auto held = folder.held();
  const auto placed = folder.placed();
  if (!held || !placed)
    throw std::runtime_error("there is nothing to run in " + folder.path().native());
  const auto ranks = number_ranks(placed->devices);
  const auto own = std::find_if(ranks.begin(), ranks.end(), [&](const RankNumbers& numbers) {
    return placed->devices[numbers.rank].node == node;
  });
  if (own == ranks.end()) throw std::runtime_error("node " + node + " is not one of the placement");
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
  return {*held, with_given_devices(*placed, visible == nullptr ? "" : visible), own->group};
}

void say(int reports, const Report& report) {
  // Where nobody listens any more the head is gone, and what was to be said with it.
  if (!write_line(reports, line_of(report)))
    spdlog::error("the gang's head does not read any more");
}

/// Waits for the first order; nothing if the head is gone.
std::optional<Order> first_order(int orders) {
  LineReader lines;
  std::array<char, 1> piece;  // what follows is the keeper's to read
  while (true) {
    const ssize_t count = ::read(orders, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "cannot read orders");
    if (count == 0) return std::nullopt;
    for (const std::string& line : lines.add({piece.data(), piece.size()})) {
      if (auto order = order_of(line)) return order;
    }
  }
}

Outcome run(const AttemptFolder& folder, const Work& work, int orders, int reports) {
  Keeper keeper{folder, work.held, work.placed, work.group};
  say(reports, PartReady{work.group, keeper.port()});
  const auto order = first_order(orders);
  if (!order) return {Kind::kVanished, std::nullopt, "the first keeper of its gang is gone"};
  const auto* start = std::get_if<StartRanks>(&*order);
  if (start == nullptr) return {Kind::kTakenBack, std::nullopt, "taken back before it began"};
  keeper.set_port(start->port);
  keeper.follow(orders);
  return keeper.run();
}

Outcome run_or_say_why_not(const AttemptFolder& folder, const Work& work, int orders, int reports) {
  try {
    return run(folder, work, orders, reports);
  } catch (const std::exception& error) {
    return {Kind::kVanished, std::nullopt, std::string{"its keeper failed: "} + error.what()};
  }
}

}  // namespace

int keep_part(const AttemptFolder& folder, const std::string& node, int orders, int reports) {
  ::signal(SIGPIPE, SIG_IGN);
  try {
    const Work work = work_of(folder, node);
    const Outcome outcome = run_or_say_why_not(folder, work, orders, reports);
    spdlog::info("node {}: {}", node, outcome.reason);
    say(reports, PartEnded{work.group, outcome});
    return 0;
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return 1;
  }
}

}  // namespace commensal::cluster::local
