#include "kernels/argmax.h"

#include "kernels/base/thread_pool.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

int32_t largest(std::vector<double> values, DType dtype) {
  Sample logits({1, static_cast<int64_t>(values.size())}, dtype, 1), out({1}, DType::i32);
  argmax({}, out, logits.fill(values));
  return out.view().as<int32_t>()[0];
}

TEST(Argmax, IsTheFirstOfTheLargest) {
  for (const DType dtype : kFloats) {
    EXPECT_EQ(largest({5}, dtype), 0);
    EXPECT_EQ(largest({1, 3, 2}, dtype), 1);
    EXPECT_EQ(largest({-3, -1, -2}, dtype), 1);
    EXPECT_EQ(largest({1, 3, 3, 2, 3}, dtype), 1);
    EXPECT_EQ(largest({0.0, -0.0, 0.0}, dtype), 0);
    EXPECT_EQ(largest({-0.0, 0.0}, dtype), 0);
    EXPECT_EQ(largest({-INFINITY, -INFINITY}, dtype), 0);
    EXPECT_EQ(largest({-INFINITY, 1, INFINITY}, dtype), 2);
  }
}

TEST(Argmax, ANanIsTheLargest) {
  for (const DType dtype : kFloats) {
    EXPECT_EQ(largest({1, NAN, INFINITY}, dtype), 1);
    EXPECT_EQ(largest({INFINITY, 1, NAN, NAN}, dtype), 2);
    EXPECT_EQ(largest({NAN, 2}, dtype), 0);
  }
}

TEST(Argmax, EveryRowForItselfOnEveryThread) {
  Sample logits({50, 997}, DType::bf16);
  logits.fill_normal(1);
  const std::vector<double> values = logits.values();
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Sample out({50}, DType::i32);
    argmax({.threads = &pool}, out, logits);
    for (int64_t t = 0; t < 50; ++t) {
      const auto row = values.begin() + t * 997;
      EXPECT_EQ(out.view().as<int32_t>()[t], std::max_element(row, row + 997) - row);
    }
  }
}

TEST(Argmax, RefusesWhatDoesNotFit) {
  Sample logits({2, 3}, DType::f32), out({2}, DType::i32), longer({3}, DType::i32);
  Sample none({2, 0}, DType::f32), flat({6}, DType::f32), wide({2}, DType::i64);
  expect_refused([&] { argmax({}, longer, logits); }, {"out", "[2]", "[3]"});
  expect_refused([&] { argmax({}, wide, logits); }, {"out", "int32", "int64"});
  expect_refused([&] { argmax({}, out, none); }, {"[2, 0]"});
  expect_refused([&] { argmax({}, out, flat); }, {"2 axes", "[6]"});
}

}  // namespace
}  // namespace lockstep
