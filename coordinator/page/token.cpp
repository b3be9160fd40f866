// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/token.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <system_error>

#include "coordinator/wire/handover.h"

namespace commensal::page {
namespace {

constexpr std::size_t kBytes = 32;

std::runtime_error problem(const std::filesystem::path& file, const std::string& what) {
  return std::runtime_error(
      fmt::format("the page's token {} cannot be used: {}; remove the file to have a new one made",
                  file.native(), what));
}

std::string reason(int error) { return std::generic_category().message(error); }

std::string new_token() {
  std::array<std::uint8_t, kBytes> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::runtime_error("no random numbers: " + reason(errno));
  }
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// Makes the file whole or not at all. @return false if another one was quicker.
bool make_file(const std::filesystem::path& file) {
  const std::filesystem::path fresh = file.native() + fmt::format(".{}", getpid());
  const wire::UniqueFd fd{
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (!fd) throw problem(file, reason(errno));
  const std::string text = new_token() + "\n";
  const bool written =
      ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(fd.get()) == 0;
  const int write_error = errno;
  const bool linked = written && ::link(fresh.c_str(), file.c_str()) == 0;
  const int link_error = errno;
  ::unlink(fresh.c_str());
  if (!written) throw problem(file, reason(write_error));
  if (!linked && link_error != EEXIST) throw problem(file, reason(link_error));
  return linked;
}

}  // namespace

std::string token_in(const std::filesystem::path& file) {
  wire::UniqueFd fd{::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
  if (!fd && errno == ENOENT) {
    (void)make_file(file);
    fd = wire::UniqueFd{::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)};
  }
  if (!fd) throw problem(file, reason(errno));
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) throw problem(file, reason(errno));
  if (facts.st_uid != ::geteuid()) throw problem(file, "it belongs to another user");
  if ((facts.st_mode & 077) != 0) {
    throw problem(file, fmt::format("others may open it (mode {:04o})", facts.st_mode & 07777));
  }
  std::array<char, 2 * kBytes + 2> bytes{};
  const ssize_t size = ::read(fd.get(), bytes.data(), bytes.size());
  if (size < 0) throw problem(file, reason(errno));
  std::string text{bytes.data(), static_cast<std::size_t>(size)};
  if (text.ends_with('\n')) text.pop_back();
  if (text.size() != 2 * kBytes ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw problem(file, "it does not hold 64 hexadecimal digits");
  }
  return text;
}

bool same_secret(std::string_view one, std::string_view other) noexcept {
  if (one.size() != other.size()) return false;
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    difference = static_cast<unsigned char>(
        difference | (static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i])));
  }
  return difference == 0;
}

}  // namespace commensal::page
