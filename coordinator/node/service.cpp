// SPDX-License-Identifier: Apache-2.0
// Signals and log of a daemon.
#include "coordinator/node/service.h"

#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <vector>

namespace commensal::node {
namespace {

constexpr std::size_t kLogBytes = 4U << 20U;
constexpr std::size_t kLogFiles = 3;

using FileSink = spdlog::sinks::rotating_file_sink_st;
constexpr const char* kPattern = "%Y-%m-%d %H:%M:%S.%e %^%l%$ %v";

}  // namespace

wire::UniqueFd block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0 || std::signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
    throw std::system_error(errno, std::generic_category(), "cannot block signals");
  }
  wire::UniqueFd fd{signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)};
  if (!fd) throw std::system_error(errno, std::generic_category(), "cannot make a signalfd");
  return fd;
}

std::shared_ptr<spdlog::logger> make_log(const std::string& name, const std::filesystem::path& file,
                                         bool to_stderr, const std::string& level) {
  std::vector<spdlog::sink_ptr> sinks;
  if (to_stderr) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_st>());
  if (!file.empty()) {
    sinks.push_back(std::make_shared<FileSink>(file.native(), kLogBytes, kLogFiles));
  }
  auto log = std::make_shared<spdlog::logger>(name, sinks.begin(), sinks.end());
  log->set_pattern(kPattern);
  log->set_level(spdlog::level::from_str(level));
  log->flush_on(spdlog::level::info);
  return log;
}

void move_log(spdlog::logger& log, const std::filesystem::path& file) {
  for (spdlog::sink_ptr& sink : log.sinks()) {
    if (std::dynamic_pointer_cast<FileSink>(sink) == nullptr) continue;
    sink = std::make_shared<FileSink>(file.native(), kLogBytes, kLogFiles);
    sink->set_pattern(kPattern);
  }
}

}  // namespace commensal::node
