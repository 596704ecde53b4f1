#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/base/check.h"
#include "src/session/device.h"

namespace lockstep {

// Where engines run in tests of whole runs: on the CPU, or where LOCKSTEP_DEVICE in the environment
// says. A machine without that device skips all of the binary's tests, with the reason; a library
// that is not this build's fails them.
class TestDevice : public testing::Environment {
 public:
  void SetUp() override {
    const char* name = std::getenv("LOCKSTEP_DEVICE");
    if (name == nullptr) return;
    try {
      device_ = open_device(name);
    } catch (const Error& error) {
      if (std::string(error.what()).find("is not the CUDA library of this build") !=
          std::string::npos)
        throw;
      GTEST_SKIP() << error.what();
    }
  }
  static Device device() { return device_; }

 private:
  inline static Device device_ = Device::cpu;
};
inline const testing::Environment* const kTestDevice =
    testing::AddGlobalTestEnvironment(new TestDevice);

}  // namespace lockstep
