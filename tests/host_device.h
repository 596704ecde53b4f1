#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "kernels/base/memory.h"

namespace lockstep {

// Tests of tensors of CUDA devices, cuda and cuda:3, that are played: their memory is the host's.
class HostDevice : public testing::Test {
 protected:
  void SetUp() override {
    const auto allocate = [](int64_t bytes) { return std::malloc(static_cast<size_t>(bytes)); };
    for (const int index : {0, 3})
      register_runtime({.index = index,
                        .allocate = allocate,
                        .release = std::free,
                        .available = [] { return int64_t{0}; },
                        .pin = allocate,
                        .unpin = std::free,
                        .copy =
                            [](void* to, const void* from, int64_t bytes, CUstream_st*) {
                              check(to != nullptr && from != nullptr, "memory was wanted");
                              std::memcpy(to, from, static_cast<size_t>(bytes));
                            },
                        .copy_parts =
                            [](std::span<const CopyPart> parts, CUstream_st*) {
                              check(parts.size() <= DeviceRuntime::kMostParts, "too many parts");
                              for (const auto& [to, from, bytes] : parts)
                                std::memcpy(to, from, static_cast<size_t>(bytes));
                            },
                        .wait = [](CUstream_st*) {}});
  }
  void TearDown() override { forget_runtimes(); }
};

}  // namespace lockstep
