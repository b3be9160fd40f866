// SPDX-License-Identifier: Apache-2.0
// Sets of CPUs to and from the kernel's lists.
#include "coordinator/wire/core_set.h"

#include <charconv>
#include <numeric>
#include <stdexcept>

namespace commensal::wire {
namespace {

/// Takes a number off the front of `text`; nothing if there is none.
std::optional<std::size_t> take_number(std::string_view& text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<CoreSet> CoreSet::parse(std::string_view list) {
  CoreSet set;
  while (!list.empty() && (list.back() == '\n' || list.back() == ' ')) list.remove_suffix(1);
  while (!list.empty()) {
    const auto first = take_number(list);
    if (!first) return std::nullopt;
    auto last = first;
    if (list.starts_with('-')) {
      list.remove_prefix(1);
      last = take_number(list);
    }
    if (!last || *last < *first || *last >= kMost) return std::nullopt;
    for (std::size_t cpu = *first; cpu <= *last; ++cpu) set.add(cpu);
    if (list.empty()) break;
    if (!list.starts_with(',')) return std::nullopt;
    list.remove_prefix(1);
    if (list.empty()) return std::nullopt;
  }
  return set;
}

void CoreSet::add(std::size_t cpu) {
  if (cpu >= kMost) {
    throw std::out_of_range("CPU above those of a set: " + std::to_string(cpu) +
                            " >= " + std::to_string(kMost));
  }
  words_[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
}

std::size_t CoreSet::count() const noexcept {
  return std::accumulate(words_.begin(), words_.end(), std::size_t{0},
                         [](std::size_t sum, std::uint64_t word) {
                           return sum + static_cast<std::size_t>(std::popcount(word));
                         });
}

std::vector<std::size_t> CoreSet::cpus() const {
  std::vector<std::size_t> all;
  for (std::size_t cpu = 0; cpu < kMost; ++cpu) {
    if (has(cpu)) all.push_back(cpu);
  }
  return all;
}

std::string CoreSet::to_string() const {
  std::string text;
  for (std::size_t first = 0; first < kMost; ++first) {
    if (!has(first)) continue;
    std::size_t last = first;
    while (has(last + 1)) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
    first = last;
  }
  return text;
}

CoreSet CoreSet::operator&(const CoreSet& other) const noexcept {
  CoreSet both;
  for (std::size_t i = 0; i < kCoreWords; ++i) both.words_[i] = words_[i] & other.words_[i];
  return both;
}

CoreSet CoreSet::operator|(const CoreSet& other) const noexcept {
  CoreSet either;
  for (std::size_t i = 0; i < kCoreWords; ++i) either.words_[i] = words_[i] | other.words_[i];
  return either;
}

}  // namespace commensal::wire
