// SPDX-License-Identifier: Apache-2.0
// What holds for every row of the terms.
#include "coordinator/wire/terms.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <type_traits>

#include "coordinator/wire/laws.h"

namespace commensal::wire {
namespace {

constexpr std::array<std::string_view, 6> kKinds{"memory",  "share",    "law",
                                                 "percent", "fraction", "switch"};

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

template <typename T, typename P>
std::string written(const Term<T, P>& term, double value) {
  return term.kind == TermKind::kPercent ? number(100.0 * value) + " %" : number(value);
}
std::string written(const auto&, const MemoryRange& range) {
  return to_string(range.min) + ":" + (range.max ? to_string(*range.max) : "");
}
std::string written(const auto&, const ShareRange& range) {
  return number(range.min) + ":" + number(range.max);
}
std::string written(const auto&, const std::string& law) { return law; }
std::string written(const auto&, bool on) { return on ? "on" : "off"; }

// Exactly: what `number` shows of a share is rounded.
std::string exact(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}
std::string option_text(const auto&, const MemoryRange& range) {
  return std::to_string(range.min.count()) + ":" +
         (range.max ? std::to_string(range.max->count()) : "");
}
std::string option_text(const auto&, const ShareRange& range) {
  return exact(range.min) + ":" + exact(range.max);
}
std::string option_text(const auto&, const std::string& law) { return law; }
std::string option_text(const auto& term, double value) {
  return exact(term.kind == TermKind::kPercent ? 100.0 * value : value);
}

std::string problem_of(const auto&, const MemoryRange& range) { return problem_with(range); }
std::string problem_of(const auto&, const ShareRange& range) { return problem_with(range); }
std::string problem_of(const auto&, bool) { return ""; }
std::string problem_of(const auto&, const std::string& law) {
  if (to_law(law)) return "";
  return "no pacing law '" + law + "' (" + law_names() + ")";
}
std::string problem_of(const auto& term, double value) {
  if (value > 0.0 && value <= term.most) return "";  // not a number is neither
  return std::string{term.name} + " must be above 0 and at most " + written(term, term.most) +
         ": " + written(term, value);
}

template <typename T, typename P>
bool can_have(const Term<T, P>& term, JobClass job_class) {
  return *term.refusal == '\0' || job_class == term.only;
}

TermsPatch part_of(const TermsPatch& patch, bool of_class) {
  TermsPatch part;
  for_each_term([&](const auto& term) {
    if (term.of_class == of_class) part.*term.change = patch.*term.change;
  });
  return part;
}

}  // namespace

std::string_view to_string(TermKind kind) noexcept {
  return kKinds[static_cast<std::size_t>(kind)];
}

std::string problem_with(const MemoryRange& memory) {
  if (!memory.max || memory.min <= *memory.max) return "";
  return "memory minimum above maximum: " + to_string(memory.min) + " > " + to_string(*memory.max);
}

std::string problem_with(const ShareRange& share) {
  if (share.min >= 0 && share.min <= share.max && share.max <= 1) return "";
  return "share must be MIN:MAX with 0 <= MIN <= MAX <= 1: " + number(share.min) + ":" +
         number(share.max);
}

std::string problem_with(const TermsPatch& patch) {
  std::string problem;
  for_each_term([&](const auto& term) {
    const auto& value = patch.*term.change;
    if (value && problem.empty()) problem = problem_of(term, *value);
  });
  return problem;
}

std::string problem_with(const TermsPatch& patch, JobClass job_class) {
  std::string problem = problem_with(patch);
  for_each_term([&](const auto& term) {
    if (!problem.empty() || !(patch.*term.change)) return;
    if (!can_have(term, job_class)) problem = term.refusal;
  });
  return problem;
}

std::string problem_with(const JobTerms& terms, JobClass job_class) {
  if (std::string wrong = problem_with(terms.memory); !wrong.empty()) return wrong;
  if (std::string wrong = problem_with(terms.share); !wrong.empty()) return wrong;
  JobTerms usable = terms;
  return drop_unusable(usable, job_class);
}

std::string drop_unusable(JobTerms& terms, JobClass job_class) {
  std::string why;
  const auto drop = [&why](auto& value, const std::string& problem) {
    if (problem.empty()) return;
    value = {};
    why += (why.empty() ? "" : "; ") + problem;
  };
  for_each_term([&](const auto& term) {
    auto& value = terms.*term.own;
    if constexpr (requires { value.has_value(); }) {
      const bool refused = term.of_class && !can_have(term, job_class);
      if (value) drop(value, refused ? term.refusal : problem_of(term, *value));
    } else if constexpr (requires { value.empty(); }) {
      if (!value.empty()) drop(value, problem_of(term, value));
    }
  });
  return why;
}

bool is_empty(const TermsPatch& patch) { return patch == TermsPatch{}; }

TermsPatch class_terms(const TermsPatch& patch) { return part_of(patch, true); }
TermsPatch process_terms(const TermsPatch& patch) { return part_of(patch, false); }

TermsPatch as_patch(const JobTerms& terms) {
  TermsPatch patch;
  for_each_term([&](const auto& term) {
    const auto& value = terms.*term.own;
    if constexpr (requires { value.empty(); }) {
      if (!value.empty()) patch.*term.change = value;
    } else {
      patch.*term.change = value;
    }
  });
  return patch;
}

void apply(const TermsPatch& patch, JobTerms& terms) {
  for_each_term([&](const auto& term) {
    const auto& value = patch.*term.change;
    if (!value) return;
    if constexpr (requires { (terms.*term.own).has_value(); }) {
      terms.*term.own = value;
    } else {
      terms.*term.own = *value;
    }
  });
}

std::vector<std::string> as_options(const TermsPatch& patch, JobClass job_class) {
  std::vector<std::string> words;
  for_each_term([&](const auto& term) {
    const auto& value = patch.*term.change;
    if (!value || !can_have(term, job_class)) return;
    std::string name = term.name;
    std::replace(name.begin(), name.end(), '_', '-');
    if constexpr (std::is_same_v<std::decay_t<decltype(*value)>, bool>) {
      words.push_back((*value ? "--" : "--no-") + name);
    } else {
      words.push_back("--" + name);
      words.push_back(option_text(term, *value));
    }
  });
  return words;
}

std::string describe(const TermsPatch& patch) {
  std::string text;
  for_each_term([&](const auto& term) {
    const auto& value = patch.*term.change;
    if (!value) return;
    text += (text.empty() ? "" : ", ") + std::string{term.name} + " " + written(term, *value);
  });
  return text;
}

}  // namespace commensal::wire
