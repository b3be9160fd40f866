// SPDX-License-Identifier: Apache-2.0
// Handing pages and pidfds from process to process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <random>
#include <system_error>

#include "coordinator/wire/handover.h"
#include "coordinator/wire/messages.h"
#include "coordinator/wire/pages.h"

namespace commensal::wire::wire_handover_test {
namespace {

using ::testing::HasSubstr;

struct Pair {
  Pair() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    left.reset(ends[0]);
    right.reset(ends[1]);
  }
  UniqueFd left;
  UniqueFd right;
};

Handover hello(const char* job) {
  Handover message;
  message.kind = HandoverKind::kHello;
  message.job_id = job;
  message.pid = getpid();
  return message;
}

void write_header(const MappedPage& page, const char* job) {
  auto* written = page.as<JobPage>();
  written->header = {kJobPageMagic, kPageVersion, sizeof(JobPage), 0, 0};
  std::strncpy(written->job_id, job, kIdSize - 1);
}

std::string problem_of(int socket) {
  try {
    (void)receive_handover(socket);
  } catch (const BadMessage& problem) {
    return problem.code() + ": " + problem.what();
  }
  return "";
}

TEST(WireHandover, APageAndAPidfdReachAnotherProcess) {
  Pair pair;
  const pid_t child = fork();
  if (child == 0) {
    // The child writes its page after it has sent it: both see the same memory.
    UniqueFd memfd = make_page_memfd("child");
    const MappedPage page{memfd.get(), sizeof(JobPage), true};
    write_header(page, "job-of-child");
    Handover message = hello("job-of-child");
    message.fds.push_back(std::move(memfd));
    message.fds.push_back(open_pidfd(getpid()));
    send_handover(pair.left.get(), message);
    page.as<JobPage>()->step_number.store(42, std::memory_order_release);
    send_handover(pair.left.get(), Handover{HandoverKind::kRefused, "", 0, 0, "written", {}});
    _exit(0);
  }
  const auto first = receive_handover(pair.right.get());
  const auto second = receive_handover(pair.right.get());
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->pid, child);
  EXPECT_EQ(second->text, "written");
  const MappedPage page{first->fds.at(0).get(), sizeof(JobPage), false};
  EXPECT_STREQ(check_page(page.as<JobPage>(), sizeof(JobPage), kJobPageMagic), "");
  EXPECT_STREQ(page.as<JobPage>()->job_id, "job-of-child");
  EXPECT_EQ(page.as<JobPage>()->step_number.load(), 42U);
  pollfd death{first->fds.at(1).get(), POLLIN, 0};
  EXPECT_EQ(poll(&death, 1, 10000), 1) << "the pidfd tells the child's end";
  waitpid(child, nullptr, 0);
}

TEST(WireHandover, SaysWhenThePeerClosed) {
  Pair pair;
  pair.left.reset();
  EXPECT_FALSE(receive_handover(pair.right.get()).has_value());
  EXPECT_THROW(send_handover(pair.right.get(), hello("x")), std::system_error);
}

TEST(WireHandover, WithoutDataItSaysTryAgain) {
  Pair pair;
  ASSERT_EQ(fcntl(pair.right.get(), F_SETFL, O_NONBLOCK), 0);
  try {
    (void)receive_handover(pair.right.get());
    FAIL() << "no exception";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), EAGAIN);
  }
}

TEST(WireHandover, WrongNumbersOfDescriptorsAreRefusedAndClosed) {
  Pair pair;
  Handover message = hello("j");
  message.fds.push_back(make_page_memfd("p"));
  send_handover(pair.left.get(), message);
  EXPECT_THAT(problem_of(pair.right.get()), HasSubstr("carries 2 descriptors, not 1"));
  const auto count_fds = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator{});
  };
  const auto before = count_fds();
  for (int i = 0; i < 20; ++i) {
    send_handover(pair.left.get(), message);
    EXPECT_NE(problem_of(pair.right.get()), "");
  }
  EXPECT_EQ(count_fds(), before);
}

TEST(WireHandover, GarbageIsRefused) {
  Pair pair;
  const auto raw = [&](const std::string& text) {
    EXPECT_EQ(send(pair.left.get(), text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
    return problem_of(pair.right.get());
  };
  EXPECT_THAT(raw("nonsense"), HasSubstr("malformed"));
  EXPECT_THAT(raw("{}"), HasSubstr("'v'"));
  EXPECT_THAT(raw(R"({"v":7})"), HasSubstr("version"));
  EXPECT_THAT(raw(R"({"v":1,"kind":"dance"})"), HasSubstr("dance"));
  EXPECT_THAT(raw(R"({"v":1,"kind":"refused","job_id":3})"), HasSubstr("'job_id'"));
  EXPECT_THAT(raw(std::string(20000, 'x')), HasSubstr("oversized"));
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  for (int round = 0; round < 2000; ++round) {
    std::string text = R"({"v":1,"kind":"peer_gone","job_id":"j","pid":1,"rank":0,"text":""})";
    text[random() % text.size()] = static_cast<char>(random() % 256);
    try {
      ASSERT_EQ(send(pair.left.get(), text.data(), text.size(), 0),
                static_cast<ssize_t>(text.size()));
      (void)receive_handover(pair.right.get());
    } catch (const BadMessage& problem) {
      EXPECT_STRNE(problem.what(), "");
    }
  }
}

TEST(WireHandover, PagesAreSealedAgainstShrinking) {
  const UniqueFd memfd = make_page_memfd("p");
  EXPECT_NE(ftruncate(memfd.get(), 0), 0);
  EXPECT_NE(ftruncate(memfd.get(), 1 << 20U), 0);
  const MappedPage page{memfd.get(), kPageSize, true};
  EXPECT_EQ(page.as<JobPage>()->step_number.load(), 0U) << "zeroed";
}

TEST(WireHandover, UnsealedOrSmallMemfdsAreRefused) {
  const UniqueFd unsealed{memfd_create("u", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(ftruncate(unsealed.get(), kPageSize), 0);
  EXPECT_THROW((MappedPage{unsealed.get(), kPageSize, false}), std::system_error);
  const UniqueFd small{memfd_create("s", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  ASSERT_EQ(ftruncate(small.get(), 100), 0);
  ASSERT_EQ(fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_THROW((MappedPage{small.get(), kPageSize, false}), std::system_error);
  const UniqueFd null{open("/dev/null", O_RDWR)};
  EXPECT_THROW((MappedPage{null.get(), kPageSize, false}), std::system_error);
}

TEST(WireHandover, OnlyTheOwnerOfASealedPageWrites) {
  const UniqueFd memfd = make_page_memfd("p");
  const MappedPage own{memfd.get(), kPageSize, true};
  seal_against_writing(memfd.get());
  const UniqueFd reader = reopen_read_only(memfd.get());
  const MappedPage seen{reader.get(), kPageSize, false};
  own.as<JobPage>()->step_number.store(5);
  EXPECT_EQ(seen.as<JobPage>()->step_number.load(), 5U);
  EXPECT_THROW((MappedPage{reader.get(), kPageSize, true}), std::system_error);
  const std::string again = "/proc/self/fd/" + std::to_string(reader.get());
  const UniqueFd writable{open(again.c_str(), O_RDWR)};
  if (writable) {
    EXPECT_THROW((MappedPage{writable.get(), kPageSize, true}), std::system_error);
  }
}

TEST(WirePages, HaveTheFixedLayout) {
  EXPECT_EQ(offsetof(JobPage, activity), 136U);
  EXPECT_EQ(offsetof(JobPage, memory_wanted), 280U);
  EXPECT_EQ(offsetof(JobPage, gate_law), 312U);
  EXPECT_EQ(offsetof(DevicePage, device_id), 32U);
  EXPECT_EQ(offsetof(DevicePage, guaranteed_alive), 128U);
  EXPECT_EQ(offsetof(DevicePage, trickle_ppm), 136U);
  EXPECT_EQ(offsetof(DeviceEntry, job_class), 72U);
  EXPECT_EQ(offsetof(DeviceEntry, share_min_ppm), 88U);
  EXPECT_EQ(offsetof(DeviceEntry, lease_until_ns), 112U);
  const auto magic = [](const char* text) {
    std::uint64_t value = 0;
    std::memcpy(&value, text, sizeof value);
    return value;
  };
  EXPECT_EQ(kJobPageMagic, magic("COMNSLJ1"));
  EXPECT_EQ(kDevicePageMagic, magic("COMNSLD1"));
}

TEST(WirePages, ChecksSayWhatIsWrong) {
  alignas(8) unsigned char bytes[sizeof(JobPage)] = {};
  auto* page = new (bytes) JobPage{};
  page->header = {kJobPageMagic, kPageVersion, sizeof(JobPage), 0, 0};
  EXPECT_STREQ(check_page(page, sizeof bytes, kJobPageMagic), "");
  EXPECT_THAT(check_page(page, sizeof bytes, kDevicePageMagic), HasSubstr("magic"));
  EXPECT_THAT(check_page(page, 8, kJobPageMagic), HasSubstr("smaller"));
  EXPECT_THAT(check_page(page, 256, kJobPageMagic), HasSubstr("mapped"));
  EXPECT_THAT(check_page(nullptr, 0, kJobPageMagic), HasSubstr("not mapped"));
  page->header.version = kPageVersion + 1;
  EXPECT_THAT(check_page(page, sizeof bytes, kJobPageMagic), HasSubstr("version"));
  page->header = {kJobPageMagic, kPageVersion, 64, 0, 0};
  EXPECT_THAT(check_page(page, sizeof bytes, kJobPageMagic), HasSubstr("layout"));
}

TEST(WireHandover, ListenersReplaceStaleSocketsOnly) {
  std::string pattern = (std::filesystem::temp_directory_path() / "commensal-hand-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::string path = pattern + "/s";
  {
    const UniqueFd first = listen_handover(path);
    EXPECT_THROW((void)listen_handover(path), std::system_error);
    const UniqueFd client = connect_handover(path);
    EXPECT_TRUE(client);
  }
  EXPECT_THROW((void)connect_handover(path), std::system_error) << "nobody listens";
  EXPECT_NO_THROW((void)listen_handover(path));
  EXPECT_THROW((void)connect_handover(std::string(200, 'x')), std::system_error);
  std::filesystem::remove_all(pattern);
}

TEST(WireHandover, PidfdsOfNobodyAreRefused) {
  EXPECT_THROW((void)open_pidfd(0), std::system_error);
  EXPECT_THROW((void)open_pidfd(INT64_MAX), std::system_error);
}

}  // namespace
}  // namespace commensal::wire::wire_handover_test
