// SPDX-License-Identifier: Apache-2.0
// Holds the memory sources that need no GPU to the contract.
#include "tests/allocator/memory_source_contract.h"

#include "allocator/host/host_memory_source.h"
#include "tests/allocator/fake_memory_source.h"

namespace commensal {
namespace {

struct Fake {
  static std::unique_ptr<MemorySource> make(Bytes device, Bytes host) {
    FakeMemorySource::Options options;
    options.device_capacity = device;
    options.host_capacity = host;
    return std::make_unique<FakeMemorySource>(options);
  }
};

template <bool kDirect, bool kScan, bool kRemap, bool kMirror>
struct Host {
  static std::unique_ptr<MemorySource> make(Bytes device, Bytes host) {
    HostMemorySource::Options options;
    options.device_capacity = device;
    options.host_cap = host;
    options.testing.direct_io = kDirect;
    options.testing.page_scan = kScan;
    options.testing.remap = kRemap;
    options.testing.mirror = kMirror;
    return std::make_unique<HostMemorySource>(options);
  }
};
using HostFully = Host<true, true, true, true>;
// As on an older kernel, on a file system without direct I/O, with few addresses.
using HostPlain = Host<false, false, false, false>;

INSTANTIATE_TYPED_TEST_SUITE_P(Fake, MemorySourceContract, Fake);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, MemorySourceContract, HostFully);
INSTANTIATE_TYPED_TEST_SUITE_P(HostPlain, MemorySourceContract, HostPlain);

}  // namespace
}  // namespace commensal
