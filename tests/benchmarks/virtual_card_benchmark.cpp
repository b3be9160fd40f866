// SPDX-License-Identifier: Apache-2.0
// All laws on all shapes of pairs, on a card in virtual time: JSON, a line for each shape.
//
//   virtual_card_benchmark CARD.json [--quick]    the first shape, two laws
#include <exception>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tests/torch_ext/gate/virtual_pair.h"
#include "tests/torch_ext/gate/virtual_shapes.h"

namespace {

using namespace commensal;
using testing::CardTimes;
using testing::Outcome;
using testing::Setting;
using testing::Shape;
using testing::VirtualPair;

constexpr double kSlo = 0.01;

nlohmann::json figures(const Shape& shape, const Setting& setting, const CardTimes& card,
                       std::map<Duration, Outcome>& alone_for) {
  const auto known = alone_for.find(setting.lasts);
  const Outcome& alone = known != alone_for.end()
                             ? known->second
                             : alone_for[setting.lasts] =
                                   VirtualPair(card, shape.guaranteed, {}, setting).run();
  const Outcome shared = VirtualPair(card, shape.guaranteed, shape.opportunistic, setting).run();
  const testing::Judged judged = judge(shape, alone, shared, kSlo, card);
  const auto milliseconds = [](Duration time) { return 1e3 * in_seconds(time); };
  nlohmann::json closed = nlohmann::json::object();
  for (const auto& [reason, time] : shared.closed_by) {
    closed[reason] = closed.value(reason, 0.0) + milliseconds(time);
  }
  return {{"law", setting.law},
          {"share_max", setting.share_max},
          {"turn_ms", milliseconds(setting.turn)},
          {"between_ms", milliseconds(setting.between)},
          {"seconds", in_seconds(setting.lasts)},
          {"busy", alone.busy},
          {"used", shared.used},
          {"loader", shape.guaranteed.pause == testing::GuaranteedScript::Pause::kLoader},
          {"oracle", judged.oracle},
          {"harvest", judged.harvest},
          {"slowdown_median", judged.median},
          {"slowdown_p99", judged.p99},
          {"opening_p99_us", 1e3 * milliseconds(judged.opening)},
          {"settled_seconds", in_seconds(judged.settled)},
          {"closed_ms", closed}};
}

}  // namespace

int main(int argc, char** argv) try {
  const bool quick = argc == 3 && std::string_view(argv[2]) == "--quick";
  if (argc != 2 && !quick) {
    std::cerr << "usage: virtual_card_benchmark CARD.json [--quick]\n";
    return 2;
  }
  const CardTimes card = CardTimes::read(argv[1]);
  for (const Shape& shape : testing::shapes()) {
    std::map<Duration, Outcome> alone;
    nlohmann::json laws{figures(shape, {.lasts = lasts(shape)}, card, alone)};
    for (const Setting& rival : testing::rivals(shape)) {
      if (quick && rival.lasts > std::chrono::seconds{20}) continue;
      laws.push_back(figures(shape, rival, card, alone));
    }
    std::cout << nlohmann::json{{"shape", shape.name}, {"least", shape.least}, {"laws", laws}}
              << std::endl;
    if (quick) break;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "virtual_card_benchmark: " << error.what() << "\n";
  return 1;
}
