// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/core/call_log.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <stdexcept>

namespace commensal::simulated_cuda {
namespace {

std::uint64_t number_from(const std::string& text) {
  std::size_t used = 0;
  const auto number = std::stoull(text, &used);
  if (used != text.size()) throw std::invalid_argument("no number: " + text);
  return number;
}

}  // namespace

CUresult CallLog::enter(std::string_view function, const Arguments& arguments, bool capturing) {
  const MutexLock lock(mutex_);
  auto found = entries_.find(function);
  if (found == entries_.end()) found = entries_.emplace(std::string{function}, Entry{}).first;
  Entry& entry = found->second;
  ++entry.calls;
  entry.while_capturing += capturing ? 1 : 0;
  entry.last = arguments;
  CUresult result = CUDA_SUCCESS;
  for (Failure& failure : failures_) {
    if (failure.function != function || failure.times == 0) continue;
    if (failure.skip > 0) {
      --failure.skip;
    } else if (result == CUDA_SUCCESS) {
      if (failure.times != kForever) --failure.times;
      result = failure.error;
      ++entry.refused;
    }
  }
  if (trace_) {
    std::fprintf(stderr, "simulated CUDA: %s(%#llx, %#llx, %#llx, %#llx)%s\n", found->first.c_str(),
                 static_cast<unsigned long long>(arguments[0]),
                 static_cast<unsigned long long>(arguments[1]),
                 static_cast<unsigned long long>(arguments[2]),
                 static_cast<unsigned long long>(arguments[3]),
                 result == CUDA_SUCCESS ? "" : " fails on demand");
  }
  return result;
}

void CallLog::fail(const std::string& function, std::uint64_t nth, CUresult error,
                   std::uint64_t times) {
  if (nth == 0 || times == 0) throw std::invalid_argument("calls are counted from 1");
  const MutexLock lock(mutex_);
  failures_.push_back({function, nth - 1, times, error});
}

void CallLog::fail_from_text(const std::string& text) {
  std::istringstream rules{text};
  for (std::string rule; std::getline(rules, rule, ',');) {
    std::vector<std::string> parts;
    std::istringstream fields{rule};
    for (std::string part; std::getline(fields, part, ':');) parts.push_back(part);
    if (parts.size() < 3 || parts.size() > 4) {
      throw std::invalid_argument("not FUNCTION:CALL:ERROR[:TIMES]: " + rule);
    }
    const std::uint64_t times = parts.size() < 4  ? 1
                                : parts[3] == "*" ? kForever
                                                  : number_from(parts[3]);
    fail(parts[0], number_from(parts[1]), result_from_text(parts[2]), times);
  }
}

CallLog::Entry CallLog::entry(const std::string& function) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(function);
  return found == entries_.end() ? Entry{} : found->second;
}

void CallLog::clear() {
  const MutexLock lock(mutex_);
  entries_.clear();
  failures_.clear();
}

std::string CallLog::json() const {
  const MutexLock lock(mutex_);
  std::ostringstream out;
  out << '{';
  const char* between = "";
  for (const auto& [function, entry] : entries_) {
    out << between << '"' << function << "\": {\"calls\": " << entry.calls
        << ", \"while_capturing\": " << entry.while_capturing << ", \"refused\": " << entry.refused
        << ", \"last\": [";
    for (std::size_t i = 0; i < entry.last.size(); ++i) {
      out << (i == 0 ? "" : ", ") << entry.last[i];
    }
    out << "]}";
    between = ", ";
  }
  out << '}';
  return out.str();
}

void CallLog::trace(bool on) {
  const MutexLock lock(mutex_);
  trace_ = on;
}

}  // namespace commensal::simulated_cuda
