// SPDX-License-Identifier: Apache-2.0
// What only the simulation can do: failures on demand, the log, speed, brakes, a ledger shared by
// processes, host views of device memory.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/simulated_cuda/control.h"
#include "tests/simulated_cuda/core/call_log.h"
#include "tests/simulated_cuda/core/ledger.h"
#include "tests/simulated_cuda/core/settings.h"
#include "tests/simulated_cuda/rules/driver_test.h"

namespace commensal::simulated_cuda::simulation_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class Simulation : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    simulated_cuda_clear();
  }
  void TearDown() override {
    simulated_cuda_let_go();
    simulated_cuda_set_copy_speed(0);
    simulated_cuda_set_kernel_time(0);
    simulated_cuda_clear();
    DriverTest::TearDown();
  }

  static CUfunction kernel(const char* name) {
    static CUmodule module = nullptr;
    if (module == nullptr) {
      EXPECT_EQ(cuModuleLoadData(&module, "any"), CUDA_SUCCESS);
    }
    CUfunction found = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&found, module, name), CUDA_SUCCESS);
    return found;
  }

  static CUresult launch(CUfunction function, CUstream stream, void** arguments = nullptr) {
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
  }
};

TEST_F(Simulation, TheCallWithTheNumberFailsAndChangesNothing) {
  simulated_cuda_fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY, 1);
  CUdeviceptr addresses[3] = {};
  EXPECT_EQ(cuMemAlloc(&addresses[0], 4096), CUDA_SUCCESS);
  const auto used = simulated_cuda_used(0);
  EXPECT_EQ(cuMemAlloc(&addresses[1], 4096), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(simulated_cuda_used(0), used);
  EXPECT_EQ(cuMemAlloc(&addresses[2], 4096), CUDA_SUCCESS);
  EXPECT_EQ(simulated_cuda_calls("cuMemAlloc"), 3U);
  EXPECT_EQ(simulated_cuda_calls_refused("cuMemAlloc"), 1U);
  EXPECT_EQ(cuMemFree(addresses[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(addresses[2]), CUDA_SUCCESS);
}

TEST_F(Simulation, EveryFunctionOfVirtualMemoryFailsOnDemand) {
  const std::vector<std::pair<const char*, std::function<CUresult()>>> calls = {
      {"cuMemAddressReserve",
       [] {
         CUdeviceptr a = 0;
         return cuMemAddressReserve(&a, 1 << 21, 0, 0, 0);
       }},
      {"cuMemAddressFree", [] { return cuMemAddressFree(0, 0); }},
      {"cuMemCreate",
       [] {
         CUmemGenericAllocationHandle h = 0;
         return cuMemCreate(&h, 1 << 21, nullptr, 0);
       }},
      {"cuMemRelease", [] { return cuMemRelease(0); }},
      {"cuMemMap", [] { return cuMemMap(0, 0, 0, 0, 0); }},
      {"cuMemUnmap", [] { return cuMemUnmap(0, 0); }},
      {"cuMemSetAccess", [] { return cuMemSetAccess(0, 0, nullptr, 0); }},
      {"cuMemcpyDtoHAsync", [] { return cuMemcpyDtoHAsync(nullptr, 0, 0, nullptr); }},
      {"cuEventRecord", [] { return cuEventRecord(nullptr, nullptr); }},
      {"cuStreamSynchronize", [] { return cuStreamSynchronize(nullptr); }},
  };
  for (const auto& [name, call] : calls) {
    simulated_cuda_fail(name, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT_EQ(call(), CUDA_ERROR_UNKNOWN) << name;
    EXPECT_EQ(simulated_cuda_calls_refused(name), 1U) << name;
  }
}

TEST_F(Simulation, FailuresCanLast) {
  simulated_cuda_fail("cuCtxSynchronize", 1, CUDA_ERROR_UNKNOWN, 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_UNKNOWN);
  simulated_cuda_clear();
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(Simulation, TheLogKnowsTheLastArguments) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAlloc(&address, 12345), CUDA_SUCCESS);
  EXPECT_EQ(simulated_cuda_last_argument("cuMemAlloc", 1), 12345U);
  EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(simulated_cuda_last_argument("cuMemFree", 0), address);
  std::vector<char> text(simulated_cuda_log(nullptr, 0));
  (void)simulated_cuda_log(text.data(), text.size());
  EXPECT_NE(std::string(text.data()).find("\"cuMemFree\": {\"calls\": 1"), std::string::npos);
}

TEST_F(Simulation, TheLogTellsCallsDuringACapture) {
  CUstream stream = make_stream();
  CUevent event = make_event();
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(simulated_cuda_calls("cuEventQuery"), 2U);
  EXPECT_EQ(simulated_cuda_calls_while_capturing("cuEventQuery"), 1U);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(Simulation, HeldStreamsPend) {
  CUstream stream = make_stream();
  CUevent event = make_event();
  simulated_cuda_hold();
  EXPECT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  simulated_cuda_let_go();
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

// At least the time, never less; how much more is the machine's business.
TEST_F(Simulation, KernelsTakeTheirTime) {
  CUstream stream = make_stream();
  simulated_cuda_set_kernel_time(20'000'000);
  const auto begin = steady_clock::now();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(launch(kernel("slow"), stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_GE(steady_clock::now() - begin, milliseconds{60});
  EXPECT_EQ(simulated_cuda_launches("slow"), 3U);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(Simulation, CopiesTakeTheTimeOfTheirBytes) {
  CUstream stream = make_stream();
  const Allocated memory(4 << 20);
  Pinned pinned(4 << 20);
  CUevent begin = make_event(CU_EVENT_DEFAULT);
  CUevent end = make_event(CU_EVENT_DEFAULT);
  simulated_cuda_set_copy_speed(80 << 20);  // 4 MiB: 50 ms
  EXPECT_EQ(cuEventRecord(begin, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoDAsync(memory.at(), pinned.as(), 4 << 20, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(end, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
  float took = 0;
  EXPECT_EQ(cuEventElapsedTime(&took, begin, end), CUDA_SUCCESS);
  EXPECT_GE(took, 49.0F);
  for (CUevent event : {begin, end}) EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(Simulation, AKernelDoesWhatATestSays) {
  CUstream stream = make_stream();
  const Allocated memory(4096);
  const std::size_t sizes[] = {sizeof(CUdeviceptr), sizeof(std::uint32_t)};
  simulated_cuda_define_kernel("add", sizes, 2, [](void** arguments) {
    const auto address = *static_cast<CUdeviceptr*>(arguments[0]);
    std::uint32_t value = 0;
    if (const int error = simulated_cuda_peek(&value, address, 4)) return error;
    value += *static_cast<std::uint32_t*>(arguments[1]);
    return simulated_cuda_poke(address, &value, 4);
  });
  EXPECT_EQ(cuMemsetD32Async(memory.at(), 40, 1, stream), CUDA_SUCCESS);
  CUdeviceptr address = memory.at();
  std::uint32_t term = 2;
  void* arguments[] = {&address, &term};
  {
    Plug plug(stream);
    EXPECT_EQ(launch(kernel("add"), stream, arguments), CUDA_SUCCESS);
    term = 1000;  // a launch has copied its arguments
  }
  std::uint32_t sum = 0;
  EXPECT_EQ(simulated_cuda_peek(&sum, memory.at(), 4), CUDA_SUCCESS);
  EXPECT_EQ(sum, 42U);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(Simulation, UnmappingUnderWorkIsCounted) {
  CUstream stream = make_stream();
  {
    Plug plug(stream);
    EXPECT_EQ(cuMemUnmap(0, 1 << 21), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(simulated_cuda_calls("cuMemUnmap while busy"), 1U);
  EXPECT_EQ(cuMemUnmap(0, 1 << 21), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(simulated_cuda_calls("cuMemUnmap while busy"), 1U);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

/// Queues a fill, unmaps its memory, and tells whether the driver behaves as the card.
bool unmap_under_work() {
  CUcontext context = nullptr;
  (void)cuInit(0);
  (void)cuDevicePrimaryCtxRetain(&context, 0);
  (void)cuCtxSetCurrent(context);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc right{};
  right.location = properties.location;
  right.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  (void)cuMemAddressReserve(&address, 2 << 20, 0, 0, 0);
  (void)cuMemCreate(&handle, 2 << 20, &properties, 0);
  (void)cuMemMap(address, 2 << 20, 0, handle, 0);
  (void)cuMemSetAccess(address, 2 << 20, &right, 1);
  CUstream stream = nullptr;
  (void)cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  simulated_cuda_hold();
  const bool queued = cuMemsetD8Async(address, 1, 2 << 20, stream) == CUDA_SUCCESS;
  const bool unmapped = cuMemUnmap(address, 2 << 20) == CUDA_SUCCESS;
  simulated_cuda_let_go();
  const bool failed = cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS;
  std::size_t free = 0;
  std::size_t total = 0;
  const bool stays = cuMemGetInfo(&free, &total) == CUDA_ERROR_ILLEGAL_ADDRESS &&
                     cuMemCreate(&handle, 2 << 20, &properties, 0) == CUDA_ERROR_ILLEGAL_ADDRESS;
  return queued && unmapped && failed && stays;
}

// A chunk on the host that the CPU has a right to, one of the device behind it, both copied at
// once.
void copy_from_both_places(bool cpu_has_a_right) {
  (void)::signal(SIGSEGV, SIG_DFL);  // a sanitizer would report the fault and exit
  CUcontext context = nullptr;
  (void)cuInit(0);
  (void)cuDevicePrimaryCtxRetain(&context, 0);
  (void)cuCtxSetCurrent(context);
  constexpr std::size_t kChunk = 2 << 20;
  CUdeviceptr address = 0;
  (void)cuMemAddressReserve(&address, 2 * kChunk, 0, 0, 0);
  for (const auto place : {CU_MEM_LOCATION_TYPE_HOST_NUMA, CU_MEM_LOCATION_TYPE_DEVICE}) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {place, 0};
    CUmemGenericAllocationHandle handle = 0;
    std::array<CUmemAccessDesc, 2> rights{};
    rights[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    rights[1].location = properties.location;
    rights[0].flags = rights[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const bool host = place == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    const CUdeviceptr at = host ? address : address + kChunk;
    (void)cuMemCreate(&handle, kChunk, &properties, 0);
    (void)cuMemMap(at, kChunk, 0, handle, 0);
    (void)cuMemSetAccess(at, kChunk, rights.data(), host && cpu_has_a_right ? 2 : 1);
  }
  std::vector<std::byte> to(2 * kChunk);
  (void)cuMemsetD8(address, 7, 2 * kChunk);
  ::_exit(cuMemcpyDtoH(to.data(), address, 2 * kChunk) == CUDA_SUCCESS &&
                  to.front() == std::byte{7} && to.back() == std::byte{7}
              ? 0
              : 1);
}

// As driver 580 does on an H200.
TEST(FatalErrors, TheCpuCopiesWhatItHasARightToAndFaultsBehindIt) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(copy_from_both_places(false), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(copy_from_both_places(true), ::testing::KilledBySignal(SIGSEGV), "");
}

// As on the card: unmapping waits for no work, and what the work then does ends the context.
TEST(FatalErrors, WorkOnUnmappedMemoryEndsAllWork) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(::_exit(unmap_under_work() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(FailureText, ReadsFunctionCallErrorAndTimes) {
  CallLog log;
  log.fail_from_text("cuMemCreate:2:CUDA_ERROR_OUT_OF_MEMORY,cuMemMap:1:1:2,cuInit:1:999:*");
  EXPECT_EQ(log.enter("cuMemCreate", {}, false), CUDA_SUCCESS);
  EXPECT_EQ(log.enter("cuMemCreate", {}, false), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(log.enter("cuMemCreate", {}, false), CUDA_SUCCESS);
  EXPECT_EQ(log.enter("cuMemMap", {}, false), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(log.enter("cuMemMap", {}, false), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(log.enter("cuMemMap", {}, false), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(log.enter("cuInit", {}, false), CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(log.fail_from_text("cuMemCreate"), std::invalid_argument);
  EXPECT_THROW(log.fail_from_text("cuMemCreate:1:NO_SUCH_ERROR"), std::invalid_argument);
  EXPECT_THROW(log.fail_from_text("cuMemCreate:0:2"), std::invalid_argument);
}

class LedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/simulated-cuda-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ / "ledger";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Runs `body` in another process that then waits to be killed; returns when it has run.
  pid_t other_process(const std::function<bool(Ledger&)>& body) {
    int ready[2] = {};
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      Ledger ledger(path_.string(), 1);
      const char answer = body(ledger) ? 'y' : 'n';
      (void)!::write(ready[1], &answer, 1);
      for (;;) ::pause();
    }
    char answer = 0;
    EXPECT_EQ(::read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
    return child;
  }

  static void kill_and_reap(pid_t child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

TEST_F(LedgerTest, AProcessSeesWhatOthersTake) {
  Ledger ledger(path_.string(), 1000);
  ASSERT_TRUE(ledger.take(0, 300));
  const pid_t child = other_process([](Ledger& other) {
    return other.capacity() == 1000 && other.used(0) == 300 && other.take(0, 500) &&
           !other.take(0, 300) && other.take(1, 1000);
  });
  EXPECT_EQ(ledger.used(0), 800U);
  EXPECT_EQ(ledger.used(1), 1000U);
  EXPECT_FALSE(ledger.take(0, 201));
  const auto shares = ledger.physical_shares(0);
  ASSERT_EQ(shares.size(), 2U);
  kill_and_reap(child);
}

TEST_F(LedgerTest, AKilledProcessGivesBackItsShare) {
  Ledger ledger(path_.string(), 1000);
  const pid_t child = other_process([](Ledger& other) { return other.take(0, 1000); });
  EXPECT_FALSE(ledger.take(0, 1));
  ::kill(child, SIGKILL);
  siginfo_t ended{};  // dead, not reaped: a zombie holds no memory
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(ledger.used(0), 0U);
  EXPECT_TRUE(ledger.take(0, 1000));
  ::waitpid(child, nullptr, 0);
}

TEST_F(LedgerTest, AnExportedChunkCountsOnceWhileAnybodyHoldsIt) {
  Ledger ledger(path_.string(), 1000);
  ASSERT_TRUE(ledger.take(0, 400));
  ASSERT_TRUE(ledger.share(0, 400, 77));
  EXPECT_EQ(ledger.used(0), 400U);
  const pid_t child = other_process([](Ledger& other) { return other.hold(0, 400, 77); });
  EXPECT_EQ(ledger.used(0), 400U);
  ledger.let_go(77);
  EXPECT_EQ(ledger.used(0), 400U);  // the other process still holds it
  kill_and_reap(child);
  EXPECT_EQ(ledger.used(0), 0U);
}

TEST_F(LedgerTest, DevicesAreNumberedByWhoSeesThem) {
  Ledger ledger(path_.string(), 1000);
  const pid_t child = other_process([this](Ledger&) {
    Ledger other(path_.string(), 1000, {1});  // CUDA_VISIBLE_DEVICES=1
    return other.take(0, 600) && other.physical(0) == 1 && other.visible(0) == -1;
  });
  kill_and_reap(child);
  ASSERT_TRUE(ledger.take(1, 300));
  Ledger second(path_.string(), 1000, {1, 0});
  EXPECT_EQ(second.used(0), 300U);
  EXPECT_EQ(second.used(1), 0U);
  EXPECT_EQ(second.physical_used(1), 300U);
}

TEST_F(LedgerTest, IsNoOtherFile) {
  {
    const std::string text(1 << 20, 'x');
    FILE* file = ::fopen(path_.c_str(), "w");
    ASSERT_NE(file, nullptr);
    ::fwrite(text.data(), 1, text.size(), file);
    ::fclose(file);
  }
  EXPECT_THROW(Ledger(path_.string(), 1000), std::runtime_error);
}

TEST(SettingsTest, AreReadFromTheEnvironment) {
  ::setenv("SIMULATED_CUDA_DEVICES", "3", 1);
  ::setenv("SIMULATED_CUDA_GRANULARITY", "65536", 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "2,GPU-73696d75-6c61-7465-642d-637564612d30,7,1", 1);
  const Settings settings = Settings::from_environment();
  EXPECT_EQ(settings.granularity, 65536U);
  EXPECT_EQ(settings.visible, (std::vector<int>{2, 0}));  // the list ends at what is unknown
  ::setenv("SIMULATED_CUDA_GRANULARITY", "65537", 1);
  EXPECT_THROW(Settings::from_environment(), std::invalid_argument);
  ::setenv("SIMULATED_CUDA_GRANULARITY", "much", 1);
  EXPECT_THROW(Settings::from_environment(), std::invalid_argument);
  for (const char* name :
       {"SIMULATED_CUDA_DEVICES", "SIMULATED_CUDA_GRANULARITY", "CUDA_VISIBLE_DEVICES"}) {
    ::unsetenv(name);
  }
}

}  // namespace
}  // namespace commensal::simulated_cuda::simulation_test
