#include "kernels/add.h"

#include "kernels/base/thread_pool.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

TEST(Add, IsTheRoundedSumOfEveryElement) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const int64_t n : {0, 1, 3, 15, 16, 17, 100}) {
        Sample a({2, n}, dtype, 1), b({2, n}, dtype, 2), out({2, n}, dtype, 3);
        a.fill_normal(1);
        b.fill_normal(2, 0.01);
        add({}, out, a, b);
        const std::vector<double> x = a.values(), y = b.values(), got = out.values();
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_EQ(got[i], round_to(x[i] + y[i], dtype)) << i;
      }
    }
  });
}

TEST(Add, TreatsSpecialValuesAsIeeeSays) {
  const double inf = INFINITY;
  on_every_isa([&] {
    for (const DType dtype : kFloats) {
      const double max = format_of(dtype).max;
      Sample a({6}, dtype), b({6}, dtype), out({6}, dtype);
      add({}, out, a.fill({inf, inf, -0.0, max, NAN, -0.0}), b.fill({1, -inf, -0.0, max, 1, 0.0}));
      const std::vector<double> got = out.values();
      EXPECT_EQ(got[0], inf);
      EXPECT_TRUE(std::isnan(got[1]));
      EXPECT_TRUE(got[2] == 0 && std::signbit(got[2]));
      EXPECT_EQ(got[3], inf);
      EXPECT_TRUE(std::isnan(got[4]));
      EXPECT_TRUE(got[5] == 0 && !std::signbit(got[5]));
    }
  });
}

TEST(Add, ThreadsAndMemorySharedWithAnArgumentChangeNothing) {
  for (const DType dtype : kFloats) {
    Sample a({300, 301}, dtype), b({300, 301}, dtype), alone({300, 301}, dtype);
    a.fill_normal(1);
    b.fill_normal(2);
    add({}, alone, a, b);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      Sample out({300, 301}, dtype);
      add({.threads = &pool}, out, a, b);
      EXPECT_EQ(out.bits(), alone.bits());
    }
    add({}, b, a, b);
    EXPECT_EQ(b.bits(), alone.bits());
  }
}

TEST(Add, RefusesWhatDoesNotFit) {
  Sample a({2, 3}, DType::f32), b({3, 2}, DType::f32), half({2, 3}, DType::bf16);
  Sample whole({2, 3}, DType::i32);
  expect_refused([&] { add({}, a, a, b); }, {"b", "[2, 3]", "[3, 2]"});
  expect_refused([&] { add({}, b, a, a); }, {"out", "[2, 3]", "[3, 2]"});
  expect_refused([&] { add({}, a, a, half); }, {"fp32", "bf16"});
  expect_refused([&] { add({}, whole, whole, whole); }, {"int32"});
}

}  // namespace
}  // namespace lockstep
