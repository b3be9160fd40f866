// SPDX-License-Identifier: Apache-2.0
// commensal-coordinator's options, read by CLI11.
#include "coordinator/cluster/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "coordinator/keys/remote_client.h"
#include "coordinator/policies/registry.h"
#include "coordinator/wire/paths.h"

namespace commensal::cluster {
namespace {

/// What is turned into options after CLI11 has read it.
struct Words {
  ClusterOptions options;
  std::vector<std::string> policy_options;
  std::vector<std::string> nodes;
  std::string http = "127.0.0.1:0";
  std::int32_t keep_logs_days = 90;
  bool check_config = false;
};

/// A number between two others. (CLI::Range lets "nan" through.)
CLI::Validator between(double least, double most) {
  const std::string range = fmt::format("{} - {}", least, most);
  return {[=](const std::string& text) {
            double value = 0.0;
            const bool inside = CLI::detail::lexical_cast(text, value) && std::isfinite(value) &&
                                value >= least && value <= most;
            return inside ? std::string{} : fmt::format("Value {} not in range [{}]", text, range);
          },
          "FLOAT in [" + range + "]"};
}

constexpr double kLongest = 86'400.0;          // seconds: a day
constexpr std::int32_t kLongestKept = 36'500;  // days

void add_slurm_options(CLI::App& app, ClusterOptions& options) {
  app.add_option("--engine", options.engine, "what starts jobs: this machine, or Slurm")
      ->check(CLI::IsMember({"local", "slurm"}))
      ->capture_default_str();
  app.add_option("--slurm-bin", options.slurm.programs,
                 "folder of sbatch, srun, squeue, sinfo, scontrol, scancel; default: the PATH")
      ->check(CLI::ExistingDirectory);
  app.add_option("--slurm-guaranteed", options.slurm.guaranteed_partition,
                 "partition of guaranteed jobs")
      ->capture_default_str();
  app.add_option("--slurm-opportunistic", options.slurm.opportunistic_partition,
                 "partition of opportunistic jobs")
      ->capture_default_str();
  app.add_option("--slurm-option", options.slurm.submit_options,
                 "word for each sbatch, such as --account=NAME");
}

void add_options(CLI::App& app, Words& line) {
  ClusterOptions& options = line.options;
  app.set_version_flag("--version", "commensal-coordinator " + options.version);
  app.set_config("--config", "", "INI file with any of these options", false);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_option("--instance", options.instance, "name of this coordinator")
      ->envname("COMMENSAL_INSTANCE")
      ->capture_default_str();
  app.add_option("--runtime-dir", options.runtime_dir,
                 "folder of socket, lock and log; only its owner may enter it");
  app.add_option("--state-dir", options.state_dir,
                 "folder of what must not be forgotten; only its owner may enter it");
  app.add_option("--policy", options.policy, "who runs where (commensal simulate --list-policies)")
      ->capture_default_str();
  app.add_option("--option", line.policy_options, "option of the policy, NAME=VALUE");
  add_slurm_options(app, options);
  app.add_option("--devices", options.devices,
                 "devices of this machine, which share its cores; default: its GPUs, or one")
      ->check(CLI::Range(1, 1024));
  app.add_option("--node", line.nodes,
                 "NAME=FOLDER: a node of this machine, by the runtime folder of its\n"
                 "commensald, with --devices of its own; default: this machine as one");
  app.add_option("--retries", options.retries,
                 "starts after failures of nodes, devices, networks, at most")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--semantic-retries", options.semantic_retries,
                 "starts after ranks waited for each other in vain, at most")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--user-retries", options.user_retries, "starts after any other failure, at most")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--node-failures", options.node_failures,
                 "failures of its own within an hour from which on a node is avoided; 0: never")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--bad-input-failures", options.bad_input_failures,
                 "failures at a record of input until other jobs are told to leave it out")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--first-retry", options.first_retry_seconds,
                 "seconds before the first of them; doubled with each")
      ->check(between(0.0, kLongest))
      ->capture_default_str();
  app.add_option("--grace", options.grace_seconds, "seconds between SIGTERM and SIGKILL")
      ->check(between(0.0, kLongest))
      ->capture_default_str();
  app.add_option("--commensal", options.commensal,
                 "program that runs jobs under commensal; default: jobs run as they are");
  app.add_option("--keeper", options.keeper,
                 "program that keeps a job's processes; default: commensal-keeper beside this one");
  app.add_flag("--begin-anew", options.begin_anew,
               "for one start: jobs that run and that the store does not know are ended,\n"
               "where a lost, emptied or exchanged store is else refused (code 4)")
      ->configurable(false);
  app.add_option("--keep-logs", line.keep_logs_days,
                 "days that the output of a job is kept after its end; 0: for ever")
      ->check(CLI::Range(0, kLongestKept))
      ->capture_default_str();
  app.add_option("--listen", options.listen,
                 "tcp://ADDRESS:PORT for other machines, with keys; default: none");
  app.add_option("--keys-dir", options.keys_dir,
                 "folder of keys; default: COMMENSAL_KEYS_DIR, else ~/.config/commensal/keys");
  app.add_option("--http", line.http,
                 "ADDRESS:PORT of the page; port 0: the one of before, or any; off: none")
      ->capture_default_str();
  app.add_option("--http-host", options.page.hosts,
                 "further HOST:PORT that the page is known by, such as that of a proxy");
  app.add_flag("--foreground", options.foreground, "stay attached and log to stderr");
  app.add_option("--log-file", options.log_file,
                 "default: cluster-INSTANCE.log in the runtime folder");
  app.add_option("--log-level", options.log_level, "least important line to log")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical", "off"}))
      ->capture_default_str();
  app.add_flag("--check-config", line.check_config, "read options and configuration, then leave");
  app.footer(
      "Exit codes: 0 started (or ended, with --foreground), 1 internal failure, 2 wrong option or\n"
      "configuration, 3 this instance runs already, 4 a folder, the socket, the store or the\n"
      "address of the page cannot be used.");
}

/// @throws std::invalid_argument.
void add_nodes(Words& line) {
  if (!line.nodes.empty() && line.options.engine != "local") {
    throw std::invalid_argument("--node is for the engine local; the engine " +
                                line.options.engine + " knows its nodes itself");
  }
  for (const std::string& word : line.nodes) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == word.size()) {
      throw std::invalid_argument("a node is NAME=FOLDER, not \"" + word + "\"");
    }
    ClusterOptions::LocalNode node{word.substr(0, equals), word.substr(equals + 1)};
    for (const ClusterOptions::LocalNode& other : line.options.nodes) {
      if (other.name == node.name) {
        throw std::invalid_argument("two nodes are named \"" + node.name + "\"");
      }
    }
    if (!std::filesystem::is_directory(node.folder)) {
      throw std::invalid_argument("the folder of node " + node.name +
                                  " is not there: " + node.folder.native());
    }
    node.folder = std::filesystem::absolute(node.folder);
    (void)wire::control_socket_path(node.folder, line.options.instance);
    line.options.nodes.push_back(std::move(node));
  }
}

/// @throws std::exception with one clear sentence.
void finish(Words& line) {
  wire::check_instance_name(line.options.instance);
  line.options.keep_logs = std::chrono::days{line.keep_logs_days};
  if (!line.options.listen.empty()) keys::check_address(line.options.listen);
  for (const std::string& option : line.policy_options) {
    const std::size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw std::invalid_argument("an option of a policy is NAME=VALUE, not \"" + option + "\"");
    }
    line.options.policy_options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  add_nodes(line);
  if (line.http == "off") {
    line.options.page.address.reset();
  } else {
    line.options.page.address = page::parse_address(line.http);
  }
  const auto policy = policies::make_policy(line.options.policy, line.options.policy_options);
  if (!policy->needs().empty()) {
    throw std::invalid_argument(
        fmt::format("policy {} is for commensal simulate: it needs {}, which nobody knows of jobs "
                    "that are submitted",
                    line.options.policy, policy->needs()));
  }
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments, const std::string& version) {
  CLI::App app{"Decides which jobs of a cluster run where, and starts them.",
               "commensal-coordinator"};
  Words line;
  line.options.version = version;
  add_options(app, line);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
    line.options.page.required = app.get_option("--http")->count() > 0;
    finish(line);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, false, node::ExitCode::kOk, app.help()};
  } catch (const CLI::CallForVersion&) {
    return {std::nullopt, false, node::ExitCode::kOk, "commensal-coordinator " + version + "\n"};
  } catch (const std::exception& error) {
    return {std::nullopt, false, node::ExitCode::kUsage, error.what()};
  }
  return {std::move(line.options), line.check_config, node::ExitCode::kOk, ""};
}

}  // namespace commensal::cluster
