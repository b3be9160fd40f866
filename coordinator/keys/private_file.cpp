// SPDX-License-Identifier: Apache-2.0
#include "coordinator/keys/private_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "coordinator/keys/key_pair.h"
#include "coordinator/wire/handover.h"

namespace commensal::keys {
namespace {

constexpr std::size_t kLargest = 16U << 20U;

KeyProblem cannot(std::string_view verb, std::string_view what, const std::filesystem::path& file) {
  return KeyProblem(fmt::format("cannot {} the {}: {} ({})", verb, what, file.native(),
                                std::generic_category().message(errno)));
}

void check(const struct stat& info, const std::filesystem::path& file, std::string_view what,
           OthersMay others) {
  if (!S_ISREG(info.st_mode)) {
    throw KeyProblem(fmt::format("the {} is not a file: {}", what, file.native()));
  }
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    throw KeyProblem(fmt::format("the {} belongs to another user: {} (uid {}, not {})", what,
                                 file.native(), info.st_uid, geteuid()));
  }
  const mode_t forbidden = others == OthersMay::kRead ? 022U : 077U;
  if ((info.st_mode & forbidden) != 0) {
    throw KeyProblem(fmt::format("the {} is open to other users (chmod 600 it): {} has mode {:04o}",
                                 what, file.native(), info.st_mode & 07777U));
  }
  if (static_cast<std::size_t>(info.st_size) > kLargest) {
    throw KeyProblem(
        fmt::format("the {} is too large: {} has {} bytes", what, file.native(), info.st_size));
  }
}

/// Removes a file that did not take its place.
class Draft {
 public:
  explicit Draft(std::filesystem::path file) : file_(std::move(file)) {}
  ~Draft() {
    if (!file_.empty()) unlink(file_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  void keep() { file_.clear(); }

 private:
  std::filesystem::path file_;
};

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

std::optional<std::string> read_private_file(const std::filesystem::path& file,
                                             std::string_view what, OthersMay others) {
  // Not blocked by a FIFO; a link would lead out of the folder that was checked.
  const wire::UniqueFd fd{open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (!fd) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    throw cannot("open", what, file);
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) throw cannot("look at", what, file);
  check(info, file, what, others);
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t got = read(fd.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw cannot("read", what, file);
    if (got == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.size() > kLargest) {
      throw KeyProblem(fmt::format("the {} is too large: {}", what, file.native()));
    }
  }
}

void write_private_file(const std::filesystem::path& file, std::string_view what,
                        std::string_view text) {
  const std::filesystem::path folder = file.parent_path();
  std::string name = (folder / ("." + file.filename().native() + ".XXXXXX")).native();
  const wire::UniqueFd fd{mkostemp(name.data(), O_CLOEXEC)};  // mode 0600
  if (!fd) throw cannot("write", what, file);
  Draft draft{name};
  if (!write_all(fd.get(), text) || fsync(fd.get()) != 0) throw cannot("write", what, file);
  if (rename(name.c_str(), file.c_str()) != 0) throw cannot("write", what, file);
  draft.keep();
  const wire::UniqueFd dir{open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!dir || fsync(dir.get()) != 0) throw cannot("make sure of", what, file);
}

}  // namespace commensal::keys
