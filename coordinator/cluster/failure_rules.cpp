// SPDX-License-Identifier: Apache-2.0
// Words by which failures are told apart.
#include "coordinator/cluster/failure_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "allocator/base/clock.h"

namespace commensal::cluster {
namespace {

constexpr int kTryAgain = 75;       // EX_TEMPFAIL
constexpr int kTimeLimit = 124;     // as timeout(1) and the engines say it
constexpr int kCannotRun = 126;     // as a shell says it: no program,
constexpr int kNotFound = 127;      // or none of this name
constexpr int kBusError = 128 + 7;  // SIGBUS: a page that cannot be read, often a full /dev/shm

struct Sign {
  std::string_view words;
  FailureClass kind;
};

/// What programs print, by whom. Words that a healthy job prints, too, are not here.
constexpr std::array kSigns{
    // The CUDA runtime's texts of errors that only the device or its driver cause.
    Sign{"uncorrectable ECC error", FailureClass::kInfrastructure},
    Sign{"CUDA-capable device(s) is/are busy or unavailable", FailureClass::kInfrastructure},
    Sign{"all CUDA-capable devices are busy or unavailable", FailureClass::kInfrastructure},
    Sign{"system has unsupported display driver / cuda driver combination",
         FailureClass::kInfrastructure},
    Sign{"CUDA error: unknown error", FailureClass::kInfrastructure},
    Sign{"hardware stack error", FailureClass::kInfrastructure},
    Sign{"GPU is lost", FailureClass::kInfrastructure},
    Sign{"GPU has fallen off the bus", FailureClass::kInfrastructure},
    // NCCL's names of results (ncclResult_t) and its transport's words.
    Sign{"ncclSystemError", FailureClass::kInfrastructure},
    Sign{"NCCL WARN NET/IB", FailureClass::kInfrastructure},
    Sign{"ncclRemoteError", FailureClass::kSemantic},
    // PyTorch's process groups: one rank waits for another.
    Sign{"Watchdog caught collective operation timeout", FailureClass::kSemantic},
    Sign{"Detected mismatch between collectives on ranks", FailureClass::kSemantic},
    Sign{"Connection closed by peer", FailureClass::kSemantic},
    // The C library's texts of errno, of file systems and networks that have gone.
    Sign{"Stale file handle", FailureClass::kInfrastructure},
    Sign{"Input/output error", FailureClass::kInfrastructure},
    Sign{"Transport endpoint is not connected", FailureClass::kInfrastructure},
    Sign{"Remote I/O error", FailureClass::kInfrastructure},
};

/// The sign that is printed last; of a chain of errors the last one ended the program.
const Sign* last_sign(const std::string& output, bool gang) {
  const Sign* last = nullptr;
  std::size_t at = 0;
  for (const Sign& sign : kSigns) {
    if (sign.kind == FailureClass::kSemantic && !gang) continue;
    const std::size_t found = output.rfind(sign.words);
    if (found == std::string::npos || (last != nullptr && found < at)) continue;
    last = &sign;
    at = found;
  }
  return last;
}

}  // namespace

std::string_view to_string(FailureClass kind) noexcept {
  switch (kind) {
    case FailureClass::kUser: return "user";
    case FailureClass::kInfrastructure: return "infrastructure";
    case FailureClass::kSemantic: return "semantic";
  }
  return "";
}

FailureVerdict classify(const FailureEvidence& evidence) {
  if (evidence.vanished) return {FailureClass::kInfrastructure, evidence.reason};
  for (const int own : {kTimeLimit, kCannotRun, kNotFound}) {
    if (evidence.exit_code == own) return {FailureClass::kUser, evidence.reason};
  }
  if (evidence.exit_code == kTryAgain) {
    return {FailureClass::kInfrastructure, "it ended with 75, \"try again\""};
  }
  if (const Sign* sign = last_sign(evidence.output, evidence.ranks > 1)) {
    return {sign->kind, fmt::format("it printed \"{}\"", sign->words)};
  }
  if (evidence.exit_code == kBusError) {
    return {FailureClass::kInfrastructure, "SIGBUS: memory that could not be read"};
  }
  return {FailureClass::kUser, evidence.reason};
}

std::uint32_t RetryRules::most(FailureClass kind) const noexcept {
  switch (kind) {
    case FailureClass::kUser: return user;
    case FailureClass::kInfrastructure: return infrastructure;
    case FailureClass::kSemantic: return semantic;
  }
  return 0;
}

Duration RetryRules::wait_after(std::uint32_t retries) const noexcept {
  Duration wait = first;
  for (std::uint32_t i = 0; i < retries && wait < longest; ++i) wait *= 2;
  return std::min(wait, longest);
}

RetryDecision decide_retry(const FailureVerdict& verdict, std::uint32_t retries,
                           const RetryRules& rules) {
  const std::uint32_t most = rules.most(verdict.kind);
  const auto kind = to_string(verdict.kind);
  if (most == 0) return {{}, fmt::format("{} failures are not tried again", kind)};
  if (retries >= most) {
    return {{}, fmt::format("{} failure, and it was tried again {} times", kind, retries)};
  }
  const Duration wait = rules.wait_after(retries);
  return {wait, fmt::format("is tried again after {}, {} of {}: {} failure: {}", seconds_text(wait),
                            retries + 1, most, kind, verdict.why)};
}

std::string ends_of_files(const std::vector<std::string>& files, std::size_t bytes) {
  std::string ends;
  for (const std::string& name : files) {
    std::ifstream file{name, std::ios::binary | std::ios::ate};
    if (!file) continue;
    const auto size = static_cast<std::size_t>(std::max<std::streamoff>(file.tellg(), 0));
    const std::size_t part = std::min(size, bytes);
    file.seekg(static_cast<std::streamoff>(size - part));
    std::string end(part, '\0');
    file.read(end.data(), static_cast<std::streamsize>(part));
    end.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
    ends += end;
  }
  return ends;
}

}  // namespace commensal::cluster
