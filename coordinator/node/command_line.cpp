// SPDX-License-Identifier: Apache-2.0
// commensald's options, read by CLI11.
#include "coordinator/node/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <exception>

#include "coordinator/keys/key_folder.h"
#include "coordinator/keys/remote_client.h"
#include "coordinator/wire/laws.h"
#include "coordinator/wire/paths.h"

namespace commensal::node {
namespace {

/// What is turned into options after CLI11 has read it.
struct Words {
  DaemonOptions options;
  std::string memory_budget = "0.8";
  std::string budget_covers = "auto";
  std::string gpu_budget = "1";
  std::string last_resort = "stop";
  double cores = 0.0;
  bool check_config = false;
};

/// A number between two others. (CLI::Range lets "nan" through.)
CLI::Validator between(double least, double most) {
  const std::string range = CLI::detail::to_string(least) + " - " + CLI::detail::to_string(most);
  return {[=](const std::string& text) {
            double value = 0.0;
            const bool inside = CLI::detail::lexical_cast(text, value) && std::isfinite(value) &&
                                value >= least && value <= most;
            return inside ? std::string{} : "Value " + text + " not in range [" + range + "]";
          },
          "FLOAT in [" + range + "]"};
}

std::vector<std::string> law_choices() {
  std::vector<std::string> names;
  names.reserve(wire::kLaws.size());
  for (const wire::LawId law : wire::kLaws) names.emplace_back(wire::to_string(law));
  return names;
}

constexpr double kLongest = 1e9;  // seconds: 31 years fit into a Duration, and more does not help

void add_options(CLI::App& app, Words& line) {
  DaemonOptions& options = line.options;
  app.set_version_flag("--version", "commensald " + options.version);
  app.set_config("--config", "", "INI file with any of these options", false);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_option("--instance", options.instance, "name of this coordinator")
      ->envname("COMMENSAL_INSTANCE")
      ->capture_default_str();
  app.add_option("--runtime-dir", options.runtime_dir,
                 "folder of sockets, lock and log; only its owner may enter it");
  app.add_option("--memory-budget", line.memory_budget,
                 "memory to divide: bytes (6GiB) or a fraction of what is available (0.8)")
      ->capture_default_str();
  app.add_option("--budget-covers", line.budget_covers,
                 "what counts against it: all that jobs hold, or the memory that commensal manages "
                 "(managed); auto: all for a fraction, managed for bytes")
      ->check(CLI::IsMember({"auto", "all", "managed"}))
      ->capture_default_str();
  app.add_option("--cores", line.cores, "cores to divide; default: affinity and quotas")
      ->check(between(0.01, 65536.0));
  app.add_option("--gpu-memory-budget", line.gpu_budget,
                 "memory of each GPU to divide: bytes or a fraction of it")
      ->capture_default_str();
  app.add_option("--trickle", options.trickle, "share that an opportunistic job always has")
      ->check(between(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--slo", options.slo, "slowdown that guaranteed jobs may see, a fraction")
      ->check(between(1e-6, 0.5))
      ->capture_default_str();
  app.add_option("--headroom", options.headroom,
                 "fraction of the device kept free above what guaranteed jobs want")
      ->check(between(0.0, 0.5))
      ->capture_default_str();
  app.add_option("--last-resort", line.last_resort,
                 "what an opportunistic job may suffer at most that holds what a guaranteed job "
                 "lacks of its minimum and cannot give it back: to be stopped for a while, or to "
                 "be ended with 30 s notice (end)")
      ->check(CLI::IsMember({"stop", "end"}))
      ->capture_default_str();
  app.add_option("--law", options.law, "pacing law of opportunistic jobs that ask for none")
      ->check(CLI::IsMember(law_choices()))
      ->capture_default_str();
  app.add_option("--idle-exit", options.idle_exit_seconds,
                 "leave after so many seconds without a job; 0: never")
      ->check(between(0.0, kLongest))
      ->capture_default_str();
  app.add_option("--control-period", options.control_period_seconds,
                 "seconds between two changes of a share")
      ->check(between(0.05, 60.0))
      ->capture_default_str();
  app.add_option("--silence", options.silence_seconds,
                 "a process that cannot be watched counts as gone after so many silent seconds")
      ->check(between(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--coordinator", options.cluster,
                 "tcp://HOST:PORT of the cluster's coordinator to report to, with a key of the "
                 "role node; then the default of --idle-exit is never");
  app.add_option("--keys-dir", options.keys_dir,
                 "folder of keys; default: COMMENSAL_KEYS_DIR, else ~/.config/commensal/keys");
  app.add_option("--key", options.key, "name of this node's key there")->capture_default_str();
  app.add_flag("--foreground", options.foreground, "stay attached and log to stderr");
  app.add_option("--log-file", options.log_file, "default: INSTANCE.log in the runtime folder");
  app.add_option("--log-level", options.log_level, "least important line to log")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical", "off"}))
      ->capture_default_str();
  app.add_flag("--check-config", line.check_config, "read options and configuration, then leave");
  app.footer(
      "Exit codes: 0 started (or ended, with --foreground), 1 internal failure, 2 wrong option or\n"
      "configuration, 3 this instance runs already, 4 runtime folder or sockets cannot be used.");
}

/// Turns what CLI11 read into options. @throws std::exception with one clear sentence.
void finish(const CLI::App& app, Words& line) {
  if (!line.options.cluster.empty()) {
    keys::check_address(line.options.cluster);
    keys::check_key_name(line.options.key);
    if (app.count("--idle-exit") == 0) line.options.idle_exit_seconds = 0;
  }
  line.options.memory_budget = parse_memory_budget(line.memory_budget);
  line.options.gpu_budget = parse_memory_budget(line.gpu_budget);
  if (line.budget_covers != "auto") line.options.covers_all = line.budget_covers == "all";
  if (line.cores > 0) line.options.cores = line.cores;
  line.options.may_end = line.last_resort == "end";
  wire::check_instance_name(line.options.instance);
}

CommandLine refusal(const std::string& text) {
  return {std::nullopt, false, ExitCode::kUsage, text};
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments, const std::string& version) {
  CLI::App app{"Divides this machine's cores and memory among the training jobs on it.",
               "commensald"};
  Words line;
  line.options.version = version;
  add_options(app, line);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
    finish(app, line);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, false, ExitCode::kOk, app.help()};
  } catch (const CLI::CallForVersion&) {
    return {std::nullopt, false, ExitCode::kOk, "commensald " + version + "\n"};
  } catch (const std::exception& error) {
    return refusal(error.what());
  }
  return {std::move(line.options), line.check_config, ExitCode::kOk, ""};
}

}  // namespace commensal::node
