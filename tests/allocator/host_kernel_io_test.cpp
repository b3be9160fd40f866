// SPDX-License-Identifier: Apache-2.0
// Kernel I/O that writes without a thread is found, and live chunks are then not moved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "allocator/host/host_memory_source.h"
#include "allocator/host/kernel_io.h"

namespace commensal::host_kernel_io_test {
namespace {

using ::testing::HasSubstr;

TEST(KernelIo, IsReadFromTheMappings) {
  EXPECT_EQ(asynchronous_kernel_io_in(""), "");
  EXPECT_EQ(asynchronous_kernel_io_in("7f00-7f01 rw-p 00000000 00:00 0 [heap]\n"), "");
  EXPECT_THAT(asynchronous_kernel_io_in("7f00-7f01 rw-s 00000000 00:0e 1 /[aio] (deleted)\n"),
              HasSubstr("libaio"));
  EXPECT_THAT(asynchronous_kernel_io_in("7f00-7f01 rw-s 0 00:0e 1 anon_inode:[io_uring]\n"),
              HasSubstr("io_uring"));
}

TEST(KernelIo, NoneIsInUseHere) { EXPECT_EQ(asynchronous_kernel_io(), ""); }

TEST(KernelIo, ARingMakesMovesUnsafe) {
  std::array<std::uint32_t, 30> parameters{};  // struct io_uring_params
  const long ring = ::syscall(SYS_io_uring_setup, 4, parameters.data());
  if (ring < 0) GTEST_SKIP() << "io_uring is not allowed here: " << std::strerror(errno);
  HostMemorySource source;
  const MoveRisk risk = source.move_risk();
  EXPECT_FALSE(risk.safe);
  EXPECT_THAT(risk.reason, HasSubstr("io_uring"));
  ::close(static_cast<int>(ring));
  EXPECT_TRUE(source.move_risk().safe) << source.move_risk().reason;
}

TEST(KernelIo, ALibaioContextMakesMovesUnsafe) {
  aio_context_t context = 0;
  if (::syscall(SYS_io_setup, 1, &context) != 0) {
    GTEST_SKIP() << "libaio is not allowed here: " << std::strerror(errno);
  }
  HostMemorySource source;
  const MoveRisk risk = source.move_risk();
  EXPECT_FALSE(risk.safe);
  EXPECT_THAT(risk.reason, HasSubstr("libaio"));
  ASSERT_EQ(::syscall(SYS_io_destroy, context), 0);
  EXPECT_TRUE(source.move_risk().safe) << source.move_risk().reason;
}

}  // namespace
}  // namespace commensal::host_kernel_io_test
