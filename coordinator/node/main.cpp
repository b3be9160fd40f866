// SPDX-License-Identifier: Apache-2.0
// commensald: the node coordinator's program.
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "coordinator/node/background.h"
#include "coordinator/node/command_line.h"
#include "coordinator/node/daemon.h"
#include "coordinator/wire/kernel_name.h"
#include "coordinator/wire/paths.h"

namespace {

using commensal::node::CommandLine;
using commensal::node::DaemonOptions;
using commensal::node::ExitCode;
using commensal::node::StartReport;

int fail(ExitCode code, const std::string& text) {
  std::cerr << "commensald: " << text << '\n';
  return static_cast<int>(code);
}

int start(DaemonOptions options) {
  // What is wrong with the folder or the names is said here, where somebody reads it.
  try {
    if (options.runtime_dir.empty()) options.runtime_dir = commensal::wire::default_runtime_dir();
    options.runtime_dir = std::filesystem::absolute(options.runtime_dir);
    if (!options.keys_dir.empty()) options.keys_dir = std::filesystem::absolute(options.keys_dir);
    if (!options.log_file.empty()) options.log_file = std::filesystem::absolute(options.log_file);
    options.runtime_dir = commensal::wire::usable_folder(options.runtime_dir);
    commensal::wire::prepare_runtime_dir(options.runtime_dir);
    (void)commensal::wire::control_socket_path(options.runtime_dir, options.instance);
    (void)commensal::wire::pages_socket_path(options.runtime_dir, options.instance);
  } catch (const std::exception& problem) {
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
  CommandLine line =
      commensal::node::parse_command_line({argv + 1, argv + argc}, COMMENSAL_VERSION);
  if (!line.options) {
    if (line.code != ExitCode::kOk) return fail(line.code, line.text);
    std::cout << line.text;
    return 0;
  }
  if (line.check_config) {
    std::cout << "commensald: the configuration can be used\n";
    return 0;
  }
  return start(*std::move(line.options));
}
