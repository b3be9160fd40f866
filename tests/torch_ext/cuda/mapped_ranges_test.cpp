// SPDX-License-Identifier: Apache-2.0
// Which chunks came and went: those side by side in a segment are one change.
#include "torch_ext/cuda/mapped_ranges.h"

#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <string>
#include <vector>

namespace commensal::mapped_ranges_test {
namespace {

std::array<std::byte, 4096> memory;  // its addresses

// A segment that begins at a place, with chunks of 16 bytes at others.
SegmentMap segment(std::size_t begin, std::initializer_list<std::size_t> chunks,
                   StreamId stream = 0) {
  SegmentMap map;
  map.range = {memory.data() + begin, 256_B};
  map.stream = stream;
  for (const std::size_t at : chunks) {
    map.chunks.push_back({memory.data() + at, 16_B, Tier::kDevice, {}});
  }
  return map;
}

std::vector<std::string> told(const std::vector<MappedRanges::Change>& changes) {
  std::vector<std::string> lines;
  for (const MappedRanges::Change& change : changes) {
    lines.push_back((change.mapped ? "+" : "-") + std::to_string(change.address - memory.data()) +
                    ":" + std::to_string(change.size.count()) + "@" +
                    std::to_string(change.stream));
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(MappedRangesTest, TellsWhatCameOnce) {
  MappedRanges ranges;
  EXPECT_EQ(told(ranges.update({})), Lines{});
  const std::vector<SegmentMap> now{segment(0, {0, 16, 48}), segment(256, {256}, 7)};
  EXPECT_EQ(told(ranges.update(now)), (Lines{"+0:32@0", "+48:16@0", "+256:16@7"}));
  EXPECT_EQ(told(ranges.update(now)), Lines{});
}

TEST(MappedRangesTest, TellsWhatWentBeforeWhatCame) {
  MappedRanges ranges;
  (void)ranges.update({segment(0, {0, 16, 32})});
  EXPECT_EQ(told(ranges.update({segment(0, {0, 64})})), (Lines{"-16:32@0", "+64:16@0"}));
  EXPECT_EQ(told(ranges.update({})), (Lines{"-0:16@0", "-64:16@0"}));
}

TEST(MappedRangesTest, NeighbouringSegmentsAreNotOne) {
  MappedRanges ranges;
  EXPECT_EQ(told(ranges.update({segment(0, {240}), segment(256, {256})})),
            (Lines{"+240:16@0", "+256:16@0"}));
}

TEST(MappedRangesTest, TheSameAddressInAnotherSegmentWentAndCame) {
  MappedRanges ranges;
  (void)ranges.update({segment(0, {16})});
  EXPECT_EQ(told(ranges.update({segment(16, {16}, 7)})), (Lines{"-16:16@0", "+16:16@7"}));
}

}  // namespace
}  // namespace commensal::mapped_ranges_test
