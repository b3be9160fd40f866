// SPDX-License-Identifier: Apache-2.0
// Holds the CUDA memory source to the contract.
#include "tests/allocator/cuda/cuda_machine.h"
#include "tests/allocator/memory_source_contract.h"

namespace commensal::cuda_contract_test {
namespace {

std::unique_ptr<MemorySource> make_cuda(Bytes device, Bytes host) {
  const CudaMachine& machine = CudaMachine::get();
  if (!machine.reason().empty()) throw std::runtime_error(machine.reason());
  CudaMemorySource::Options options;
  options.device_capacity = device;
  options.host_cap = host;
  return std::make_unique<CudaMemorySource>(options);
}

INSTANTIATE_TEST_SUITE_P(Cuda, MemorySourceContract,
                         ::testing::Values(ContractSubject(&make_cuda, CudaMachine::access(),
                                                           false)));

}  // namespace
}  // namespace commensal::cuda_contract_test
