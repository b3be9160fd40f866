// SPDX-License-Identifier: Apache-2.0
// Holds the memory sources that need no GPU to the contract.
#include "tests/allocator/memory_source_contract.h"

#include "allocator/deferred_source.h"
#include "allocator/host/host_memory_source.h"
#include "tests/allocator/fake_memory_source.h"

namespace commensal::memory_source_contract_test {
namespace {

std::unique_ptr<MemorySource> make_fake(Bytes device, Bytes host) {
  FakeMemorySource::Options options;
  options.device_capacity = device;
  options.host_capacity = host;
  return std::make_unique<FakeMemorySource>(options);
}

std::unique_ptr<MemorySource> make_host(Bytes device, Bytes host,
                                        HostMemorySource::Testing testing) {
  HostMemorySource::Options options;
  options.device_capacity = device;
  options.host_cap = host;
  options.testing = testing;
  return std::make_unique<HostMemorySource>(options);
}

std::unique_ptr<MemorySource> make_host_fully(Bytes device, Bytes host) {
  return make_host(device, host, {});
}

// As on an older kernel, on a file system without direct I/O, with few addresses.
std::unique_ptr<MemorySource> make_host_plainly(Bytes device, Bytes host) {
  HostMemorySource::Testing plain;
  plain.direct_io = plain.page_scan = plain.remap = plain.mirror = false;
  return make_host(device, host, plain);
}

// Made by the first call of the contract that asks for memory.
std::unique_ptr<MemorySource> make_deferred(Bytes device, Bytes host) {
  const auto make = [device, host] { return make_host_fully(device, host); };
  auto deferred = std::make_unique<DeferredSource>(make, make()->granularity());
  deferred->unreserve(deferred->reserve(deferred->granularity()));
  return deferred;
}

INSTANTIATE_TEST_SUITE_P(Deferred, MemorySourceContract, ::testing::Values(&make_deferred));
INSTANTIATE_TEST_SUITE_P(Fake, MemorySourceContract, ::testing::Values(&make_fake));
INSTANTIATE_TEST_SUITE_P(Host, MemorySourceContract, ::testing::Values(&make_host_fully));
INSTANTIATE_TEST_SUITE_P(HostPlainly, MemorySourceContract, ::testing::Values(&make_host_plainly));

}  // namespace
}  // namespace commensal::memory_source_contract_test
