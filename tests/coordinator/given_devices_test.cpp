// SPDX-License-Identifier: Apache-2.0
// Devices that Slurm gave are those of the ranks, in their order.
#include "coordinator/engines/local/given_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace commensal::cluster::local::given_devices_test {
namespace {

using ::testing::ElementsAre;

Placed placed(std::vector<std::string> uuids) {
  Placed placed;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    placed.devices.push_back({"n1", static_cast<std::int32_t>(i)});
  }
  placed.uuids = std::move(uuids);
  return placed;
}

TEST(GivenDevicesTest, TheNthGivenDeviceIsTheNthOneThatIsVisible) {
  EXPECT_THAT(with_given_devices(placed({"given", "given"}), "3,5").uuids, ElementsAre("3", "5"));
  EXPECT_THAT(with_given_devices(placed({"given"}), "GPU-1f,GPU-2e").uuids, ElementsAre("GPU-1f"));
}

TEST(GivenDevicesTest, OnSeveralNodesEachCountsItsOwn) {
  Placed two = placed({"given", "given"});
  two.devices[1].node = "n2";
  EXPECT_THAT(with_given_devices(two, "3").uuids, ElementsAre("3", "3"));
}

TEST(GivenDevicesTest, WithoutEnoughNoVariableIsSet) {
  EXPECT_THAT(with_given_devices(placed({"given", "given"}), "3").uuids, ElementsAre("3", "host"));
  EXPECT_THAT(with_given_devices(placed({"given"}), "").uuids, ElementsAre("host"));
  EXPECT_THAT(with_given_devices(placed({"given", "given"}), ",4").uuids, ElementsAre("host", "4"));
}

TEST(GivenDevicesTest, OthersStayAsTheyAre) {
  EXPECT_THAT(with_given_devices(placed({"1", "host", "GPU-a"}), "3,5,7").uuids,
              ElementsAre("1", "host", "GPU-a"));
}

}  // namespace
}  // namespace commensal::cluster::local::given_devices_test
