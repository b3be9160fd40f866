// SPDX-License-Identifier: Apache-2.0
// fork, the way to execve, and what the child says when it does not get there.
#include "coordinator/engines/local/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "coordinator/engines/local/program_start.h"
#include "coordinator/engines/local/system_failure.h"

namespace commensal::cluster::local {
namespace {

using wire::UniqueFd;

constexpr int kNotFound = 127;
constexpr int kNotPossible = 126;

/// What the child was doing.
enum class Stage : int { kEnvironment, kControlGroup, kDirectory, kExecute };

struct ChildReport {
  Stage stage{};
  int error = 0;
  int number = 0;  ///< of the control group
};

std::vector<std::string> candidates(const RankStart& start) {
  const std::string& name = start.command.front();
  if (name.find('/') != std::string::npos) return {name};
  const auto found = start.environment.find("PATH");
  const std::string path =
      found == start.environment.end() ? "/usr/local/bin:/usr/bin:/bin" : found->second;
  std::vector<std::string> all;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    all.push_back((end == begin ? "." : path.substr(begin, end - begin)) + '/' + name);
    begin = end + 1;
  }
  return all;
}

/// Everything that the child needs, made before there is one.
struct Prepared {
  explicit Prepared(const RankStart& start) : programs(candidates(start)) {
    for (const auto& [name, value] : start.environment)
      texts.push_back(fmt::format("{}={}", name, value));
    for (std::string& text : texts) variables.push_back(text.data());
    variables.push_back(nullptr);
    for (const std::string& word : start.command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    for (const std::string& group : start.groups) entries.push_back(group + "/cgroup.procs");
  }
  std::vector<std::string> programs;
  std::vector<std::string> texts;
  std::vector<char*> variables;
  std::vector<char*> words;
  std::vector<std::string> entries;
};

void report_to(int reports, ChildReport report) {
  // A pipe takes a few bytes at once; if nobody reads, nobody can be told.
  if (::write(reports, &report, sizeof report) != sizeof report) _exit(kNotPossible);
}

[[noreturn]] void give_up(int reports, Stage stage, int error) {
  report_to(reports, {stage, error, 0});
  _exit(error == ENOENT || error == ENOTDIR ? kNotFound : kNotPossible);
}

void be_as_after_exec(pid_t keeper, const RankStart& start, int reports) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(reports, Stage::kEnvironment, errno);
  if (::getppid() != keeper) _exit(kNotPossible);  // it died before it could take us along
  if (::setpgid(0, start.group) != 0) give_up(reports, Stage::kEnvironment, errno);
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  if (::sigprocmask(SIG_SETMASK, &none, nullptr) != 0) {
    give_up(reports, Stage::kEnvironment, errno);
  }
}

void connect_streams(int output, int reports) {
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing < 0 || ::dup2(nothing, 0) < 0 || ::dup2(output, 1) < 0 || ::dup2(output, 2) < 0) {
    give_up(reports, Stage::kEnvironment, errno);
  }
}

void enter_groups(const Prepared& prepared, int reports) {
  int number = 0;
  for (const std::string& entry : prepared.entries) {
    const int file = ::open(entry.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0 || ::write(file, "0", 1) != 1)
      report_to(reports, {Stage::kControlGroup, errno, number});
    ++number;
  }
}

[[noreturn]] void become(const RankStart& start, const Prepared& prepared, pid_t keeper, int output,
                         int reports) {
  be_as_after_exec(keeper, start, reports);
  connect_streams(output, reports);
  enter_groups(prepared, reports);
  if (::chdir(start.directory.c_str()) != 0) give_up(reports, Stage::kDirectory, errno);
  int error = ENOENT;
  for (const std::string& program : prepared.programs) {
    ::execve(program.c_str(), prepared.words.data(), prepared.variables.data());
    if (errno == ENOENT || errno == ENOTDIR) continue;
    error = errno;
    if (errno != EACCES) break;
  }
  give_up(reports, Stage::kExecute, error);
}

std::string text_of(int error) {
  return error == ENOEXEC ? "it is neither a program nor a script that begins with #!"
                          : std::generic_category().message(error);
}

void take(const ChildReport& report, const RankStart& start, StartedRank& rank) {
  const std::string why = text_of(report.error);
  const bool missing = report.error == ENOENT || report.error == ENOTDIR;
  switch (report.stage) {
    case Stage::kControlGroup:
      rank.problems.push_back(
          "cannot enter " + start.groups.at(static_cast<std::size_t>(report.number)) + ": " + why);
      return;
    case Stage::kDirectory:
      rank.failure = {missing ? kNotFound : kNotPossible,
                      "cannot go to the directory " + start.directory + ": " + why};
      return;
    case Stage::kExecute:
      rank.failure = {missing ? kNotFound : kNotPossible,
                      "cannot execute " + start.command.front() + ": " + why};
      return;
    case Stage::kEnvironment:
      rank.failure = {kNotPossible, "cannot prepare the process: " + why};
      return;
  }
}

void read_reports(int fd, const RankStart& start, StartedRank& rank) {
  while (true) {
    ChildReport report;
    const ssize_t count = ::read(fd, &report, sizeof report);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof report) return;  // the end: it executes its command, or is dead
    take(report, start, rank);
  }
}

}  // namespace

StartedRank start_rank(const RankStart& start) {
  const Prepared prepared{start};
  Pipe output = make_pipe();
  Pipe reports = make_pipe();
  const pid_t keeper = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail("cannot fork");
  if (pid == 0) become(start, prepared, keeper, output.write.get(), reports.write.get());
  // Here too: whoever comes first. It fails once the child has executed its command.
  (void)::setpgid(pid, start.group);
  output.write.reset();
  reports.write.reset();
  StartedRank rank;
  rank.pid = pid;
  read_reports(reports.read.get(), start, rank);
  if (::fcntl(output.read.get(), F_SETFL, O_NONBLOCK) != 0) fail("cannot read without waiting");
  rank.output = std::move(output.read);
  return rank;
}

}  // namespace commensal::cluster::local
