// SPDX-License-Identifier: Apache-2.0
// Memory, networks and disks are told apart, and named.
#include <gtest/gtest.h>
#include <sys/vfs.h>

#include <string>

#include "allocator/host/file_system.h"

namespace commensal::host_file_system_test {
namespace {

struct Row {
  std::uint64_t magic;
  const char* mount_type;
  FolderKind kind;
  const char* type;
};

class FileSystemTest : public ::testing::TestWithParam<Row> {};

TEST_P(FileSystemTest, IsClassifiedAndNamed) {
  const FolderFacts facts = classify_file_system(GetParam().magic, GetParam().mount_type);
  EXPECT_EQ(facts.kind, GetParam().kind);
  EXPECT_EQ(facts.type, GetParam().type);
}

INSTANTIATE_TEST_SUITE_P(
    Table, FileSystemTest,
    ::testing::Values(Row{0x01021994, "tmpfs", FolderKind::kMemory, "tmpfs"},
                      Row{0x858458f6, "", FolderKind::kMemory, "ramfs"},
                      Row{0x958458f6, "", FolderKind::kMemory, "hugetlbfs"},
                      Row{0x6969, "nfs4", FolderKind::kNetwork, "nfs4"},
                      Row{0x6969, "", FolderKind::kNetwork, "nfs"},
                      Row{0xff534d42, "cifs", FolderKind::kNetwork, "cifs"},
                      Row{0xfe534d42, "", FolderKind::kNetwork, "smb3"},
                      Row{0x517b, "", FolderKind::kNetwork, "smb"},
                      Row{0x00c36400, "ceph", FolderKind::kNetwork, "ceph"},
                      Row{0x01021997, "9p", FolderKind::kNetwork, "9p"},
                      Row{0x65735546, "fuse.sshfs", FolderKind::kNetwork, "fuse.sshfs"},
                      Row{0x65735546, "fuse.fuse-overlayfs", FolderKind::kDisk,
                          "fuse.fuse-overlayfs"},
                      Row{0x65735546, "", FolderKind::kDisk, "0x65735546"},
                      Row{0xef53, "ext4", FolderKind::kDisk, "ext4"},
                      Row{0x794c7630, "overlay", FolderKind::kDisk, "overlay"}));

TEST(FolderTest, LooksAtRealFolders) {
  struct statfs folder {};
  if (::statfs("/dev/shm", &folder) == 0 && folder.f_type == 0x01021994) {
    EXPECT_EQ(file_system_of("/dev/shm").kind, FolderKind::kMemory);
    EXPECT_EQ(file_system_of("/dev/shm").type, "tmpfs");
  }
  EXPECT_EQ(file_system_of("/proc").type, "proc") << "by the table of mounts";
  EXPECT_EQ(file_system_of("/nonexistent/folder").type, "");
  EXPECT_EQ(file_system_of("/nonexistent/folder").kind, FolderKind::kDisk);
}

TEST(FolderTest, TheWarningNamesFolderAndType) {
  EXPECT_EQ(spill_folder_warning("/spill", {FolderKind::kDisk, "ext4"}), "");
  EXPECT_EQ(spill_folder_warning("/spill", {FolderKind::kMemory, "ramfs"}),
            "/spill is memory, not a disk: it is a ramfs");
  EXPECT_EQ(spill_folder_warning("/mnt/home", {FolderKind::kNetwork, "nfs4"}),
            "the spill folder /mnt/home is on the network (nfs4): memory moves at its speed, and a "
            "job waits while it is away");
}

}  // namespace
}  // namespace commensal::host_file_system_test
