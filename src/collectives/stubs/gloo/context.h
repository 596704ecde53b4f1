// The part of Gloo that ProcessGroupGloo.hpp names. LibTorch has Gloo inside of libtorch_cpu.so and
// publishes no headers of it. These objects are never made or looked into here: c10d's header holds
// them by pointer alone, so that nothing depends on how they are laid out.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
