// A large copy is cut into pieces: none may be left out, and nothing behind the last be written.
#include "kernels/base/shared_copy.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace lockstep {
namespace {

TEST(SharedCopy, CopiesEveryByteAndNoMore) {
  constexpr int64_t kMiB = 1 << 20;
  SharedCopy copies(3);
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, 4 * kMiB - 1, 4 * kMiB, 9 * kMiB + 3}) {
    std::vector<uint8_t> from(bytes);
    std::iota(from.begin(), from.end(), uint8_t{1});
    for (size_t i = 0; i < from.size(); i += kMiB) from[i] = static_cast<uint8_t>(i / kMiB);
    std::vector<uint8_t> to(bytes + 1, uint8_t{99}), want = from;
    want.push_back(99);
    copies.copy(to.data(), from.data(), bytes);
    EXPECT_TRUE(to == want) << bytes;
  }
}

}  // namespace
}  // namespace lockstep
