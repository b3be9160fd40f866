// SPDX-License-Identifier: Apache-2.0
// Why an attempt failed, and whether another one is worth its devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/clock.h"

namespace commensal::cluster {

/// As in Jeon et al. (ATC '19) and the simulator's failure model.
enum class FailureClass : std::uint8_t {
  kUser,            ///< the program or its settings: the same in each attempt
  kInfrastructure,  ///< a machine, a device, a network: another attempt may do without it
  kSemantic         ///< ranks that wait for each other in vain: only in gangs
};
[[nodiscard]] std::string_view to_string(FailureClass kind) noexcept;

/// What is known of an attempt that did not end with 0.
struct FailureEvidence {
  bool vanished = false;         ///< nobody can say how it ended
  std::optional<int> exit_code;  ///< 128 + number for a signal
  std::string reason;            ///< the engine's
  std::int32_t ranks = 1;
  std::string output;  ///< the ends of its ranks' output
};

struct FailureVerdict {
  FailureClass kind = FailureClass::kUser;
  std::string why;  ///< the evidence, part of a sentence
};

/// Judges by what the engine says, then by words that drivers and libraries print (a table in the
/// source, each with whose it is), the latest ones first; without evidence it is the user's. Exit
/// code 75 (EX_TEMPFAIL of sysexits.h) is a program's own word for "try again". Pure.
[[nodiscard]] FailureVerdict classify(const FailureEvidence& evidence);

/// Attempts after a failure, at most, by its class; and how long each waits.
struct RetryRules {
  std::uint32_t infrastructure = 3;
  std::uint32_t semantic = 1;
  std::uint32_t user = 0;
  Duration first = std::chrono::seconds{10};  ///< before the first; doubled with each
  Duration longest = std::chrono::hours{1};

  [[nodiscard]] std::uint32_t most(FailureClass kind) const noexcept;
  /// How long a job waits that has been tried again so often before.
  [[nodiscard]] Duration wait_after(std::uint32_t retries) const noexcept;
};

struct RetryDecision {
  std::optional<Duration> wait;  ///< absent: it is not tried again
  std::string reason;
};

/// @param retries  attempts so far that failed and were tried again, whatever their class. Pure.
[[nodiscard]] RetryDecision decide_retry(const FailureVerdict& verdict, std::uint32_t retries,
                                         const RetryRules& rules);

/// Returns the last `bytes` of each file, one after the other; of one that cannot be read nothing.
[[nodiscard]] std::string ends_of_files(const std::vector<std::string>& files,
                                        std::size_t bytes = 16'384);

}  // namespace commensal::cluster
