// SPDX-License-Identifier: Apache-2.0
// commensal-keeper: runs one attempt of a job; started by the local engine.
#include <fcntl.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
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
  return local::keep(local::AttemptFolder{state, {JobId{job}, number}});
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
