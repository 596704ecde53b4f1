#include "kernels/bench/roofs.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

TEST(Roofs, ReadsNoFasterThanAnyMemoryAndNoSlowerThanADisk) {
  ThreadPool threads(2);
  const int64_t bytes = uncached_bytes();
  EXPECT_GE(bytes, 256 << 20);
  Tensor buffer({bytes}, DType::u8);
  std::memset(buffer.view().data, 1, static_cast<size_t>(bytes));
  const double rate = read_roof(threads, buffer.view().data, bytes);
  EXPECT_GT(rate, 0.1e9);
  EXPECT_LT(rate, 1e12);
}

// A loop that the compiler shortened would be faster than the units can be: 6 GHz times two
// instructions of the widest vectors.
TEST(Roofs, CountsTheProductsThatAreDone) {
  ThreadPool alone(1);
  const DotRoof best = dot_roof(alone);
  EXPECT_GT(best.flops, 0.1e9);
  if (best.path == "AVX-512 bf16 dot") {
    EXPECT_LT(best.flops, 6e9 * 2 * 64);
  }
  limit_isa(Isa::generic);
  const DotRoof plain = dot_roof(alone);
  limit_isa(Isa::avx512);
  if (plain.path == "fp32 FMA") {
    EXPECT_LT(plain.flops, 6e9 * 2 * 8);
  } else {
    EXPECT_EQ(plain.path, "AMX bf16");  // which is no vector unit, and has no limit here
  }
}

}  // namespace
}  // namespace lockstep
