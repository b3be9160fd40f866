// SPDX-License-Identifier: Apache-2.0
// Rotation at ends of lines.
#include "coordinator/engines/local/output_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace commensal::cluster::local {

namespace fs = std::filesystem;

OutputLog::OutputLog(fs::path file, LogLimits limits) : file_(std::move(file)), limits_(limits) {
  limits_.bytes = std::max<std::uint64_t>(limits_.bytes, 1);
  limits_.files = std::max(limits_.files, 1);
  open();
}

void OutputLog::open() {
  wire::UniqueFd fd{
      ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600)};
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot open " + file_.native());
  }
  fd_ = std::move(fd);
  size_ = static_cast<std::uint64_t>(info.st_size);
}

void OutputLog::append(std::string_view text) {
  if (!fd_) reopen();
  while (!text.empty()) {
    const std::size_t count = fitting(text);
    if (count == 0) {
      rotate();
      continue;
    }
    write(text.substr(0, count));
    text.remove_prefix(count);
  }
}

// How much of the text belongs to this file; zero: all of it belongs to the next one.
std::size_t OutputLog::fitting(std::string_view text) const {
  const std::uint64_t room = size_ < limits_.bytes ? limits_.bytes - size_ : 0;
  if (text.size() <= room) return text.size();
  const std::size_t end = room == 0 ? std::string_view::npos : text.rfind('\n', room - 1);
  if (end != std::string_view::npos) return end + 1;
  if (at_line_start_ && size_ > 0) return 0;
  // In the middle of a line: its rest belongs here, unless it has no end.
  const std::size_t rest = std::min(text.find('\n'), text.size() - 1) + 1;
  const std::uint64_t most = size_ < 2 * limits_.bytes ? 2 * limits_.bytes - size_ : 0;
  return static_cast<std::size_t>(std::min<std::uint64_t>(rest, most));
}

void OutputLog::rotate() {
  const auto name = [&](int number) {
    return number == 0 ? file_ : fs::path{file_.native() + '.' + std::to_string(number)};
  };
  std::error_code ignored;  // a file that cannot be renamed is written on
  if (limits_.files == 1) fs::remove(file_, ignored);
  int last = 1;
  while (last < limits_.files - 1 && fs::exists(name(last), ignored)) ++last;
  for (int number = std::min(last, limits_.files - 1); number > 0; --number) {
    fs::rename(name(number - 1), name(number), ignored);
  }
  at_line_start_ = true;
  reopen();
  size_ = 0;  // where the old file could not be moved, it goes on as if it were new
}

void OutputLog::reopen() {
  try {
    open();
  } catch (const std::system_error& error) {
    last_error_ = error.code().value();
    fd_.reset();
  }
}

void OutputLog::write(std::string_view text) {
  if (lost_ > 0) {
    const std::string note = "[commensal: " + std::to_string(lost_) + " bytes of output lost: " +
                             std::generic_category().message(last_error_) + "]\n";
    if (!fd_ || ::write(fd_.get(), note.data(), note.size()) != static_cast<ssize_t>(note.size())) {
      lost_ += text.size();
      size_ += text.size();
      return;
    }
    lost_ = 0;
  }
  at_line_start_ = text.back() == '\n';
  size_ += text.size();
  while (!text.empty()) {
    const ssize_t written = fd_ ? ::write(fd_.get(), text.data(), text.size()) : -1;
    if (written < 0 && fd_ && errno == EINTR) continue;
    if (written < 0) {
      if (fd_) last_error_ = errno;
      lost_ += text.size();
      return;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace commensal::cluster::local
