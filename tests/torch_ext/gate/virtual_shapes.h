// SPDX-License-Identifier: Apache-2.0
// Pairs of jobs of many shapes, and what is asked of each of them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tests/torch_ext/gate/virtual_pair.h"

namespace commensal::testing {

struct Shape {
  std::string name;
  GuaranteedScript guaranteed;
  std::vector<OpportunisticScript> opportunistic;
  double least = 0.0;  ///< harvest over the oracle's
};

inline std::vector<Shape> shapes() {
  using namespace std::chrono_literals;
  using Pause = GuaranteedScript::Pause;
  constexpr GuaranteedScript kE1{.busy = 30ms, .wait = 13300us, .drains = 4900us, .jitter = 0.02};
  constexpr GuaranteedScript kLong{.busy = 120ms, .wait = 40ms, .drains = 10ms, .jitter = 0.02};
  constexpr GuaranteedScript kShort{.busy = 30ms, .wait = 6ms, .drains = 2ms, .jitter = 0.02};
  const auto changed = [](GuaranteedScript script, auto change) {
    change(script);
    return script;
  };
  return {
      {"e1", kE1, {{}}, 0.85},
      {"e1, ops of 0.4 ms", kE1, {{.op = 400us, .ops = 100}}, 0.80},
      {"e1, ops of 1 ms", kE1, {{.op = 1ms, .ops = 40}}, 0.80},
      {"e1, ops of 2 ms", kE1, {{.op = 2ms, .ops = 20}}, 0.70},
      {"e1, host-bound neighbour", kE1, {{.op = 35us, .host = 52us}}, 0.80},
      {"e1, host-bound neighbour that hesitates",
       kE1,
       {{.op = 35us, .host = 52us, .hesitates = 500us}},
       0.80},
      {"e1, two neighbours", kE1, {{}, {}}, 0.60},
      {"e1, arrives in mid-step", changed(kE1, [](auto& e1) { e1.arrives = 2003ms; }), {{}}, 0.85},
      {"e1, leaves in mid-step", changed(kE1, [](auto& e1) { e1.leaves = 4017ms; }), {{}}, 0.85},
      {"e1, steps get 30 % longer", changed(kE1, [](auto& e1) { e1.longer = 1.3; }), {{}}, 0.85},
      {"gaps of 2 ms", {.busy = 30ms, .wait = 4ms, .drains = 2ms, .jitter = 0.02}, {{}}, 0.60},
      {"gaps of 4 ms", kShort, {{}}, 0.60},
      {"gaps of 4 ms, ops of 1 ms", kShort, {{.op = 1ms, .ops = 40}}, 0.60},
      {"gaps of 4 ms, long drain",
       {.busy = 30ms, .wait = 14ms, .drains = 10ms, .jitter = 0.02},
       {{}},
       0.60},
      {"gaps of 10 ms, nothing drains", {.busy = 60ms, .wait = 10ms, .jitter = 0.02}, {{}}, 0.80},
      {"gaps of 17 ms, uneven",
       {.busy = 60ms, .wait = 20ms, .drains = 3ms, .jitter = 0.3},
       {{}},
       0.85},
      {"gaps of 30 ms", kLong, {{}}, 0.85},
      {"gaps of 30 ms, ops of 5 ms", kLong, {{.op = 5ms, .ops = 8}}, 0.85},
      {"gaps of 30 ms, ops of 10 ms", kLong, {{.op = 10ms, .ops = 4}}, 0.85},
      {"gaps of 30 ms, a graph of 20 ms", kLong, {{.op = 20ms, .ops = 1, .graph = true}}, 0.85},
      {"gaps of 50 ms", {.busy = 200ms, .wait = 60ms, .drains = 10ms, .jitter = 0.02}, {{}}, 0.85},
      // In pauses that nobody ends 2 ms pass until it is believed that no op comes.
      {"boundaries of 10 ms",
       {.busy = 30ms, .wait = 10ms, .pause = Pause::kBoundary, .jitter = 0.02},
       {{}},
       0.70},
      {"synchronisations of 10 ms",
       {.busy = 30ms,
        .wait = 10ms,
        .drains = 2ms,
        .pause = Pause::kSynchronisation,
        .jitter = 0.02},
       {{}},
       0.70},
  };
}

/// What the shared run is held against: the guaranteed job alone, on the same card.
struct Judged {
  double oracle = 0.0;   ///< part of the time that could be used within the objective
  double harvest = 0.0;  ///< part of that which was
  double median = 0.0;   ///< slowdown of the steps: their medians ...
  double p99 = 0.0;      ///< ... and their 99th percentiles
  Duration opening{};    ///< 99th percentile
  Duration settled{};    ///< after the guaranteed job's arrival its steps are within the objective
};

inline Duration quantile(std::vector<Duration> values, double part) {
  if (values.empty()) return {};
  const auto at =
      static_cast<std::ptrdiff_t>(std::ceil(part * static_cast<double>(values.size())) - 1.0);
  const auto nth = values.begin() + std::max<std::ptrdiff_t>(0, at);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

/// The part of the time in which an oracle would run the neighbours: 1 - u / (1 + SLO), u of the
/// guaranteed job alone; of long ops as many whole ones as fit a gap once the card has changed to
/// them; of a job that its host keeps busy what it can use.
inline double oracle(const Shape& shape, const Outcome& alone, double slo, const CardTimes& card) {
  double most = 1.0 - alone.busy / (1.0 + slo);
  const OpportunisticScript& first = shape.opportunistic.front();
  if (first.host > Duration::zero()) {
    using std::chrono::duration;
    most *= std::min(1.0, duration<double>(first.op) / (first.host_time() + card.launch));
  }
  const GuaranteedScript& script = shape.guaranteed;
  const bool always = script.arrives == Duration::zero() && script.leaves == Duration::zero();
  const bool synchronises = script.pause == GuaranteedScript::Pause::kSynchronisation;
  const Duration gap = synchronises ? script.wait : script.wait - script.drains;
  if (always && first.op >= std::chrono::milliseconds{1}) {
    const double whole = static_cast<double>((gap - card.change) / first.op) *
                         std::chrono::duration<double>(first.op).count();
    most = std::min(most, whole / std::chrono::duration<double>(script.busy + script.wait).count());
  }
  return most;
}

inline Judged judge(const Shape& shape, const Outcome& alone, const Outcome& shared, double slo,
                    const CardTimes& card) {
  constexpr std::size_t kFirst = 20;  // until the lengths of gaps and ops are known
  const auto steps = [](const Outcome& outcome) {
    std::vector<Duration> took;
    for (std::size_t i = kFirst; i < outcome.steps.size(); ++i) {
      took.push_back(outcome.steps[i].took);
    }
    return took;
  };
  const auto slower = [&](double part) {
    const Duration plain = quantile(steps(alone), part);
    const Duration beside = quantile(steps(shared), part);
    return std::chrono::duration<double>(beside - plain) / plain;
  };
  Judged judged{.oracle = oracle(shape, alone, slo, card),
                .median = slower(0.5),
                .p99 = slower(0.99),
                .opening = quantile(shared.openings, 0.99)};
  judged.harvest = shared.used / judged.oracle;
  // Step by step: both runs wait for the same times.
  for (std::size_t i = 0; i < std::min(alone.steps.size(), shared.steps.size()); ++i) {
    const Duration plain = alone.steps[i].took;
    if (std::chrono::duration<double>(shared.steps[i].took - plain) / plain <= 3 * slo) continue;
    judged.settled = shared.steps[i].end - shape.guaranteed.arrives;
  }
  return judged;
}

/// Long enough for a hundred steps.
inline Duration lasts(const Shape& shape) {
  const Duration step = shape.guaranteed.busy + shape.guaranteed.wait;
  return std::max<Duration>(std::chrono::seconds{6}, 100 * step);
}

/// The other laws, with several values of what each has to be told; those that learn have time to.
inline std::vector<Setting> rivals(const Shape& shape) {
  using namespace std::chrono_literals;
  std::vector<Setting> all;
  for (const double share : {0.005, 0.01, 0.02, 0.05, 0.1}) {
    all.push_back({.law = "duty_cycle", .share_max = share, .lasts = lasts(shape)});
  }
  for (const auto& [turn, between] : {std::pair{5ms, 45ms}, std::pair{5ms, 245ms},
                                      std::pair{25ms, 225ms}, std::pair{100ms, 1900ms}}) {
    all.push_back({.law = "token_window",
                   .turn = turn,
                   .between = between,
                   .lasts = std::max<Duration>(lasts(shape), 20s)});
  }
  all.push_back({.law = "antman", .lasts = 120s});
  all.push_back({.law = "rate_aimd", .lasts = 120s});
  return all;
}

}  // namespace commensal::testing
