// SPDX-License-Identifier: Apache-2.0
// The terms under which a job runs: all that a user may ask for, and change while it runs.
//
// Each is declared here, once: a member of `JobTerms`, one of `TermsPatch`, and a row of
// `for_each_term`. Options, environment variables, `commensal.init`, messages, stored jobs and the
// table of docs/environment.md come from the rows. What a term does is written where it is done.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/field_rules.h"
#include "allocator/base/ids.h"
#include "allocator/base/ranges.h"

namespace commensal::wire {

/// What a job runs under.
struct JobTerms {
  MemoryRange memory;              ///< of each of its devices
  ShareRange share;                ///< of each device's time
  std::string law;                 ///< empty: that of its class
  std::optional<double> slo;       ///< a slowdown, as a fraction; absent: the coordinator's
  bool idle_class = true;          ///< its threads enter the kernel's idle class
  bool affinity = true;            ///< and keep to the cores that guaranteed jobs leave
  std::optional<double> sm_share;  ///< of a GPU's multiprocessors; absent: all of them
  bool operator==(const JobTerms&) const = default;
};

/// A change of terms: those that are absent stay as they are.
struct TermsPatch {
  std::optional<MemoryRange> memory = std::nullopt;
  std::optional<ShareRange> share = std::nullopt;
  std::optional<std::string> law = std::nullopt;
  std::optional<double> slo = std::nullopt;
  std::optional<bool> idle_class = std::nullopt;
  std::optional<bool> affinity = std::nullopt;
  std::optional<double> sm_share = std::nullopt;
  bool operator==(const TermsPatch&) const = default;
};

/// How a term is written: by people, in the environment, in messages.
enum class TermKind : std::uint8_t {
  kMemory,    ///< MIN[:MAX] in bytes
  kShare,     ///< MIN[:MAX] of 0 to 1
  kLaw,       ///< a name of `kLaws`
  kPercent,   ///< above 0, at most `most`; a fraction in messages
  kFraction,  ///< above 0, at most `most`
  kSwitch     ///< on or off
};
[[nodiscard]] std::string_view to_string(TermKind kind) noexcept;

/// One row. `sm_share` is the option --sm-share, the variable COMMENSAL_SM_SHARE, and by its name
/// an argument of `commensal.init` and a field of messages.
template <typename T, typename P>
struct Term {
  const char* name;
  TermKind kind;
  T JobTerms::*own;
  std::optional<P> TermsPatch::*change;
  const char* help;                          ///< what it is, in one sentence
  const char* otherwise;                     ///< what holds where nobody asks for it
  const char* refusal = "";                  ///< to the class that cannot have it; empty: both can
  JobClass only = JobClass::kOpportunistic;  ///< with a refusal: the class that can
  bool of_class = false;  ///< a job has another one in each class, which it may change
  double most = 1.0;      ///< of a percentage or a fraction
};

/// Calls `visit` with each row, in the order in which people are told of them.
template <typename Visit>
void for_each_term(const Visit& visit) {
  visit(Term<MemoryRange, MemoryRange>{.name = "memory",
                                       .kind = TermKind::kMemory,
                                       .own = &JobTerms::memory,
                                       .change = &TermsPatch::memory,
                                       .help = "Device memory, e.g. 4GiB or 1GiB:4GiB.",
                                       .otherwise = "MIN 0, MAX the device",
                                       .of_class = true});
  visit(Term<ShareRange, ShareRange>{.name = "share",
                                     .kind = TermKind::kShare,
                                     .own = &JobTerms::share,
                                     .change = &TermsPatch::share,
                                     .help = "Share of the device's time, 0 to 1.",
                                     .otherwise = "0:1",
                                     .of_class = true});
  visit(Term<std::string, std::string>{
      .name = "law",
      .kind = TermKind::kLaw,
      .own = &JobTerms::law,
      .change = &TermsPatch::law,
      .help = "Pacing law: gap, duty_cycle, antman, rate_aimd, token_window or open.",
      .otherwise = "gap for an opportunistic job; open for a guaranteed one, with a share below 1 "
                   "duty_cycle",
      .of_class = true});
  visit(Term<std::optional<double>, double>{
      .name = "slo",
      .kind = TermKind::kPercent,
      .own = &JobTerms::slo,
      .change = &TermsPatch::slo,
      .help = "Slowdown in percent that a guaranteed job may see.",
      .otherwise = "1",
      .refusal = "an SLO is the slowdown that a guaranteed job may see; this one is opportunistic",
      .only = JobClass::kGuaranteed,
      .of_class = true,
      .most = 0.5});
  visit(Term<bool, bool>{
      .name = "idle_class",
      .kind = TermKind::kSwitch,
      .own = &JobTerms::idle_class,
      .change = &TermsPatch::idle_class,
      .help = "Let an opportunistic job's threads enter the kernel's idle class, which an ordinary "
              "user's can leave again only with RLIMIT_NICE.",
      .otherwise = "on",
      .refusal = "a guaranteed job stays out of the kernel's idle class"});
  visit(Term<bool, bool>{
      .name = "affinity",
      .kind = TermKind::kSwitch,
      .own = &JobTerms::affinity,
      .change = &TermsPatch::affinity,
      .help = "Let an opportunistic job's threads keep to the cores that a guaranteed one leaves, "
              "while that one suffers.",
      .otherwise = "on",
      .refusal = "a guaranteed job stays on all its cores"});
  visit(Term<std::optional<double>, double>{
      .name = "sm_share",
      .kind = TermKind::kFraction,
      .own = &JobTerms::sm_share,
      .change = &TermsPatch::sm_share,
      .help = "Most of a GPU's multiprocessors (SMs) that an opportunistic job's work runs on. "
              "Results may change in the last bits.",
      .otherwise = "all",
      .refusal = "a guaranteed job keeps all multiprocessors of its GPU"});
}

void fields(SameAs<JobTerms> auto& terms, auto& field) {
  for_each_term([&](const auto& term) { field(term.name, terms.*term.own); });
}
void fields(SameAs<TermsPatch> auto& terms, auto& field) {
  for_each_term([&](const auto& term) { field(term.name, terms.*term.change); });
}

/// Says what is wrong with a value, naming it; empty: nothing.
[[nodiscard]] std::string problem_with(const MemoryRange& memory);
[[nodiscard]] std::string problem_with(const ShareRange& share);
[[nodiscard]] std::string problem_with(const TermsPatch& patch);
/// The same for a job of this class, which may be unable to have a term.
[[nodiscard]] std::string problem_with(const TermsPatch& patch, JobClass job_class);
[[nodiscard]] std::string problem_with(const JobTerms& terms, JobClass job_class);
/// Takes back what is of the other class alone, and a law or a number that is none; its ranges
/// stay, and so does how its processes run once its class changes.
/// @return why, for people; empty: nothing was taken back.
std::string drop_unusable(JobTerms& terms, JobClass job_class);

[[nodiscard]] bool is_empty(const TermsPatch& patch);
/// The part of a change that is of a job's class: memory, share, law, SLO.
[[nodiscard]] TermsPatch class_terms(const TermsPatch& patch);
/// The rest of it: how its processes run.
[[nodiscard]] TermsPatch process_terms(const TermsPatch& patch);
/// A change to these terms, from whatever else.
[[nodiscard]] TermsPatch as_patch(const JobTerms& terms);
/// Changes the terms that a patch names.
void apply(const TermsPatch& patch, JobTerms& terms);
/// Words of `commensal run` for a job of this class; what such a job cannot have is left out.
[[nodiscard]] std::vector<std::string> as_options(const TermsPatch& patch, JobClass job_class);
/// Says a change in words: "share 0:0.5, law gap"; empty: none.
[[nodiscard]] std::string describe(const TermsPatch& patch);

}  // namespace commensal::wire
