// SPDX-License-Identifier: Apache-2.0
// Any file of keys: a key, a public key, or the list of those that are allowed; or KeyProblem.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "coordinator/keys/allowed_keys.h"
#include "coordinator/keys/key_folder.h"
#include "coordinator/keys/private_file.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal;
using fuzz::require;

/// A folder in memory.
struct Folder {
  Folder() {
    std::string name = "/dev/shm/commensal-fuzz-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr, "a folder");
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

void write(const std::filesystem::path& file, const std::uint8_t* data, std::size_t size) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  require(fd >= 0, "a file");
  require(::write(fd, data, size) == static_cast<ssize_t>(size), "the file is written");
  ::close(fd);
}

template <typename Read>
void read(Read what) {
  try {
    (void)what();
  } catch (const keys::KeyProblem& problem) {
    require(problem.what()[0] != '\0', "a refusal has a reason");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder kFolder;
  const keys::KeyFolder keys{kFolder.path / "keys"};
  keys.prepare();
  const keys::AllowedStore allowed{keys};
  write(keys.key_file("peer"), data, size);
  write(keys.public_file("peer"), data, size);
  write(allowed.file(), data, size);
  read([&] { return keys.load("peer"); });
  read([&] { return keys.load_public("peer"); });
  read([&] { return allowed.read(); });
  return 0;
}
