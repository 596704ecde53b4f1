#include "src/bench/device_roofs.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/base/check.h"
#include "src/session/device.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

TEST(DeviceRoofs, WantADeviceThatWasOpened) {
  EXPECT_NE(error_of([] { roof_kernels(); }).find("before one was opened"), std::string::npos);
}

// After the other one: a device stays open.
TEST(DeviceRoofsOfADevice, AreNumbersThatADeviceCanHave) {
  if (std::getenv("LOCKSTEP_DEVICE") == nullptr)
    GTEST_SKIP() << "this is of a CUDA device: LOCKSTEP_DEVICE names none";
  DeviceRoofs roofs(open_device("cuda"));
  const double first = roofs.read();
  roofs.sample();
  EXPECT_GE(roofs.read(), first);  // the better of the two
  EXPECT_GT(first, 50e9);
  EXPECT_LT(roofs.read(), 20e12);
  const std::vector<Figure> figures = roofs.figures();
  ASSERT_EQ(figures.size(), 3u);
  EXPECT_EQ(figures[0].what, "device memory, read");
  EXPECT_EQ(figures[0].samples.size(), 2u);
  EXPECT_EQ(figures[1].what, "device memory, copied to the host");
  EXPECT_EQ(figures[2].what, "an empty kernel in a graph");
  for (const double rate : figures[1].samples) {
    EXPECT_GT(rate, 1e9);
    EXPECT_LT(rate, first);
  }
  for (const double seconds : figures[2].samples) {
    EXPECT_GT(seconds, 50e-9);
    EXPECT_LT(seconds, 50e-6);
  }
}

}  // namespace
}  // namespace lockstep
