// SPDX-License-Identifier: Apache-2.0
// Reserved addresses and what is mapped there.
#include "allocator/cuda/address_map.h"

#include <bit>
#include <utility>

namespace commensal {
namespace {

std::string hex(CUdeviceptr address) {
  static constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (; address != 0 || text.empty(); address >>= 4U) text.insert(0, 1, kDigits[address & 15U]);
  return "0x" + text;
}

Bytes size_of(std::span<const Placed> run) noexcept {
  Bytes total;
  for (const Placed& placed : run) total += placed.size;
  return total;
}

}  // namespace

CUdeviceptr AddressMap::reserve(Bytes size) {
  const Bytes unit = handles_.granularity();
  CUdeviceptr address = 0;
  const std::size_t alignment = std::has_single_bit(unit.count()) ? unit.count() : 0;
  const CUresult result = driver_.cuMemAddressReserve(&address, size.count(), alignment, 0, 0);
  const std::string call = "cuMemAddressReserve of " + to_string(size);
  if (result == CUDA_ERROR_INVALID_VALUE) {  // the size is a multiple, so it is too large
    throw OutOfMemory(call + ": " + driver_.describe(result));
  }
  check_cuda(result, call);
  if (address % unit.count() != 0) {
    (void)insist([&] { return driver_.cuMemAddressFree(address, size.count()); });
    throw SourceError(call + ": " + hex(address) + " is not aligned to " + to_string(unit));
  }
  return address;
}

void AddressMap::unreserve(CUdeviceptr address, Bytes size) {
  check_cuda(driver_.cuMemAddressFree(address, size.count()),
             "cuMemAddressFree of " + to_string(size) + " at " + hex(address));
}

// Gives access to a run, in one call for each stretch of one tier.
CUresult AddressMap::allow(std::span<const Placed> run) noexcept {
  for (std::size_t begin = 0; begin < run.size();) {
    std::size_t end = begin;
    while (end < run.size() && run[end].tier == run[begin].tier) ++end;
    const std::vector<CUmemAccessDesc>& access = handles_.access();
    const CUresult result =
        driver_.cuMemSetAccess(run[begin].address, size_of(run.subspan(begin, end - begin)).count(),
                               access.data(), access.size());
    if (result != CUDA_SUCCESS) return result;
    begin = end;
  }
  return CUDA_SUCCESS;
}

void AddressMap::let_in(CUdevice device, std::span<const Placed> all) {
  CUmemAccessDesc right{};
  right.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  // Returns how many chunks were done, from the first on, and the result of the last call.
  const auto set = [&](std::span<const Placed> chunks, CUmemAccess_flags flags) {
    right.flags = flags;
    for (std::size_t begin = 0; begin < chunks.size();) {
      std::size_t end = begin + 1;
      while (end < chunks.size() && chunks[end].tier == chunks[begin].tier &&
             chunks[end].address == chunks[end - 1].address + chunks[end - 1].size.count()) {
        ++end;
      }
      const Bytes size = size_of(chunks.subspan(begin, end - begin));
      const auto give = [&] {
        return driver_.cuMemSetAccess(chunks[begin].address, size.count(), &right, 1);
      };
      const CUresult result = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? insist(give) : give();
      if (result != CUDA_SUCCESS) return std::pair(begin, result);
      begin = end;
    }
    return std::pair(chunks.size(), CUDA_SUCCESS);
  };
  const auto [done, result] = set(all, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (result == CUDA_SUCCESS) return;
  // A right that the driver does not take back harms nobody, and ends with the mapping.
  (void)set(all.first(done), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  check_cuda(result, "cuMemSetAccess for device " + std::to_string(device) + " of " +
                         to_string(size_of(all)) + " at " + hex(all.front().address));
}

// Maps a run and gives access to it; undoes its part if that fails.
CUresult AddressMap::place(std::span<const Placed> run, const char** call) noexcept {
  std::size_t mapped = 0;
  CUresult result = CUDA_SUCCESS;
  *call = "cuMemMap";
  for (; mapped < run.size() && result == CUDA_SUCCESS; ++mapped) {
    const Placed& placed = run[mapped];
    result = driver_.cuMemMap(placed.address, placed.size.count(), 0, placed.handle, 0);
    if (result != CUDA_SUCCESS) break;
  }
  if (result == CUDA_SUCCESS) {
    *call = "cuMemSetAccess";
    result = allow(run);
  }
  if (result != CUDA_SUCCESS && mapped != 0) {
    unmap_at_last(run.front().address, size_of(run.first(mapped)));
  }
  return result;
}

void AddressMap::map(std::span<const Placed> run) {
  expect(run.size());
  const char* call = "";
  const CUresult result = place(run, &call);
  if (result == CUDA_SUCCESS) return;
  check_cuda(result, std::string(call) + " of " + to_string(size_of(run)) + " at " +
                         hex(run.front().address));
}

void AddressMap::unmap(CUdeviceptr address, Bytes size) {
  check_cuda(driver_.cuMemUnmap(address, size.count()),
             "cuMemUnmap of " + to_string(size) + " at " + hex(address));
}

void AddressMap::unmap_at_last(CUdeviceptr address, Bytes size) noexcept {
  const CUresult result = insist([&] { return driver_.cuMemUnmap(address, size.count()); });
  if (result == CUDA_SUCCESS) return;
  refused_ = result;
  strays_.push_back(Stray{address, size});  // `expect` made room
}

// Brings back what was there.
void AddressMap::restore(std::span<const Placed> run) noexcept {
  for (const Placed& placed : run) holes_.push_back(Hole{placed});  // `expect` made room
  (void)mend();
}

CUresult AddressMap::replace(std::span<const Placed> from, std::span<const Placed> to) noexcept {
  if (!from.empty()) {
    const CUresult unmapped = driver_.cuMemUnmap(from.front().address, size_of(from).count());
    if (unmapped != CUDA_SUCCESS) return unmapped;
  }
  if (to.empty()) return CUDA_SUCCESS;
  const char* call = "";
  const CUresult result = place(to, &call);
  if (result != CUDA_SUCCESS) restore(from);
  return result;
}

void AddressMap::expect(std::size_t chunks) {
  strays_.reserve(strays_.size() + chunks);
  holes_.reserve(holes_.size() + chunks);
}

bool AddressMap::mend() noexcept {
  if (strays_.empty() && holes_.empty()) return true;
  const auto done = [this](auto call) {
    const CUresult result = insist(call);
    if (result != CUDA_SUCCESS) refused_ = result;
    return result == CUDA_SUCCESS;
  };
  std::erase_if(strays_, [&](const Stray& stray) {
    return done([&] { return driver_.cuMemUnmap(stray.address, stray.size.count()); });
  });
  if (!strays_.empty()) return false;  // they may lie where something is missing
  for (Hole& hole : holes_) {
    const Placed& placed = hole.placed;
    hole.mapped =
        hole.mapped || done([&] {
          return driver_.cuMemMap(placed.address, placed.size.count(), 0, placed.handle, 0);
        });
  }
  std::erase_if(holes_, [&](const Hole& hole) {
    return hole.mapped && done([&] { return allow(std::span(&hole.placed, 1)); });
  });
  return holes_.empty();
}

std::string AddressMap::trouble() const {
  return std::to_string(holes_.size()) + " chunks have lost their mapping and " +
         std::to_string(strays_.size()) + " mappings are left over; the driver answers " +
         driver_.describe(refused_);
}

}  // namespace commensal
