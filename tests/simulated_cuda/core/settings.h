// SPDX-License-Identifier: Apache-2.0
// What the simulated machine looks like and how fast it is; read once from the environment.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace commensal::simulated_cuda {

/// How the simulated machine is made. Every field is an environment variable of the same name in
/// capitals after `SIMULATED_CUDA_`; README.md lists them with their units.
struct Settings {
  int devices = 1;                             ///< devices in the machine, at most 8
  std::size_t memory = 1UL << 30;              ///< bytes of each device
  std::size_t context_memory = 32UL << 20;     ///< bytes that a context takes of its device
  std::size_t granularity = 2UL << 20;         ///< of chunks of physical memory, a power of two
  std::size_t copy_bytes_per_second = 0;       ///< speed of copies and fills; 0: instantly
  std::size_t kernel_nanoseconds = 0;          ///< time that each kernel takes; 0: instantly
  bool host_handles = true;                    ///< chunks may be located on the host
  bool host_pointer_attributes = true;         ///< ... and pointer queries answer for them
  bool cpu_access = false;                     ///< the CPU may touch what a device may touch
  bool virtual_memory_while_capturing = true;  ///< `cuMem*` are harmless to a capture
  bool peer_access = true;                     ///< devices may use each other's memory
  std::string ledger;                          ///< file shared by the processes of the machine
  std::string fail;                            ///< calls that fail, see `CallLog::fail_from_text`
  std::string log;                             ///< file that gets the call log at exit
  bool trace = false;                          ///< write every call to stderr
  std::vector<int> visible;                    ///< physical numbers of the devices that are seen

  /// @throws std::invalid_argument with the variable's name if a value cannot be read.
  static Settings from_environment();
};

}  // namespace commensal::simulated_cuda
