// SPDX-License-Identifier: Apache-2.0
// Asks statfs and the table of mounts.
#include "allocator/host/file_system.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "allocator/host/own_descriptors.h"

namespace commensal {
namespace {

struct Known {
  std::uint64_t magic;
  std::string_view type;
  FolderKind kind;
};

constexpr std::uint64_t kHugetlbfs = 0x958458f6;
constexpr std::uint64_t kCifs = 0xff534d42;
constexpr std::uint64_t kSmb2 = 0xfe534d42;
constexpr std::uint64_t kLustre = 0x0bd00bd0;
constexpr std::uint64_t kGpfs = 0x47504653;
constexpr std::uint64_t kBeegfs = 0x19830326;

constexpr std::array kKnown{
    Known{TMPFS_MAGIC, "tmpfs", FolderKind::kMemory},
    Known{RAMFS_MAGIC, "ramfs", FolderKind::kMemory},
    Known{kHugetlbfs, "hugetlbfs", FolderKind::kMemory},
    Known{NFS_SUPER_MAGIC, "nfs", FolderKind::kNetwork},
    Known{SMB_SUPER_MAGIC, "smb", FolderKind::kNetwork},
    Known{kCifs, "cifs", FolderKind::kNetwork},
    Known{kSmb2, "smb3", FolderKind::kNetwork},
    Known{CEPH_SUPER_MAGIC, "ceph", FolderKind::kNetwork},
    Known{AFS_SUPER_MAGIC, "afs", FolderKind::kNetwork},
    Known{V9FS_MAGIC, "9p", FolderKind::kNetwork},
    Known{kLustre, "lustre", FolderKind::kNetwork},
    Known{kGpfs, "gpfs", FolderKind::kNetwork},
    Known{kBeegfs, "beegfs", FolderKind::kNetwork},
};

/// Programs that serve other machines' files; other ones (overlays, encryption) are on a disk here.
constexpr std::array<std::string_view, 9> kRemoteFuse{
    "fuse.sshfs",     "fuse.s3fs",      "fuse.gcsfuse",  "fuse.rclone",  "fuse.glusterfs",
    "fuse.ceph-fuse", "fuse.cifs-fuse", "fuse.smbnetfs", "fuse.nfs-fuse"};

std::string hexadecimal(std::uint64_t number) {
  std::array<char, 24> text{};
  (void)std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(number));
  return text.data();
}

// The type of the newest mount of a device; empty if the table does not have it.
std::string mount_type(dev_t device) {
  const std::string wanted = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  std::ifstream table("/proc/self/mountinfo");
  std::string found;
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields(line);
    std::string id;
    std::string parent;
    std::string number;
    fields >> id >> parent >> number;
    const std::size_t dash = line.find(" - ");
    if (number != wanted || dash == std::string::npos) continue;
    std::istringstream rest(line.substr(dash + 3));
    rest >> found;
  }
  return found;
}

}  // namespace

FolderFacts classify_file_system(std::uint64_t magic, std::string_view mount_type) {
  FolderFacts facts;
  facts.type = mount_type;
  for (const Known& known : kKnown) {
    if (magic != known.magic) continue;
    facts.kind = known.kind;
    if (facts.type.empty()) facts.type = known.type;
    return facts;
  }
  const bool remote =
      std::find(kRemoteFuse.begin(), kRemoteFuse.end(), mount_type) != kRemoteFuse.end();
  if (remote) facts.kind = FolderKind::kNetwork;
  if (facts.type.empty()) facts.type = hexadecimal(magic);
  return facts;
}

FolderFacts file_system_of(int fd) {
  struct statfs system {};
  struct stat file {};
  if (::fstatfs(fd, &system) != 0 || ::fstat(fd, &file) != 0) return {};
  // Some systems give the number as a signed one of 32 bits.
  const auto magic = static_cast<std::uint64_t>(system.f_type) & 0xffffffffU;
  return classify_file_system(magic, mount_type(file.st_dev));
}

FolderFacts file_system_of(const std::string& folder) {
  return own_descriptors::run([&] {
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return FolderFacts{};
    FolderFacts facts = file_system_of(fd);
    ::close(fd);
    return facts;
  });
}

std::string spill_folder_warning(const std::string& folder, const FolderFacts& facts) {
  switch (facts.kind) {
    case FolderKind::kDisk: return {};
    case FolderKind::kMemory: return folder + " is memory, not a disk: it is a " + facts.type;
    case FolderKind::kNetwork:
      return "the spill folder " + folder + " is on the network (" + facts.type +
             "): memory moves at its speed, and a job waits while it is away";
  }
  return {};
}

}  // namespace commensal
