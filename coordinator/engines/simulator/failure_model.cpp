// SPDX-License-Identifier: Apache-2.0
// Draws failures from counters: nothing is remembered from one draw to the next.
#include "coordinator/engines/simulator/failure_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace commensal::simulator {
namespace {

constexpr double kSecondsPerHour = 3600;

/// What a draw is for; attempts and records count on from theirs.
enum Drawn : std::uint64_t {
  kHasUserError = 1,
  kUserRadius,
  kUserAngle,
  kHasSemantic,
  kSemanticAt,
  kInputNumber,
  kIsCorrupt,
  kRecordAt = std::uint64_t{1} << 32U,
  kMachine = std::uint64_t{2} << 32U
};

/// Finaliser of SplitMix64 (Steele et al., OOPSLA '14): every bit depends on every other.
std::uint64_t mixed(std::uint64_t bits) {
  bits += 0x9e3779b97f4a7c15U;
  bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31U);
}

/// FNV-1a, so that a name has the same number everywhere.
std::uint64_t number_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace

std::string_view to_string(FailureClass kind) noexcept {
  switch (kind) {
    case FailureClass::kUser: return "user";
    case FailureClass::kInfrastructure: return "infrastructure";
    case FailureClass::kSemantic: return "semantic";
    case FailureClass::kInput: return "input";
  }
  return "user";
}

double FailureModel::drawn(std::uint64_t of, std::uint64_t what) const {
  const std::uint64_t bits = mixed(mixed(mixed(seed_) ^ of) ^ what);
  return (static_cast<double>(bits >> 12U) + 0.5) * 0x1p-52;  // inside of (0, 1)
}

std::uint64_t FailureModel::input_of(const TraceJob& job, std::size_t row) const {
  if (!job.group.empty()) return number_of(job.group);
  return static_cast<std::uint64_t>(drawn(row, kInputNumber) * rates_.inputs);
}

std::optional<double> FailureModel::user_error(std::size_t row) const {
  if (drawn(row, kHasUserError) >= rates_.user) return std::nullopt;
  // Log-normal, by Box and Muller.
  const double normal = std::sqrt(-2 * std::log(drawn(row, kUserRadius))) *
                        std::cos(2 * std::numbers::pi * drawn(row, kUserAngle));
  return std::ceil(rates_.user_seconds * std::exp(rates_.user_spread * normal));
}

std::optional<Failure> FailureModel::next(const TraceJob& job, std::size_t row, double duration,
                                          double done, std::uint32_t attempt,
                                          const std::set<RecordId>& known) const {
  std::optional<Failure> first;
  const auto meet = [&](Failure failure) {
    failure.at = std::ceil(failure.at);
    if (failure.at < done || failure.at >= duration) return;
    if (!first || failure.at < first->at) first = failure;
  };
  if (const auto at = user_error(row)) meet({FailureClass::kUser, *at, {}});
  const double doublings = std::log2(std::max(1, job.gpus));
  if (drawn(row, kHasSemantic) < 1 - std::pow(1 - rates_.semantic, doublings)) {
    meet({FailureClass::kSemantic, drawn(row, kSemanticAt) * duration, {}});
  }
  if (rates_.gpu_hours > 0) {
    const double mean = rates_.gpu_hours * kSecondsPerHour / std::max(1, job.gpus);
    const double after = -std::log(drawn(row, kMachine + attempt)) * mean;
    meet({FailureClass::kInfrastructure, done + after, {}});
  }
  const std::uint64_t input = input_of(job, row);
  if (drawn(input, kIsCorrupt) < rates_.corrupt) {
    for (std::uint32_t record = 0; record < rates_.records; ++record) {
      if (known.contains({input, record})) continue;
      const double pass = duration / rates_.passes;
      meet({FailureClass::kInput, drawn(input, kRecordAt + record) * pass, {input, record}});
    }
  }
  return first;
}

}  // namespace commensal::simulator
