// SPDX-License-Identifier: Apache-2.0
// Physical memory of a GPU and of the host beside it: creates, releases and keeps handles.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/cuda/device_context.h"
#include "allocator/memory_source.h"

namespace commensal {

/// What host memory is used for.
enum class HostUse : std::uint8_t {
  kMapped,     ///< the slower tier, if the driver gives any to map
  kNotMapped,  ///< no slower tier, as if it gave none
  kOff
};

/// Creates handles on the two tiers and keeps some that were released, for the next `create`.
///
/// Device handles are made shareable, and usable by RDMA where the device can, because neither can
/// be added later. The slower tier is host memory that the device can map: of the NUMA node beside
/// the device, else of the host at large; which of these the driver allows is tried out once.
/// Creating costs far more than anything else here, and for host memory it means pinning; a kept
/// handle of the same size costs nothing. Kept device handles stay within the lease, so that memory
/// that a limit takes away is really given back.
/// Thread safety: `granularity`, `location` and `host_reason` never change; all else is serialised
/// by the caller, which holds a DeviceContext::Scope.
class HandleStore {
 public:
  /// @param host_keep  most bytes of unused host handles.
  /// @throws SourceError if the device has no virtual memory management.
  HandleStore(const DeviceContext& context, HostUse host, Bytes host_keep);
  ~HandleStore();
  HandleStore(const HandleStore&) = delete;
  HandleStore& operator=(const HandleStore&) = delete;

  /// Returns the unit in which both tiers are created and mapped.
  [[nodiscard]] Bytes granularity() const noexcept { return granularity_; }
  /// Says why there is no slower tier; empty: there is one.
  [[nodiscard]] const std::string& host_reason() const noexcept { return host_reason_; }
  /// Returns who gets access to memory of both tiers: the device, and others that were added. The
  /// CPU does not get any, not even to what lies on the host.
  [[nodiscard]] const std::vector<CUmemAccessDesc>& access() const noexcept { return access_; }

  /// Adds another device to those that get access, or takes it out again.
  void add_user(CUdevice device);
  void drop_user(CUdevice device) noexcept;
  [[nodiscard]] bool has_user(CUdevice device) const noexcept;

  /// @throws OutOfMemory, SourceError; nothing has changed then.
  [[nodiscard]] CUmemGenericAllocationHandle create(Tier tier, Bytes size);
  /// Keeps the handle or gives its memory back. @throws SourceError; nothing has changed then.
  void release(Tier tier, Bytes size, CUmemGenericAllocationHandle handle);

  /// Keeps device handles only while what is created and what is kept are together within `lease`;
  /// gives back the others at once.
  void set_lease(Bytes lease) noexcept;
  /// Returns what is kept above the lease because the driver refused to take it.
  [[nodiscard]] Bytes over_lease() const noexcept;
  /// Gives back everything that is kept.
  void give_back_kept() noexcept;

  [[nodiscard]] Bytes created(Tier tier) const noexcept { return pool(tier).created; }
  /// Returns what is kept on purpose; not what the driver refused to take.
  [[nodiscard]] Bytes kept(Tier tier) const noexcept {
    return tier == Tier::kDevice ? pool(tier).kept_bytes - over_lease() : pool(tier).kept_bytes;
  }

  /// Forgets everything without a call, in a forked child.
  void abandon() noexcept { abandoned_ = true; }

 private:
  struct Pool {
    CUmemAllocationProp properties{};
    Bytes created;     // handed out
    Bytes kept_bytes;  // released, but not to the driver
    std::map<Bytes, std::vector<CUmemGenericAllocationHandle>> kept;
  };

  [[nodiscard]] Pool& pool(Tier tier) noexcept { return pools_[tier == Tier::kDevice ? 0 : 1]; }
  [[nodiscard]] const Pool& pool(Tier tier) const noexcept {
    return pools_[tier == Tier::kDevice ? 0 : 1];
  }
  [[nodiscard]] Bytes granularity_of(const CUmemAllocationProp& properties) const;
  void choose_device();
  void choose_host();
  [[nodiscard]] std::string try_host(CUmemLocation location);
  [[nodiscard]] bool may_keep(Tier tier, Bytes size) const noexcept;
  void shrink_kept(Tier tier, Bytes most) noexcept;

  const DeviceContext& context_;
  const CudaDriver& driver_;
  const Bytes host_keep_;
  Bytes granularity_;
  std::string host_reason_;
  std::vector<CUmemAccessDesc> access_;
  std::array<Pool, 2> pools_;
  Bytes lease_;
  bool abandoned_ = false;
};

}  // namespace commensal
