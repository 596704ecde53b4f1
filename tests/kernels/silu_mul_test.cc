#include "kernels/silu_mul.h"

#include "kernels/base/thread_pool.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

TEST(SiluMul, RoundsOnce) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const int64_t n : {1, 7, 16, 33, 1000}) {
        Sample gate({3, n}, dtype, 1), up({3, n}, dtype, 2), out({3, n}, dtype, 3);
        gate.fill_normal(1, 4);
        up.fill_normal(2);
        silu_mul({}, out, gate, up);
        const std::vector<double> g = gate.values(), u = up.values();
        std::vector<double> want, arithmetic;
        for (size_t i = 0; i < g.size(); ++i) {
          want.push_back(g[i] / (1 + std::exp(-g[i])) * u[i]);
          // exp within 2 ulp (4 units), then a sum, a quotient and a product
          arithmetic.push_back(8 * kUnit * std::fabs(want.back()));
        }
        expect_rounded(out, want, arithmetic);
      }
    }
  });
}

TEST(SiluMul, HoldsAtTheEndsOfTheRange) {
  const double inf = INFINITY;
  on_every_isa([&] {
    Sample gate({6}, DType::f32), up({6}, DType::f32), out({6}, DType::f32);
    silu_mul({}, out, gate.fill({-1000, 1000, 0, NAN, inf, 1}), up.fill({2, 2, 2, 2, 2, NAN}));
    const std::vector<double> got = out.values();
    EXPECT_EQ(got[0], 0);
    EXPECT_EQ(got[1], 2000);
    EXPECT_EQ(got[2], 0);
    EXPECT_TRUE(std::isnan(got[3]));
    EXPECT_EQ(got[4], inf);
    EXPECT_TRUE(std::isnan(got[5]));
  });
}

TEST(SiluMul, ThreadsDoNotChangeABit) {
  Sample gate({100, 301}, DType::bf16), up({100, 301}, DType::bf16), alone({100, 301}, DType::bf16);
  gate.fill_normal(1);
  up.fill_normal(2);
  silu_mul({}, alone, gate, up);
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Sample out({100, 301}, DType::bf16), one({1, 301}, DType::bf16);
    silu_mul({.threads = &pool}, out, gate, up);
    EXPECT_EQ(out.bits(), alone.bits());
    silu_mul({}, one, gate.view().slice(50, 1), up.view().slice(50, 1));
    EXPECT_EQ(one.bits(), alone.bits().substr(50 * one.bits().size(), one.bits().size()));
  }
}

TEST(SiluMul, RefusesWhatDoesNotFit) {
  Sample a({2, 3}, DType::f32), b({3, 2}, DType::f32), half({2, 3}, DType::bf16);
  expect_refused([&] { silu_mul({}, a, a, b); }, {"up", "[2, 3]", "[3, 2]"});
  expect_refused([&] { silu_mul({}, a, half, a); }, {"up", "bf16", "fp32"});
  expect_refused([&] { silu_mul({}, b, a, a); }, {"out", "[2, 3]"});
}

}  // namespace
}  // namespace lockstep
