// SPDX-License-Identifier: Apache-2.0
// The documented rules of virtual memory management, one test a rule.
#include <fcntl.h>
#include <unistd.h>

#include "tests/simulated_cuda/rules/driver_test.h"

namespace commensal::simulated_cuda::virtual_memory_rules_test {
namespace {

class VirtualMemoryRules : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_EQ(
        cuMemGetAllocationGranularity(&chunk_, &device_memory_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        CUDA_SUCCESS);
    ASSERT_EQ(cuMemAddressReserve(&range_, 4 * chunk_, 0, 0, 0), CUDA_SUCCESS);
  }

  void TearDown() override {
    EXPECT_EQ(cuMemAddressFree(range_, 4 * chunk_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }

  static CUmemAllocationProp properties(CUmemLocationType type, int id) {
    CUmemAllocationProp made{};
    made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made.location = {type, id};
    return made;
  }

  CUmemGenericAllocationHandle create(std::size_t chunks = 1) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, chunks * chunk_, &device_memory_, 0), CUDA_SUCCESS);
    return handle;
  }

  CUresult map(std::size_t at_chunk, CUmemGenericAllocationHandle handle, std::size_t chunks = 1) {
    return cuMemMap(range_ + at_chunk * chunk_, chunks * chunk_, 0, handle, 0);
  }

  CUresult unmap(std::size_t at_chunk, std::size_t chunks = 1) {
    return cuMemUnmap(range_ + at_chunk * chunk_, chunks * chunk_);
  }

  CUresult allow(std::size_t at_chunk, std::size_t chunks = 1,
                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    CUmemAccessDesc right{};
    right.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    right.flags = flags;
    return cuMemSetAccess(range_ + at_chunk * chunk_, chunks * chunk_, &right, 1);
  }

  std::size_t chunk_ = 0;
  CUdeviceptr range_ = 0;  // four chunks
  CUmemAllocationProp device_memory_ = properties(CU_MEM_LOCATION_TYPE_DEVICE, 0);
};

// cuMemGetAllocationGranularity: "can be used as a multiple for alignment, size, or mapping".
TEST_F(VirtualMemoryRules, TellsAGranularity) {
  std::size_t recommended = 0;
  EXPECT_EQ(cuMemGetAllocationGranularity(&recommended, &device_memory_,
                                          CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
            CUDA_SUCCESS);
  EXPECT_GT(chunk_, 0U);
  EXPECT_EQ(recommended % chunk_, 0U);
}

// cuMemAddressReserve: "size and address must be a multiple of the host page size".
TEST_F(VirtualMemoryRules, ReservesWholeHostPagesOnly) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, chunk_ + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, chunk_, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

// cuMemAddressReserve: "the alignment must be a power of two or zero"; "flags must be zero".
TEST_F(VirtualMemoryRules, ReservesAtThePowerOfTwoAskedFor) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, chunk_, 3 * chunk_, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, chunk_, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemAddressReserve(&address, chunk_, 16 * chunk_, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(address % (16 * chunk_), 0U);
  EXPECT_EQ(cuMemAddressFree(address, chunk_), CUDA_SUCCESS);
}

// cuMemAddressFree: "the size must match what was given to cuMemAddressReserve and the ptr given
// must match what was returned from it".
TEST_F(VirtualMemoryRules, FreesExactlyWhatWasReserved) {
  EXPECT_EQ(cuMemAddressFree(range_, chunk_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(range_ + chunk_, 3 * chunk_), CUDA_ERROR_INVALID_VALUE);
}

// A reservation with a mapping in it is in use.
TEST_F(VirtualMemoryRules, DoesNotFreeARangeWithMappings) {
  const auto handle = create();
  ASSERT_EQ(map(1, handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(range_, 4 * chunk_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(unmap(1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemCreate: "size must be a multiple of the value given via cuMemGetAllocationGranularity".
TEST_F(VirtualMemoryRules, CreatesWholeGranulesOnly) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, chunk_ / 2, &device_memory_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, chunk_ + 4096, &device_memory_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, 0, &device_memory_, 0), CUDA_ERROR_INVALID_VALUE);
}

// cuMemCreate: flags "must be zero now"; the type must be pinned; the device must exist.
TEST_F(VirtualMemoryRules, CreatesFromValidPropertiesOnly) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, chunk_, &device_memory_, 1), CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp wrong = device_memory_;
  wrong.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(cuMemCreate(&handle, chunk_, &wrong, 0), CUDA_ERROR_INVALID_VALUE);
  wrong = properties(CU_MEM_LOCATION_TYPE_DEVICE, 99);
  EXPECT_EQ(cuMemCreate(&handle, chunk_, &wrong, 0), CUDA_ERROR_INVALID_DEVICE);
}

// cuMemCreate: HOST_NUMA_CURRENT "will result in CUDA_ERROR_INVALID_VALUE".
TEST_F(VirtualMemoryRules, CreatesNothingOnTheCurrentHostNode) {
  CUmemGenericAllocationHandle handle = 0;
  const auto current = properties(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0);
  EXPECT_EQ(cuMemCreate(&handle, chunk_, &current, 0), CUDA_ERROR_INVALID_VALUE);
}

// cuMemCreate: "HOST allocations are not IPC capable and requestedHandleTypes must be 0".
TEST_F(VirtualMemoryRules, CreatesNoShareableHostMemory) {
  CUmemGenericAllocationHandle handle = 0;
  auto host = properties(CU_MEM_LOCATION_TYPE_HOST, 0);
  host.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(cuMemCreate(&handle, chunk_, &host, 0), CUDA_ERROR_INVALID_VALUE);
}

// cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY above what the device has; nothing is taken.
TEST_F(VirtualMemoryRules, CreatesNoMoreThanTheDeviceHas) {
  std::size_t total = 0;
  ASSERT_EQ(cuDeviceTotalMem(&total, device_), CUDA_SUCCESS);
  std::size_t free_before = 0;
  ASSERT_EQ(cuMemGetInfo(&free_before, &total), CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, (total / chunk_ + 1) * chunk_, &device_memory_, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  std::size_t free_after = 0;
  ASSERT_EQ(cuMemGetInfo(&free_after, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_after, free_before);
}

// cuMemCreate takes memory of the device, cuMemMap takes none.
TEST_F(VirtualMemoryRules, MemoryIsTakenAtCreation) {
  std::size_t total = 0;
  std::size_t free_before = 0;
  ASSERT_EQ(cuMemGetInfo(&free_before, &total), CUDA_SUCCESS);
  const auto handle = create(2);
  std::size_t created = 0;
  ASSERT_EQ(cuMemGetInfo(&created, &total), CUDA_SUCCESS);
  EXPECT_EQ(created, free_before - 2 * chunk_);
  ASSERT_EQ(map(0, handle, 2), CUDA_SUCCESS);
  std::size_t mapped = 0;
  ASSERT_EQ(cuMemGetInfo(&mapped, &total), CUDA_SUCCESS);
  EXPECT_EQ(mapped, created);
  EXPECT_EQ(unmap(0, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemRelease: "the memory allocation will be freed when all outstanding mappings are unmapped
// and when all outstanding references to the handle are also released. The handle can be freed
// when there are still outstanding mappings".
TEST_F(VirtualMemoryRules, MappedMemoryOutlivesItsHandle) {
  const auto handle = create();
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  ASSERT_EQ(allow(0), CUDA_SUCCESS);
  std::size_t total = 0;
  std::size_t mapped = 0;
  ASSERT_EQ(cuMemGetInfo(&mapped, &total), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(range_, 0x5a, chunk_), CUDA_SUCCESS);
  std::uint8_t last = 0;
  EXPECT_EQ(cuMemcpyDtoH(&last, range_ + chunk_ - 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(last, 0x5a);
  std::size_t released = 0;
  ASSERT_EQ(cuMemGetInfo(&released, &total), CUDA_SUCCESS);
  EXPECT_EQ(released, mapped);
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetInfo(&released, &total), CUDA_SUCCESS);
  EXPECT_EQ(released, mapped + chunk_);
}

// cuMemMap: ptr "must be aligned", size is not zero; flags "must be zero now".
TEST_F(VirtualMemoryRules, MapsWholeGranulesOnly) {
  const auto handle = create();
  EXPECT_EQ(cuMemMap(range_ + 4096, chunk_, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(range_, 0, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(range_, chunk_, 0, handle, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemMap: offset "currently must be zero"; a card maps an allocation as a whole or not at all.
TEST_F(VirtualMemoryRules, MapsWholeAllocationsOnly) {
  const auto handle = create();
  EXPECT_EQ(cuMemMap(range_, chunk_ / 2, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(range_, chunk_, 4096, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  const auto larger = create(2);
  EXPECT_EQ(map(0, larger, 3), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(chunk_, chunk_, 0, larger, 0), CUDA_ERROR_NOT_SUPPORTED);
  if (simulated()) {  // not asked of a card: half of an allocation in granules
    EXPECT_EQ(map(0, larger, 1), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMemMap(range_, chunk_, chunk_, larger, 0), CUDA_ERROR_NOT_SUPPORTED);
  }
  EXPECT_EQ(map(0, larger, 2), CUDA_SUCCESS);  // the refusals changed nothing
  EXPECT_EQ(unmap(0, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(larger), CUDA_SUCCESS);
}

// cuMemMap: "This range must be an address reservation", wholly.
TEST_F(VirtualMemoryRules, MapsWithinAReservationOnly) {
  const auto handle = create(2);
  const CUresult over_the_end = map(3, handle, 2);
  if (passed_on_a_card(over_the_end)) {  // H200, driver 580: into the addresses behind it
    EXPECT_EQ(unmap(3, 2), CUDA_SUCCESS);
  } else {
    EXPECT_EQ(over_the_end, CUDA_ERROR_INVALID_VALUE);
  }
  if (simulated()) {  // not asked of a card: where nothing is reserved
    EXPECT_EQ(cuMemMap(chunk_, 2 * chunk_, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemMap: "can only create mappings on VA range reservations that are not currently mapped".
TEST_F(VirtualMemoryRules, MapsNoAddressTwice) {
  const auto first = create(2);
  const auto second = create(2);
  ASSERT_EQ(map(1, first, 2), CUDA_SUCCESS);
  EXPECT_EQ(map(1, second, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map(0, second, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(map(2, second, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(unmap(1, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(second), CUDA_SUCCESS);
}

// One allocation may be mapped at several addresses: the same bytes.
TEST_F(VirtualMemoryRules, OneAllocationAtTwoAddressesIsTheSameMemory) {
  const auto handle = create();
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  ASSERT_EQ(map(2, handle), CUDA_SUCCESS);
  ASSERT_EQ(allow(0), CUDA_SUCCESS);
  ASSERT_EQ(allow(2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD32(range_, 0xfeed'f00d, chunk_ / 4), CUDA_SUCCESS);
  std::uint32_t seen = 0;
  EXPECT_EQ(cuMemcpyDtoH(&seen, range_ + 3 * chunk_ - 4, 4), CUDA_SUCCESS);
  EXPECT_EQ(seen, 0xfeed'f00dU);
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  EXPECT_EQ(unmap(2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemUnmap: "The range must be the entire contiguous address range that was mapped to ...
// cannot unmap a sub-range".
TEST_F(VirtualMemoryRules, UnmapsNoPart) {
  const auto handle = create(2);
  ASSERT_EQ(map(0, handle, 2), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(unmap(1, 1), CUDA_ERROR_INVALID_VALUE);
  const CUresult with_a_hole = unmap(0, 3);
  if (!passed_on_a_card(with_a_hole)) {  // H200, driver 580: it unmaps what is mapped there
    EXPECT_EQ(with_a_hole, CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(unmap(0, 2), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// ... while several whole mappings that lie together go in one call (the toolkit's vectorAddMMAP
// sample does so).
TEST_F(VirtualMemoryRules, UnmapsSeveralWholeMappingsAtOnce) {
  const auto first = create();
  const auto second = create(2);
  ASSERT_EQ(map(0, first), CUDA_SUCCESS);
  ASSERT_EQ(map(1, second, 2), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0, 3), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(second), CUDA_SUCCESS);
}

TEST_F(VirtualMemoryRules, UnmapsNothingTwice) {
  const auto handle = create();
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  const CUresult again = unmap(0);
  if (!passed_on_a_card(again)) {  // H200, driver 580: nothing to do is no mistake
    EXPECT_EQ(again, CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemUnmap: the range "can be used for a future call to cuMemMap"; "all mappings start with no
// accessibility setup".
TEST_F(VirtualMemoryRules, ANewMappingStartsWithoutAccess) {
  const auto handle = create();
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  ASSERT_EQ(allow(0), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  unsigned long long flags = 99;
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device_};
  EXPECT_EQ(cuMemGetAccess(&flags, &location, range_), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_NONE));
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// Contents live in the allocation, not in the mapping: moving it moves them.
TEST_F(VirtualMemoryRules, ContentsSurviveUnmapAndMapElsewhere) {
  const auto handle = create();
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  ASSERT_EQ(allow(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(range_, 0x77, chunk_), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  ASSERT_EQ(map(3, handle), CUDA_SUCCESS);
  ASSERT_EQ(allow(3), CUDA_SUCCESS);
  std::uint8_t seen = 0;
  EXPECT_EQ(cuMemcpyDtoH(&seen, range_ + 3 * chunk_ + 17, 1), CUDA_SUCCESS);
  EXPECT_EQ(seen, 0x77);
  EXPECT_EQ(unmap(3), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemSetAccess: "The range must be a fully mapped address range containing all allocations".
TEST_F(VirtualMemoryRules, SetsAccessOnWholeMappingsOnly) {
  const auto handle = create(2);
  EXPECT_EQ(allow(0), CUDA_ERROR_INVALID_VALUE);  // nothing mapped
  ASSERT_EQ(map(0, handle, 2), CUDA_SUCCESS);
  EXPECT_EQ(allow(0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allow(0, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allow(0, 2), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemSetAccess takes a range over many mappings: one call for a contiguous run.
TEST_F(VirtualMemoryRules, SetsAccessOfARunInOneCall) {
  const auto first = create();
  const auto second = create();
  ASSERT_EQ(map(0, first), CUDA_SUCCESS);
  ASSERT_EQ(map(1, second), CUDA_SUCCESS);
  EXPECT_EQ(allow(0, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(range_, 1, 2 * chunk_), CUDA_SUCCESS);  // over both
  unsigned long long flags = 0;
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device_};
  EXPECT_EQ(cuMemGetAccess(&flags, &location, range_ + chunk_ + 5), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_EQ(unmap(0, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(first), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(second), CUDA_SUCCESS);
}

// cuMemSetAccess: the host gets no access to memory of a device.
TEST_F(VirtualMemoryRules, TheHostGetsNoAccessToDeviceMemory) {
  const auto handle = create();
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  CUmemAccessDesc right{};
  right.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  right.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_NE(cuMemSetAccess(range_, chunk_, &right, 1), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// Without access, and with too little of it, copies are refused.
TEST_F(VirtualMemoryRules, CopiesNeedAccess) {
  const auto handle = create();
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  std::uint32_t word = 7;
  EXPECT_EQ(cuMemcpyHtoD(range_, &word, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH(&word, range_, 4), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(allow(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(range_, &word, 4), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(range_, &word, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemRetainAllocationHandle: "the same handle value used to map the memory"; any address within;
// released "with corresponding number of calls".
TEST_F(VirtualMemoryRules, RetainsTheHandleOfAnAddress) {
  const auto handle = create();
  CUmemGenericAllocationHandle found = 0;
  EXPECT_EQ(cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(range_)),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(range_ + chunk_ / 2)),
            CUDA_SUCCESS);
  EXPECT_EQ(found, handle);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  CUmemAllocationProp seen{};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&seen, found), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(found), CUDA_SUCCESS);
}

TEST_F(VirtualMemoryRules, TellsThePropertiesOfAHandle) {
  CUmemAllocationProp asked = device_memory_;
  asked.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, chunk_, &asked, 0), CUDA_SUCCESS);
  CUmemAllocationProp seen{};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&seen, handle), CUDA_SUCCESS);
  EXPECT_EQ(seen.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(seen.location.id, 0);
  EXPECT_EQ(seen.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemExportToShareableHandle: the type must have been requested at creation; flags are zero.
TEST_F(VirtualMemoryRules, ExportsOnlyWhatWasMadeForIt) {
  const auto handle = create();
  int file = -1;
  EXPECT_EQ(
      cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// cuMemImportFromShareableHandle gives the same memory; each import is paired with a release.
TEST_F(VirtualMemoryRules, ImportsTheMemoryThatWasExported) {
  CUmemAllocationProp shareable = device_memory_;
  shareable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, chunk_, &shareable, 0), CUDA_SUCCESS);
  int file = -1;
  ASSERT_EQ(
      cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(cuMemImportFromShareableHandle(
                &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  ::close(file);
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  ASSERT_EQ(map(1, imported), CUDA_SUCCESS);
  ASSERT_EQ(allow(0, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(range_, 0x21, chunk_), CUDA_SUCCESS);
  std::uint8_t seen = 0;
  EXPECT_EQ(cuMemcpyDtoH(&seen, range_ + chunk_, 1), CUDA_SUCCESS);
  EXPECT_EQ(seen, 0x21);
  EXPECT_EQ(unmap(0, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(imported), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(VirtualMemoryRules, ImportsNoOtherFile) {
  const int file = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CUmemGenericAllocationHandle imported = 0;
  EXPECT_NE(cuMemImportFromShareableHandle(
                &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  ::close(file);
}

// Memory located on the host: the device's rights and the CPU's are set apart.
TEST_F(VirtualMemoryRules, HostMemoryIsReachedByBothWithRightsOfTheirOwn) {
  CUmemGenericAllocationHandle handle = 0;
  const auto host = properties(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
  const CUresult made = cuMemCreate(&handle, chunk_, &host, 0);
  if (made == CUDA_ERROR_NOT_SUPPORTED || made == CUDA_ERROR_NOT_PERMITTED) {
    GTEST_SKIP() << "the driver allows no host-located chunks";
  }
  ASSERT_EQ(made, CUDA_SUCCESS);
  ASSERT_EQ(map(0, handle), CUDA_SUCCESS);
  CUmemAccessDesc rights[2] = {};
  rights[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  rights[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  rights[1].location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  rights[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemSetAccess(range_, chunk_, rights, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8(range_, 0x42, chunk_), CUDA_SUCCESS);
  EXPECT_EQ(*reinterpret_cast<volatile std::uint8_t*>(range_ + 9), 0x42);  // by the CPU
  EXPECT_EQ(unmap(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

// A CPU access to what the CPU has no right to faults.
TEST_F(VirtualMemoryRules, TheCpuFaultsOnDeviceMemory) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        CUdevice device = 0;
        CUcontext context = nullptr;
        (void)cuInit(0);
        (void)cuDevicePrimaryCtxRetain(&context, device);
        (void)cuCtxSetCurrent(context);
        CUdeviceptr address = 0;
        (void)cuMemAlloc(&address, 4096);
        *reinterpret_cast<volatile int*>(address) = 1;
      },
      "");
}

}  // namespace
}  // namespace commensal::simulated_cuda::virtual_memory_rules_test
