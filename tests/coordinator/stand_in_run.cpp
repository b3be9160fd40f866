// SPDX-License-Identifier: Apache-2.0
// What `commensal run` is to a node's coordinator, without Python: a process registers as the job,
// with the class and memory that the words say, and obeys while the job's command runs.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/wire/paths.h"
#include "tests/coordinator/fake_job.h"

namespace {

using commensal::JobClass;

/// MIN:MAX, as the cluster's coordinator writes it.
void read_memory(const std::string& text, commensal::wire::Register& hello) {
  const std::size_t colon = text.find(':');
  hello.terms.memory.min = commensal::Bytes{std::stoull(text.substr(0, colon))};
  if (colon + 1 < text.size())
    hello.terms.memory.max = commensal::Bytes{std::stoull(text.substr(colon + 1))};
}

int run(int argc, char** argv) {
  auto hello = commensal::node::registration("", JobClass::kOpportunistic, 0);
  int at = 1;
  for (; at < argc && std::string_view{argv[at]} != "--"; ++at) {
    const std::string word = argv[at];
    if (word == "--guaranteed") hello.job_class = JobClass::kGuaranteed;
    if (word == "--job-id") hello.job_id = argv[++at];
    if (word == "--memory") read_memory(argv[++at], hello);
  }
  if (at + 1 >= argc || hello.job_id.empty()) {
    std::cerr << "stand-in: run --CLASS --job-id ID -- COMMAND\n";
    return 2;
  }
  const char* instance = std::getenv("COMMENSAL_INSTANCE");  // NOLINT(concurrency-mt-unsafe)
  commensal::node::FakeJob job{commensal::wire::default_runtime_dir(), std::move(hello),
                               instance == nullptr ? "default" : instance};
  pid_t pid = 0;
  if (const int error =
          ::posix_spawnp(&pid, argv[at + 1], nullptr, nullptr, argv + at + 1, environ);
      error != 0) {
    std::cerr << "stand-in: cannot run " << argv[at + 1] << '\n';
    return 127;
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "stand-in: " << error.what() << '\n';
    return 1;
  }
}
