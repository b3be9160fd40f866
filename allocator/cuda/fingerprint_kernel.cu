// SPDX-License-Identifier: Apache-2.0
// Fingerprints memory on the device; compiled by hand into fingerprint_ptx.cpp (see there).
//
// Each word of 16 bytes is mixed with its place, and the results are added up: in which order does
// not matter, so threads need not agree on one. fingerprint.cpp has the same for a CPU.

namespace {

constexpr unsigned long long kGolden = 0x9e3779b97f4a7c15ULL;
constexpr unsigned long long kFactor = 0xd6e8feb86659fd93ULL;

__device__ unsigned long long mix(unsigned long long value) {
  value ^= value >> 32;
  value *= kFactor;
  value ^= value >> 32;
  value *= kFactor;
  return value ^ (value >> 32);
}

}  // namespace

extern "C" __global__ void commensal_fingerprint(const ulonglong2* words, unsigned long long count,
                                                 unsigned long long* sums) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long low = 0;
  unsigned long long high = 0;
  for (unsigned long long i =
           static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += step) {
    const ulonglong2 word = words[i];
    const unsigned long long x = mix(word.x ^ ((2 * i + 1) * kGolden));
    const unsigned long long y = mix(word.y ^ ((2 * i + 2) * kGolden));
    low += x + 3 * y;
    high += (x ^ ((y << 17) | (y >> 47))) * kFactor;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    low += __shfl_down_sync(0xffffffffU, low, distance);
    high += __shfl_down_sync(0xffffffffU, high, distance);
  }
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&sums[0], low);
    atomicAdd(&sums[1], high);
  }
}
