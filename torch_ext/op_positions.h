// SPDX-License-Identifier: Apache-2.0
// Finds an op's place in the step from the sequence of ops alone, and what it took there.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/relaxed.h"
#include "torch_ext/gate/op_duration.h"

namespace commensal {

/// One thread's place in the sequence of its outermost ops. Trivial, for it is thread-local.
struct OpCursor {
  std::uint64_t path = 0;    ///< of the ops since the last border, in their order
  std::uint64_t recent = 0;  ///< the last four ops, 16 bits each
  std::uint64_t older = 0;   ///< the last sixteen, 4 bits each
  std::uint64_t border = 0;  ///< the border that it began from
  std::uint32_t index = 0;   ///< ops since then
  bool following = false;    ///< was at a known place since then
};

/// Remembers what each op took at its place in the step: the same op comes in many sizes, and the
/// place tells them apart without a look at its inputs.
///
/// A place is the hash of all ops of the thread since the last border (a batch that arrived, the
/// begin or end of an optimizer step), so steps with the same ops have the same places. Where a
/// thread leaves the sequences that are known (an evaluation, another number of ops), each further
/// op is looked for: any place with the same sixteen ops before it, else the nearest with the same
/// four, is where it goes on. Without borders that happens after `kLongest` ops, so that a loop
/// of any length closes.
///
/// Fixed memory, 768 KiB. A place gives way to a new one once it has not been met for
/// `kFresh` borders; while all of a set are fresh, new places are not remembered, and the op's name
/// has to do.
///
/// Thread safety: any member from any thread, each with its own cursor; without locks. Two threads
/// that write the same entry at once may lose a place or mix two up: a wrong guess, no more.
class OpPositions {
 public:
  static constexpr std::size_t kSets = 4096;
  static constexpr std::size_t kWays = 4;
  static constexpr std::uint32_t kFresh = 64;
  static constexpr std::uint32_t kLongest = 4096;

  /// Moves on to the thread's next outermost op and returns what it took at this place so far;
  /// null if the place could not be remembered.
  /// @param name    the op: any address that is always the same for it.
  /// @param border  number of the newest border, the kind of the border in its lowest 8 bits.
  [[nodiscard]] OpDuration* next(OpCursor& cursor, const void* name,
                                 std::uint64_t border) noexcept {
    const std::uint64_t op = mix(reinterpret_cast<std::uintptr_t>(name));
    if (cursor.border != border) start_over(cursor, border);
    cursor.path = mix(cursor.path ^ op);
    cursor.recent = (cursor.recent << 16U) | (op >> 48U);
    cursor.older = (cursor.older << 4U) | (op >> 60U);
    ++cursor.index;
    Place* place = find(cursor.path);
    if (place == nullptr) return not_known(cursor);
    cursor.following = true;
    const auto now = age(cursor.border);
    if (place->met.load(kRelaxed) != now) place->met.store(now, kRelaxed);
    return &place->took;
  }

 private:
  static constexpr unsigned int kBorderBits = 8;
  static constexpr std::size_t kSigns = 16384;
  /// The same four ops in a row are sought so many ops before and after where they would be.
  static constexpr std::uint32_t kNear = 16;
  /// So many places that found no room count as one border: without borders all would stay fresh.
  static constexpr std::uint32_t kRefusalsABorder = 1024;

  struct Place {
    std::atomic<std::uint64_t> path{0};  // 0: empty
    std::atomic<std::uint32_t> met{0};   // age at its newest meeting
    std::atomic<std::uint32_t> index{0};
    OpDuration took;
  };
  struct alignas(128) Set {
    std::array<Place, kWays> places;
  };
  /// Where some ops in a row were met: their key and the place of the last of them.
  struct Sign {
    std::atomic<std::uint64_t> key{0};
    std::atomic<std::uint64_t> path{0};
  };

  static constexpr std::uint64_t mix(std::uint64_t bits) noexcept {
    bits *= 0x9E37'79B9'7F4A'7C15ULL;
    return bits ^ (bits >> 32U);
  }
  [[nodiscard]] std::uint32_t age(std::uint64_t border) const noexcept {
    return static_cast<std::uint32_t>(border >> kBorderBits) +
           refused_.load(kRelaxed) / kRefusalsABorder;
  }
  Set& set_of(std::uint64_t path) noexcept { return sets_[(path >> 20U) % kSets]; }

  Place* find(std::uint64_t path) noexcept {
    for (Place& place : set_of(path).places) {
      if (place.path.load(kRelaxed) == path) return &place;
    }
    return nullptr;
  }

  static void start_over(OpCursor& cursor, std::uint64_t border) noexcept {
    cursor.border = border;
    cursor.path = border & ((1U << kBorderBits) - 1);
    cursor.index = 0;
    cursor.following = false;
  }

  /// The last four ops, so many after the border.
  static std::uint64_t near_key(const OpCursor& cursor, std::uint32_t index) noexcept {
    return mix(cursor.recent ^ mix(index)) | 1U;  // never 0
  }
  /// The last sixteen, anywhere. Of the last four all bits count, for with four bits each one op of
  /// sixteen would be taken for what usually comes here.
  static std::uint64_t far_key(const OpCursor& cursor) noexcept {
    return mix(mix(~cursor.older) ^ cursor.recent) | 1U;
  }
  Sign& sign_of(std::uint64_t key) noexcept { return signs_[(key >> 20U) % kSigns]; }

  Place* signposted(std::uint64_t key) noexcept {
    const Sign& sign = sign_of(key);
    return sign.key.load(kRelaxed) == key ? find(sign.path.load(kRelaxed)) : nullptr;
  }

  [[gnu::noinline]] OpDuration* not_known(OpCursor& cursor) noexcept {
    if (cursor.following || cursor.index > kLongest) {
      if (Place* place = go_on_elsewhere(cursor); place != nullptr) {
        cursor.following = true;
        cursor.path = place->path.load(kRelaxed);
        cursor.index = place->index.load(kRelaxed);
        place->met.store(age(cursor.border), kRelaxed);
        return &place->took;
      }
    }
    return remember(cursor);
  }

  Place* go_on_elsewhere(const OpCursor& cursor) noexcept {
    if (Place* place = signposted(near_key(cursor, cursor.index))) return place;
    // Sixteen ops say more than four, where nothing new is among them.
    if (Place* place = signposted(far_key(cursor))) return place;
    for (std::uint32_t off = 1; off <= kNear; ++off) {
      if (Place* place = signposted(near_key(cursor, cursor.index - off))) return place;
      if (Place* place = signposted(near_key(cursor, cursor.index + off))) return place;
    }
    return nullptr;
  }

  OpDuration* remember(const OpCursor& cursor) noexcept {
    const std::uint32_t now = age(cursor.border);
    Place* oldest = nullptr;
    std::uint32_t most = 0;
    for (Place& place : set_of(cursor.path).places) {
      const bool empty = place.path.load(kRelaxed) == 0;
      const std::uint32_t unmet = empty ? UINT32_MAX : now - place.met.load(kRelaxed);
      if (oldest != nullptr && unmet <= most) continue;
      oldest = &place;
      most = unmet;
    }
    if (most < kFresh) {
      refused_.fetch_add(1, kRelaxed);
      return nullptr;
    }
    oldest->path.store(cursor.path, kRelaxed);
    oldest->met.store(now, kRelaxed);
    oldest->index.store(cursor.index, kRelaxed);
    oldest->took.forget();
    for (const std::uint64_t key : {near_key(cursor, cursor.index), far_key(cursor)}) {
      Sign& sign = sign_of(key);
      sign.path.store(cursor.path, kRelaxed);
      sign.key.store(key, kRelaxed);
    }
    return &oldest->took;
  }

  std::array<Set, kSets> sets_{};
  std::array<Sign, kSigns> signs_{};
  std::atomic<std::uint32_t> refused_{0};
};

}  // namespace commensal
