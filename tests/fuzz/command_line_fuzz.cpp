// SPDX-License-Identifier: Apache-2.0
// Any arguments and any configuration file for commensald: options within their bounds, or one
// sentence. The input's lines are arguments; what follows a line "---" is the configuration file.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <vector>

#include "coordinator/node/command_line.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/laws.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal;
using fuzz::require;

bool fraction(double value) { return value >= 0.0 && value <= 1.0; }  // false for nan
bool duration(double seconds) { return seconds >= 0.0 && seconds <= 1e9; }

void check(const node::DaemonOptions& options) {
  require(fraction(options.slo) && fraction(options.trickle) && fraction(options.headroom),
          "fractions are between 0 and 1");
  require(!options.cores || (std::isfinite(*options.cores) && *options.cores > 0), "cores");
  require(duration(options.idle_exit_seconds) && duration(options.control_period_seconds) &&
              duration(options.silence_seconds),
          "times are finite and not negative");
  require(options.memory_budget.bytes ||
              (options.memory_budget.fraction > 0 && options.memory_budget.fraction <= 1),
          "a budget is bytes or a fraction");
  require(wire::to_law(options.law).has_value(), "a law");
  require(!options.instance.empty() && options.instance.find('/') == std::string::npos,
          "an instance's name is a file's name");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text{reinterpret_cast<const char*>(data), size};
  const std::size_t border = text.find("---\n");
  std::vector<std::string> arguments;
  const std::string lines = text.substr(0, border);
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    std::string argument = lines.substr(at, end - at);
    // Only the fuzzer's own configuration is read: another file would be no input of this run.
    if (argument.find("config") == std::string::npos) arguments.push_back(std::move(argument));
    at = end + 1;
  }
  const wire::UniqueFd file{::memfd_create("configuration", MFD_CLOEXEC)};
  require(file.get() >= 0, "a file");
  if (border != std::string::npos) {
    const std::string configuration = text.substr(border + 4);
    require(::write(file.get(), configuration.data(), configuration.size()) ==
                static_cast<ssize_t>(configuration.size()),
            "the configuration is written");
    arguments.push_back("--config=/proc/self/fd/" + std::to_string(file.get()));
  }
  const node::CommandLine line = node::parse_command_line(arguments, "1");
  if (line.options) {
    check(*line.options);
  } else {
    require(!line.text.empty(), "a refusal says why");
  }
  return 0;
}
