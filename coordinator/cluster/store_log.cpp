// SPDX-License-Identifier: Apache-2.0
// Frames of a log and their checksums
// (https://www.sqlite.org/fileformat2.html#the_write_ahead_log).
#include "coordinator/cluster/store_log.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <vector>

#include "coordinator/cluster/checked_pages.h"

namespace commensal::cluster {
namespace {

using ConstBytes = std::span<const unsigned char>;

constexpr std::uint32_t kMagic = 0x377f0682;  // one more: words of the checksum are big-endian

std::uint32_t big_endian(ConstBytes bytes, std::size_t at) noexcept {
  return std::uint32_t{bytes[at]} << 24U | std::uint32_t{bytes[at + 1]} << 16U |
         std::uint32_t{bytes[at + 2]} << 8U | std::uint32_t{bytes[at + 3]};
}

/// The running checksum over a log.
class Sum {
 public:
  explicit Sum(bool big) noexcept : big_(big) {}

  void add(ConstBytes bytes) noexcept {
    for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
      first_ += word(bytes, at) + second_;
      second_ += word(bytes, at + 4) + first_;
    }
  }
  [[nodiscard]] bool is_at(ConstBytes bytes, std::size_t at) const noexcept {
    return big_endian(bytes, at) == first_ && big_endian(bytes, at + 4) == second_;
  }

 private:
  [[nodiscard]] std::uint32_t word(ConstBytes bytes, std::size_t at) const noexcept {
    const std::uint32_t value = big_endian(bytes, at);
    return big_ ? value : __builtin_bswap32(value);
  }

  bool big_;
  std::uint32_t first_ = 0;
  std::uint32_t second_ = 0;
};

/// Reads exactly that much, or says no.
bool read(std::ifstream& in, std::span<unsigned char> out) {
  in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  return static_cast<std::size_t>(in.gcount()) == out.size();
}

}  // namespace

bool log_is_damaged(const std::filesystem::path& log) {
  std::ifstream in(log, std::ios::binary);
  std::array<unsigned char, kLogHeader> header{};
  if (!in || !read(in, header)) return false;
  Sum sum{(big_endian(header, 0) & 1U) != 0};
  sum.add(ConstBytes{header}.first(24));
  bool good = (big_endian(header, 0) & ~1U) == kMagic && sum.is_at(header, 24);
  std::vector<unsigned char> frame(kFrameHeader + kPageSize);
  // Of this run of the log; what an earlier one left behind has others.
  std::array salts{big_endian(header, 16), big_endian(header, 20)};
  bool salts_known = good;
  int commits_after = 0;
  while (read(in, frame)) {
    const std::array own{big_endian(frame, 8), big_endian(frame, 12)};
    if (!salts_known) salts = own;
    salts_known = true;
    if (good) {
      sum.add(ConstBytes{frame}.first(8));
      sum.add(ConstBytes{frame}.subspan(kFrameHeader));
      good = own == salts && sum.is_at(frame, 16);
    }
    const bool ends_a_commit = big_endian(frame, 4) != 0;
    if (!good && own == salts && ends_a_commit) ++commits_after;
  }
  return commits_after >= 2;
}

}  // namespace commensal::cluster
