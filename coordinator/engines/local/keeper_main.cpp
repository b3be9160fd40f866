// SPDX-License-Identifier: Apache-2.0
// commensal-keeper: runs one attempt of a job; started by the local engine.
#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "coordinator/engines/local/keeper.h"

namespace {

int run(int argc, char** argv) {
  using namespace commensal;
  using namespace commensal::cluster;
  CLI::App app{
      "Runs one attempt of a job until it ends. The local engine starts it; it goes on when "
      "the coordinator is gone.",
      "commensal-keeper"};
  std::string state;
  std::string job;
  std::uint32_t number = 0;
  app.set_version_flag("--version", COMMENSAL_VERSION);
  std::string node_variable;
  app.add_option("--part-of", node_variable,
                 "runs the ranks of one node alone, of the one that this variable names; reads "
                 "orders and prints reports")
      ->type_name("VARIABLE");
  app.add_option("STATE", state, "the engine's folder")->required();
  app.add_option("JOB", job, "the job's id")->required();
  app.add_option("ATTEMPT", number, "number of the attempt")->required();
  CLI11_PARSE(app, argc, argv);
  spdlog::set_default_logger(spdlog::stderr_logger_st("keeper"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  if (const auto why = local::obstacle_to_folder(JobId{job}); !why.empty()) {
    spdlog::error("{}", why);
    return 2;
  }
  const local::AttemptFolder folder{state, {JobId{job}, number}};
  if (node_variable.empty()) return local::keep(folder);
  const char* node = std::getenv(node_variable.c_str());  // NOLINT(concurrency-mt-unsafe)
  if (node == nullptr) {
    spdlog::error("{} is not set: it is to name this node", node_variable);
    return 2;
  }
  return local::keep_part(folder, node, STDIN_FILENO, STDOUT_FILENO);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "commensal-keeper: " << error.what() << '\n';
    return 1;
  }
}
