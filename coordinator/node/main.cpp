// SPDX-License-Identifier: Apache-2.0
// commensald: the node coordinator's command line.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "coordinator/node/background.h"
#include "coordinator/node/daemon.h"
#include "coordinator/wire/paths.h"

namespace {

using commensal::node::DaemonOptions;
using commensal::node::ExitCode;
using commensal::node::StartReport;

struct CommandLine {
  DaemonOptions options;
  std::string memory_budget = "0.8";
  double cores = 0.0;
  bool check_config = false;
};

void add_options(CLI::App& app, CommandLine& line) {
  DaemonOptions& options = line.options;
  app.set_version_flag("--version", std::string{"commensald "} + COMMENSAL_VERSION);
  app.set_config("--config", "", "INI file with any of these options", false);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_option("--instance", options.instance, "name of this coordinator")->capture_default_str();
  app.add_option("--runtime-dir", options.runtime_dir,
                 "folder of sockets, lock and log; only its owner may enter it");
  app.add_option("--memory-budget", line.memory_budget,
                 "memory to divide: bytes (6GiB) or a fraction of what is available (0.8)")
      ->capture_default_str();
  app.add_option("--cores", line.cores, "cores to divide; default: affinity and quotas")
      ->check(CLI::Range(0.01, 65536.0));
  app.add_option("--trickle", options.trickle, "share that an opportunistic job always has")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--slo", options.slo, "slowdown that guaranteed jobs may see")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--headroom", options.headroom,
                 "fraction of the device kept free above what guaranteed jobs want")
      ->check(CLI::Range(0.0, 0.5))
      ->capture_default_str();
  app.add_option("--law", options.law, "pacing law of opportunistic jobs that ask for none")
      ->check(CLI::IsMember({"gap", "duty_cycle", "open"}))
      ->capture_default_str();
  app.add_option("--idle-exit", options.idle_exit_seconds,
                 "leave after so many seconds without a job; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--control-period", options.control_period_seconds,
                 "seconds between two changes of a share")
      ->check(CLI::Range(0.05, 60.0))
      ->capture_default_str();
  app.add_option("--silence", options.silence_seconds,
                 "a process that cannot be watched counts as gone after so many silent seconds")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
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
void finish(CommandLine& line) {
  DaemonOptions& options = line.options;
  options.memory_budget = commensal::node::parse_memory_budget(line.memory_budget);
  if (line.cores > 0) options.cores = line.cores;
  if (options.runtime_dir.empty()) options.runtime_dir = commensal::wire::default_runtime_dir();
  options.runtime_dir = std::filesystem::absolute(options.runtime_dir);
  if (!options.log_file.empty()) options.log_file = std::filesystem::absolute(options.log_file);
  options.version = COMMENSAL_VERSION;
  commensal::wire::check_instance_name(options.instance);
}

int fail(ExitCode code, const std::string& text) {
  std::cerr << "commensald: " << text << '\n';
  return static_cast<int>(code);
}

int start(const DaemonOptions& options) {
  // What is wrong with the folder or the names is said here, where somebody reads it.
  try {
    commensal::wire::prepare_runtime_dir(options.runtime_dir);
    (void)commensal::wire::control_socket_path(options.runtime_dir, options.instance);
    (void)commensal::wire::pages_socket_path(options.runtime_dir, options.instance);
  } catch (const commensal::wire::BadPath& problem) {
    return fail(ExitCode::kNoSockets, problem.what());
  }
  if (options.foreground) {
    const ExitCode code = commensal::node::run_daemon(options, [](const StartReport& report) {
      if (report.code != ExitCode::kOk) fail(report.code, report.text);
    });
    return static_cast<int>(code);
  }
  const StartReport report = commensal::node::run_in_background(
      [&](const auto& started) { return commensal::node::run_daemon(options, started); });
  if (report.code != ExitCode::kOk) return fail(report.code, report.text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Divides this machine's cores and memory among the training jobs on it."};
  CommandLine line;
  add_options(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(ExitCode::kUsage, error.what());
  }
  try {
    finish(line);
  } catch (const std::exception& error) {
    return fail(ExitCode::kUsage, error.what());
  }
  if (line.check_config) {
    std::cout << "commensald: the configuration can be used\n";
    return 0;
  }
  return start(line.options);
}
