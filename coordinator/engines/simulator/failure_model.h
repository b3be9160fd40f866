// SPDX-License-Identifier: Apache-2.0
// What goes wrong with jobs: which failure an attempt meets, and when.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "coordinator/engines/simulator/trace.h"

namespace commensal::simulator {

enum class FailureClass : std::uint8_t {
  kUser,            ///< an error of the program or its settings: early, the same in each attempt
  kInfrastructure,  ///< a machine or network: rare, at any time, another one in each attempt
  kSemantic,        ///< of workers that exchange a model: only in gangs, the same in each attempt
  kInput            ///< a corrupt record: the same in each attempt, and in all jobs that read it
};
inline constexpr std::size_t kFailureClasses = 4;
[[nodiscard]] std::string_view to_string(FailureClass kind) noexcept;

/// How often and when. Early errors of users dominate and failures of machines are rare and late,
/// as in Jeon et al. (ATC '19) and their later classes; the numbers are ours, of that order.
struct FailureRates {
  double user = 0.14;          ///< of the jobs have an error of their own,
  double user_seconds = 100;   ///< which half of them meet so soon;
  double user_spread = 3;      ///< deviation of the logarithm of that time
  double semantic = 0.01;      ///< of the jobs of two GPUs, again at each doubling
  double gpu_hours = 5000;     ///< of work between two failures of a GPU; zero: none
  double corrupt = 0.03;       ///< of the inputs have corrupt records
  std::uint32_t inputs = 100;  ///< that jobs without a group read, each one of them
  std::uint32_t records = 1;   ///< corrupt ones of such an input
  double passes = 10;          ///< over the input in a job: the first one meets the records
};

/// A corrupt record: its input, and its number.
using RecordId = std::pair<std::uint64_t, std::uint32_t>;

struct Failure {
  FailureClass kind = FailureClass::kUser;
  double at = 0;  ///< whole seconds of work since the job's begin
  RecordId record{};
};

/// Draws failures. Each draw follows from the seed, the row and what is drawn alone: runs with
/// other policies or rules meet the same ones. Thread safety: none needed, it does not change.
class FailureModel {
 public:
  FailureModel(const FailureRates& rates, std::uint64_t seed) : rates_(rates), seed_(seed) {}

  /// Returns the first failure that a job of so many seconds of work meets behind `done` of them,
  /// in its attempt number `attempt`, if it passes over the `known` records.
  [[nodiscard]] std::optional<Failure> next(const TraceJob& job, std::size_t row, double duration,
                                            double done, std::uint32_t attempt,
                                            const std::set<RecordId>& known) const;

  /// When a job meets an error of its user's; absent: it has none.
  [[nodiscard]] std::optional<double> user_error(std::size_t row) const;

 private:
  [[nodiscard]] double drawn(std::uint64_t of, std::uint64_t what) const;
  [[nodiscard]] std::uint64_t input_of(const TraceJob& job, std::size_t row) const;

  FailureRates rates_;
  std::uint64_t seed_;
};

}  // namespace commensal::simulator
