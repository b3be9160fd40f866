// SPDX-License-Identifier: Apache-2.0
// Fingerprints of memory, computed on the device.
#include "allocator/cuda/fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>

#include "allocator/memory_source.h"

namespace commensal {
namespace {

constexpr std::uint32_t kSlots = 4096;
constexpr unsigned kThreads = 256;
constexpr std::uint64_t kWord = 16;
constexpr unsigned kBlocksPerMultiprocessor = 4;
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15U;
constexpr std::uint64_t kFactor = 0xd6e8feb86659fd93U;

std::uint64_t mix(std::uint64_t value) noexcept {
  value ^= value >> 32U;
  value *= kFactor;
  value ^= value >> 32U;
  value *= kFactor;
  return value ^ (value >> 32U);
}

}  // namespace

DeviceFingerprint fingerprint_of(const void* bytes, std::size_t size) noexcept {
  DeviceFingerprint sum;
  const auto* from = static_cast<const std::byte*>(bytes);
  for (std::uint64_t i = 0; i < size / kWord; ++i) {
    std::uint64_t word[2];
    std::memcpy(word, from + i * kWord, kWord);
    const std::uint64_t x = mix(word[0] ^ ((2 * i + 1) * kGolden));
    const std::uint64_t y = mix(word[1] ^ ((2 * i + 2) * kGolden));
    sum.low += x + 3 * y;
    sum.high += (x ^ std::rotl(y, 17)) * kFactor;
  }
  return sum;
}

Fingerprinter::Fingerprinter(const DeviceContext& context, CUstream stream)
    : driver_(context.driver()) {
  try {
    most_blocks_ = kBlocksPerMultiprocessor *
                   static_cast<unsigned>(
                       std::max(1, context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)));
    load(stream);
  } catch (...) {
    close();
    throw;
  }
}

void Fingerprinter::load(CUstream stream) {
  constexpr std::size_t kBytes = kSlots * sizeof(DeviceFingerprint);
  void* pinned = nullptr;
  check_cuda(driver_.cuMemHostAlloc(&pinned, kBytes, 0), "cuMemHostAlloc for fingerprints");
  results_ = static_cast<DeviceFingerprint*>(pinned);
  check_cuda(driver_.cuMemAlloc(&sums_, kBytes), "cuMemAlloc for fingerprints");
  free_.resize(kSlots);
  for (Slot i = 0; i < kSlots; ++i) free_[i] = kSlots - 1 - i;
  try {
    check_cuda(driver_.cuModuleLoadData(&module_, kFingerprintPtx), "cuModuleLoadData");
    check_cuda(driver_.cuModuleGetFunction(&kernel_, module_, kFingerprintKernel),
               "cuModuleGetFunction");
    try_out(stream);
  } catch (const std::exception& error) {
    reason_ = std::string("memory cannot be fingerprinted on the device: ") + error.what();
  }
}

// Fingerprints the space for results themselves, twice with different content.
void Fingerprinter::try_out(CUstream stream) {
  const Slot slot = 0;
  const Bytes size{kSlots / 2 * sizeof(DeviceFingerprint)};
  DeviceFingerprint* const image = results_ + kSlots / 2;
  const CUdeviceptr copy = sums_ + size.count();
  for (const std::uint64_t seed : {1U, 2U}) {
    for (std::uint64_t i = 0; i < kSlots / 2; ++i) image[i] = {i * kGolden, i ^ seed};
    const DeviceFingerprint expected = fingerprint_of(image, size.count());
    results_[slot] = {};
    check_cuda(driver_.cuMemcpyAsync(copy, to_cuda(image), size.count(), stream), "cuMemcpyAsync");
    check_cuda(launch(copy, size, stream, slot), "cuLaunchKernel");
    check_cuda(driver_.cuStreamSynchronize(stream), "cuStreamSynchronize");
    if (value(slot) != expected) throw SourceError("the kernel answers wrongly");
  }
}

CUresult Fingerprinter::launch(CUdeviceptr address, Bytes size, CUstream stream,
                               Slot slot) noexcept {
  CUdeviceptr sum = sums_ + slot * sizeof(DeviceFingerprint);
  std::uint64_t words = size.count() / kWord;
  CUresult result = driver_.cuMemsetD8Async(sum, 0, sizeof(DeviceFingerprint), stream);
  if (result != CUDA_SUCCESS) return result;
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::uint64_t>((words + kThreads - 1) / kThreads, 1, most_blocks_));
  void* arguments[] = {&address, &words, &sum};
  result =
      driver_.cuLaunchKernel(kernel_, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
  if (result != CUDA_SUCCESS) return result;
  return driver_.cuMemcpyAsync(to_cuda(results_ + slot), sum, sizeof(DeviceFingerprint), stream);
}

Fingerprinter::Slot Fingerprinter::take() noexcept {
  if (free_.empty()) return kNoSlot;
  const Slot slot = free_.back();
  free_.pop_back();
  return slot;
}

void Fingerprinter::give(Slot slot) noexcept {
  if (slot != kNoSlot) free_.push_back(slot);  // it came from there: there is room
}

void Fingerprinter::close() noexcept {
  if (module_ != nullptr) (void)insist([this] { return driver_.cuModuleUnload(module_); });
  if (sums_ != 0) (void)insist([this] { return driver_.cuMemFree(sums_); });
  if (results_ != nullptr) (void)insist([this] { return driver_.cuMemFreeHost(results_); });
}

Fingerprinter::~Fingerprinter() {
  if (!abandoned_) close();
}

}  // namespace commensal
