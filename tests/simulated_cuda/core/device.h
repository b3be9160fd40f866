// SPDX-License-Identifier: Apache-2.0
// What the simulated devices say about themselves.
#pragma once

#include <cuda.h>

#include <array>
#include <string>

namespace commensal::simulated_cuda {

constexpr int kDriverVersion = 13000;
constexpr const char* kDeviceName = "Simulated GPU";
constexpr int kMultiprocessors = 132;
constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

/// @return false if the attribute is not one that the simulated driver knows; `*value` is then 0.
bool device_attribute(int* value, CUdevice_attribute attribute, int device);

/// Identity of the device with this physical number.
[[nodiscard]] std::array<unsigned char, 16> device_uuid(int physical);
/// ... as NVML and CUDA_VISIBLE_DEVICES write it: "GPU-" and the bytes in five groups.
[[nodiscard]] std::string device_uuid_text(int physical);
[[nodiscard]] std::string pci_bus_id(int physical);

}  // namespace commensal::simulated_cuda
