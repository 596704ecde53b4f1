// What tests of every room use; it needs no engine.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/check.h"

namespace lockstep {

inline std::string data_path(const std::string& name) {
  return std::string(LOCKSTEP_TEST_DATA) + "/" + name;
}

// A path for a test's own file: tests run side by side, each in a process of its own.
inline std::string temp_path(const std::string& name) {
  return testing::TempDir() + "lockstep_" + std::to_string(getpid()) + "_" + name;
}

// The sentence of the Error that `body` throws; fails the test when it throws none.
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "an Error was expected";
  return "";
}

// `count` token ids below `vocab` that look like nothing special, always the same for one seed.
inline std::vector<int32_t> some_tokens(int64_t count, int64_t vocab, uint64_t seed = 1) {
  std::vector<int32_t> tokens;
  for (uint64_t state = seed * 0x9e3779b97f4a7c15u; std::ssize(tokens) < count;) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

}  // namespace lockstep
