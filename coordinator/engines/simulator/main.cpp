// SPDX-License-Identifier: Apache-2.0
// commensal-simulate: runs one trace, or one state, through one policy and prints JSON. Exit codes:
// 0 done, 1 the policy failed or a file could not be written, 2 wrong options, trace or cluster.
#include <CLI/CLI.hpp>
#include <iostream>
#include <stdexcept>

#include "coordinator/engines/simulator/cluster_file.h"
#include "coordinator/engines/simulator/readers/rows.h"
#include "coordinator/engines/simulator/replay.h"
#include "coordinator/engines/simulator/results.h"
#include "coordinator/engines/simulator/run_options.h"

namespace {

using namespace commensal;

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

int fail(int code, const std::exception& error) {
  std::cerr << "commensal-simulate: " << error.what() << "\n";
  return code;
}

nlohmann::json answer(const simulator::RunOptions& options) {
  if (options.list_policies) return simulator::list_policies();
  if (options.list_formats) return simulator::list_formats();
  if (!options.generate.empty()) return simulator::generate(options);
  if (!options.state.empty()) return simulator::replay(options);
  return simulator::run(options, std::cerr);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const simulator::RunOptions options = simulator::parse_run_options(argc, argv);
    std::cout << answer(options).dump(2) << "\n" << std::flush;
    return std::cout ? 0 : kFailed;
  } catch (const CLI::Error&) {
    return simulator::explain_usage();
  } catch (const std::invalid_argument& error) {
    return fail(kBadInput, error);
  } catch (const simulator::BadTrace& error) {
    return fail(kBadInput, error);
  } catch (const simulator::BadCluster& error) {
    return fail(kBadInput, error);
  } catch (const std::exception& error) {
    return fail(kFailed, error);
  }
}
