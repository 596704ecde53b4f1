#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <string>

namespace lockstep {

// What a test of one model is called: its folder, without what a test's name may not have.
inline std::string model_label(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

}  // namespace lockstep
