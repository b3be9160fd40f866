// SPDX-License-Identifier: Apache-2.0
// Slurm as a small state machine behind the words of its commands. What it starts are real
// processes of this machine, so that a job's keeper is as real as on a node.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/engines/slurm/command_runner.h"

namespace commensal::cluster {

class FakeSlurm : public slurm::CommandRunner {
 public:
  struct Job {
    std::uint64_t id = 0;
    std::map<std::string, std::string> options;  ///< of sbatch, without "--"
    std::vector<std::string> words;              ///< the script and its arguments
    std::string state = "PENDING";
    std::string reason = "JobHeldUser";
    std::string nodes;    ///< ReqNodeList
    std::string devices;  ///< their numbers on each node, once it runs
    std::string command;  ///< as Slurm shows it, with its arguments
    pid_t pid = 0;
  };

  FakeSlurm() = default;
  FakeSlurm(const FakeSlurm&) = delete;
  FakeSlurm& operator=(const FakeSlurm&) = delete;
  ~FakeSlurm() override {
    for (auto& [id, job] : jobs) end(job, SIGKILL, true);
  }

  std::map<std::uint64_t, Job> jobs;
  std::string nodes =  // as sinfo of 22.05 prints them: a line for each partition
      "n1|idle|4|4000|gpu:2,seat:2|127.0.0.1|none\n"
      "n1|idle|4|4000|gpu:2,seat:2|127.0.0.1|none\n"
      "n2|mixed|4|4000|gpu:2,seat:2|127.0.0.1|none\n";
  bool starts_jobs = true;               ///< else what was released waits for resources
  bool silent = false;                   ///< the controller does not answer
  std::deque<std::string> next_devices;  ///< of the next jobs to start; else "0"
  /// What becomes of a program that srun starts within a running job.
  std::function<slurm::CommandResult(const std::vector<std::string>&)> within;
  std::vector<std::vector<std::string>> calls;
  /// Called before a command is carried out; what it returns is the answer instead, if there is
  /// one.
  std::function<std::optional<slurm::CommandResult>(const std::vector<std::string>&)> before;
  /// The next sbatch is carried out, and its answer lost.
  bool lose_answer = false;

  [[nodiscard]] slurm::CommandResult run(const std::vector<std::string>& words,
                                         std::chrono::milliseconds /*deadline*/) override {
    calls.push_back(words);
    if (before) {
      if (auto answer = before(words)) return *std::move(answer);
    }
    if (silent) return {1, "", "slurm_load: Unable to contact slurm controller (connect failure)"};
    tick();
    const std::string program = words.front().substr(words.front().rfind('/') + 1);
    if (program == "sinfo") return {0, nodes, ""};
    if (program == "squeue") return queue(words);
    if (program == "sbatch") return sbatch(words);
    if (program == "scontrol") return scontrol(words);
    if (program == "scancel") return scancel(words);
    if (program == "srun" && within) return within(words);
    throw EngineFailed("cannot run " + program + ": No such file or directory");
  }

  /// Sees which jobs have ended, and starts those that may.
  void tick() {
    for (auto& [id, job] : jobs) {
      int status = 0;
      if (job.pid > 0 && ::waitpid(job.pid, &status, WNOHANG) == job.pid) {
        job.pid = 0;
        job.state = status == 0 ? "COMPLETED" : "FAILED";
      }
      const bool may = job.state == "PENDING" && job.reason == "None" && starts_jobs;
      if (may && !job.nodes.empty()) start(job);
    }
  }
  /// As when its node dies.
  void kill(std::uint64_t id, const std::string& state) {
    end(jobs.at(id), SIGKILL, true);
    jobs.at(id).state = state;
  }
  /// MinJobAge has passed.
  void forget_ended() {
    tick();
    std::erase_if(jobs, [](const auto& entry) {
      return entry.second.state != "PENDING" && entry.second.state != "RUNNING";
    });
  }
  [[nodiscard]] std::vector<std::string> called(const std::string& program) const {
    std::vector<std::string> found;
    for (const auto& words : calls) {
      std::string line = words.front().substr(words.front().rfind('/') + 1);
      if (line != program) continue;
      for (std::size_t i = 1; i < words.size(); ++i) line += ' ' + words[i];
      found.push_back(line);
    }
    return found;
  }

 private:
  static void end(Job& job, int signal, bool wait) {
    if (job.pid <= 0) return;
    ::kill(job.pid, signal);
    if (!wait) return;
    while (::waitpid(job.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    job.pid = 0;
  }

  /// What an option's value is; empty: it is not among the words.
  static std::string option(const std::vector<std::string>& words, const std::string& name) {
    for (const std::string& word : words) {
      if (word.starts_with(name + '=')) return word.substr(name.size() + 1);
    }
    return "";
  }

  [[nodiscard]] slurm::CommandResult queue(const std::vector<std::string>& words) {
    const std::string format = option(words, "--format");
    if (format == slurm::kLimitFormat) {
      const Job* job = find(option(words, "--jobs"));
      if (job == nullptr) return {1, "", "slurm_load_jobs error: Invalid job id specified"};
      const auto time = job->options.find("time");
      return {0, (time == job->options.end() ? "NOT_SET" : time->second) + '\n', ""};
    }
    const std::string node = option(words, "--nodelist");
    std::string text;
    if (node.empty()) text = "4000|RUNNING|None|somebody's own\nwith a line|in its name\n";
    for (const auto& [id, job] : jobs) {
      if (!node.empty() && (job.state != "RUNNING" || job.nodes != node)) continue;
      text += std::to_string(id);
      if (format != slurm::kIdFormat) {
        text += '|' + job.state + '|' + job.reason + '|' + job.options.at("job-name");
      }
      text += '\n';
    }
    return {0, text, ""};
  }

  slurm::CommandResult sbatch(const std::vector<std::string>& words) {
    Job job;
    std::size_t at = 1;
    for (; at < words.size() && words[at].starts_with("--"); ++at) {
      const std::size_t equals = words[at].find('=');
      job.options[words[at].substr(2, equals - 2)] =
          equals == std::string::npos ? "" : words[at].substr(equals + 1);
    }
    job.words.assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
    if (job.words.empty() || !job.options.contains("job-name")) {
      return {1, "", "sbatch: error: Batch script is empty!"};
    }
    if (!job.options.contains("hold")) job.reason = "None";
    job.id = ++last_;
    jobs[job.id] = job;
    if (std::exchange(lose_answer, false)) {
      return {1, "", "sbatch: error: Batch job submission failed: Socket timed out"};
    }
    return {0, std::to_string(job.id) + '\n', ""};
  }

  Job* find(const std::string& id) {
    const auto found = jobs.find(std::stoull(id));
    return found == jobs.end() ? nullptr : &found->second;
  }

  slurm::CommandResult scontrol(const std::vector<std::string>& words) {
    if (words.at(1) == "show") return {0, on_lines(words.at(3)), ""};
    if (words.at(1) == "--oneliner") return show(words.back());
    const bool update = words.at(1) == "update";
    Job* job = find(update ? words.at(2).substr(words.at(2).find('=') + 1) : words.at(2));
    if (job == nullptr) return {1, "", "Invalid job id specified"};
    if (job->state != "PENDING") return {1, "", "Job is no longer pending execution"};
    if (update) {
      job->nodes = words.at(3).substr(words.at(3).find('=') + 1);
    } else {
      job->reason = "None";
      tick();
    }
    return {0, "", ""};
  }

  static std::string on_lines(std::string names) {
    std::replace(names.begin(), names.end(), ',', '\n');
    return names + '\n';
  }

  slurm::CommandResult show(const std::string& id) {
    const Job* job = find(id);
    if (job == nullptr) return {1, "", "slurm_load_jobs error: Invalid job id specified"};
    std::string text = "JobId=" + id + " JobName=" + job->options.at("job-name");
    std::string names = on_lines(job->nodes);
    for (std::size_t end = names.find('\n'); end != std::string::npos; end = names.find('\n')) {
      text += " Nodes=" + names.substr(0, end) + " CPU_IDs=0 Mem=100 GRES=";
      const auto gres = job->options.find("gres");
      const bool gpu = gres != job->options.end() && gres->second.starts_with("gpu");
      if (gres != job->options.end()) text += gpu ? "gpu:1" : "seat:1";
      if (gres != job->options.end()) text += "(IDX:" + job->devices + ")";
      names.erase(0, end + 1);
    }
    const auto comment = job->options.find("comment");
    text += " MinCPUsNode=1 Features=(null) Command=" + job->command;
    if (comment != job->options.end()) text += " Comment=" + comment->second;
    return {0, text + '\n', ""};
  }

  slurm::CommandResult scancel(const std::vector<std::string>& words) {
    Job* job = find(words.back());
    const bool signal = std::find(words.begin(), words.end(), "--signal=TERM") != words.end();
    if (job == nullptr) return {1, "", "Invalid job id specified"};
    if (job->state == "PENDING") {
      if (signal) return {228, "", "Job can not be altered now, try again later"};
      job->state = "CANCELLED";
    } else if (job->state == "RUNNING") {
      end(*job, signal ? SIGTERM : SIGKILL, !signal);
      if (!signal) job->state = "CANCELLED";
    } else if (signal) {
      return {1, "", "Job/step already completing or completed"};
    }
    return {0, "", ""};
  }

  void start(Job& job) {
    job.devices = "0";
    if (!next_devices.empty() && job.options.at("partition") != "opportunistic") {
      job.devices = next_devices.front();
      next_devices.pop_front();
    }
    std::vector<std::string> copy = job.words;
    std::vector<char*> arguments{const_cast<char*>("/bin/sh")};
    for (std::string& word : copy) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    std::string output = job.options.at("output");
    for (std::size_t at = output.find("%%"); at != std::string::npos; at = output.find("%%", at)) {
      output.erase(at++, 1);
    }
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    std::vector<std::string> own{"SLURM_JOB_ID=" + std::to_string(job.id),
                                 "SLURM_JOB_NODELIST=" + job.nodes, "CUDA_VISIBLE_DEVICES=3,5"};
    std::vector<char*> variables;
    for (char** variable = environ; *variable != nullptr; ++variable)
      variables.push_back(*variable);
    for (std::string& variable : own) variables.push_back(variable.data());
    variables.push_back(nullptr);
    const int error =
        ::posix_spawn(&job.pid, "/bin/sh", &files, &attributes, arguments.data(), variables.data());
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) throw std::system_error(error, std::generic_category(), "/bin/sh");
    job.state = "RUNNING";
  }

  std::uint64_t last_ = 0;
};

}  // namespace commensal::cluster
