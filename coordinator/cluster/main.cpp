// SPDX-License-Identifier: Apache-2.0
// commensal-coordinator: the cluster coordinator's program.
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>

#include "coordinator/cluster/command_line.h"
#include "coordinator/cluster/daemon.h"
#include "coordinator/cluster/programs.h"
#include "coordinator/node/background.h"
#include "coordinator/wire/kernel_name.h"
#include "coordinator/wire/paths.h"

namespace {

using commensal::cluster::ClusterOptions;
using commensal::cluster::CommandLine;
using commensal::node::ExitCode;
using commensal::node::StartReport;

int fail(ExitCode code, const std::string& text) {
  std::cerr << "commensal-coordinator: " << text << '\n';
  return static_cast<int>(code);
}

/// The folder where programs of ours are installed beside this one.
std::filesystem::path own_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

int start(ClusterOptions options) {
  try {
    if (options.runtime_dir.empty()) options.runtime_dir = commensal::wire::default_runtime_dir();
    if (options.state_dir.empty()) {
      options.state_dir = commensal::cluster::default_state_dir() / options.instance;
    }
    options.runtime_dir = commensal::wire::usable_folder(options.runtime_dir);
    commensal::wire::prepare_runtime_dir(options.runtime_dir);
    (void)commensal::cluster::cluster_socket_path(options.runtime_dir, options.instance);
  } catch (const std::exception& problem) {
    return fail(ExitCode::kNoSockets, problem.what());
  }
  if (options.foreground) {
    const ExitCode code = commensal::cluster::run_daemon(options, [](const StartReport& report) {
      if (report.code != ExitCode::kOk) fail(report.code, report.text);
    });
    return static_cast<int>(code);
  }
  const StartReport report = commensal::node::run_in_background(
      [&](const auto& started) { return commensal::cluster::run_daemon(options, started); });
  if (report.code != ExitCode::kOk) return fail(report.code, report.text);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CommandLine line =
      commensal::cluster::parse_command_line({argv + 1, argv + argc}, COMMENSAL_VERSION);
  if (!line.options) {
    if (line.code != ExitCode::kOk) return fail(line.code, line.text);
    std::cout << line.text;
    return 0;
  }
  try {
    commensal::cluster::resolve_paths(*line.options, std::filesystem::current_path(), own_folder());
  } catch (const std::exception& problem) {
    return fail(ExitCode::kUsage, problem.what());
  }
  if (line.check_config) {
    std::cout << "commensal-coordinator: the configuration can be used\n";
    return 0;
  }
  return start(*std::move(line.options));
}
