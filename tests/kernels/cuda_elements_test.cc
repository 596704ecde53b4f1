// The twins of gather_rows, add, silu_mul and rope.
#include "tests/kernels/cuda_samples.h"
#include "tests/kernels/expected.h"

namespace lockstep {
namespace {

using CudaElements = CudaTest;

TEST_F(CudaElements, GatherRowsCopiesTheBitsOfTheRowsNamed) {
  for (const DType dtype : kFloats) {
    for (const int64_t width : {1, 7, 8, 300, 1024}) {
      for (const int64_t offset : {0, 1}) {
        Sample table({11, width}, dtype, offset), index({300}, DType::i32);
        Sample out({300, width}, dtype);
        table.fill_normal(1);
        table.set(0, NAN);
        table.set(width, -0.0);
        for (int64_t i = 0; i < 300; ++i) index.set(i, static_cast<double>(i * 7 % 11));
        run(ops_->gather_rows, out, index, table);
        const size_t bytes = table.bits().size() / 11;
        for (size_t i = 0; i < 300; ++i)
          ASSERT_EQ(out.bits().substr(i * bytes, bytes),
                    table.bits().substr(i * 7 % 11 * bytes, bytes))
              << name_of(dtype) << " of width " << width << ", row " << i;
      }
    }
  }
}

TEST_F(CudaElements, GatherRowsReportsAnIndexOutsideAndMakesItsRowNan) {
  for (const int32_t bad : {4, -1, INT32_MAX, INT32_MIN}) {
    Sample table({4, 3}, DType::f32), out({3, 3}, DType::f32), index({3}, DType::i32);
    table.fill_normal(1);
    index.fill({3, static_cast<double>(bad), 0});
    expect_refused([&] { run(ops_->gather_rows, out, index, table); },
                   {"gather_rows", "below the 4 rows", fmt::format("index {} at 1", bad)});
    EXPECT_EQ(out.bits().substr(0, 12), table.bits().substr(36, 12));
    EXPECT_TRUE(std::isnan(out.values()[3]) && std::isnan(out.values()[5]));
    EXPECT_EQ(out.bits().substr(24), table.bits().substr(0, 12));
    run(ops_->gather_rows, out, index.fill({0, 1, 2}), table);  // it is reported once
  }
}

TEST_F(CudaElements, AddAndSiluMulRoundOnce) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 7, 8, 1000, 100000}) {
      for (const int64_t offset : {0, 3}) {
        Sample a({n}, dtype, offset), b({n}, dtype), out({n}, dtype);
        a.fill_normal(1, 4);
        b.fill_normal(2, 4);
        const std::vector<double> x = a.values(), y = b.values();
        std::vector<double> sum, act, none(x.size()), arithmetic;
        for (size_t i = 0; i < x.size(); ++i) {
          sum.push_back(x[i] + y[i]);
          act.push_back(x[i] / (1 + std::exp(-x[i])) * y[i]);
          // exp within 2 units, and one rounding each of the sum, the quotient and the product.
          arithmetic.push_back(8 * kUnit * std::fabs(act.back()));
        }
        run(ops_->add, out, a, b);
        expect_rounded(out, sum, none);
        run(ops_->silu_mul, out, a, b);
        expect_rounded(out, act, arithmetic);
      }
    }
  }
}

TEST_F(CudaElements, AddMayWriteIntoAnArgument) {
  Sample a({1000}, DType::bf16), b({1000}, DType::bf16), out({1000}, DType::bf16);
  a.fill_normal(1);
  b.fill_normal(2);
  run(ops_->add, out, a, b);
  run(ops_->add, a, a, b);
  EXPECT_EQ(a.bits(), out.bits());
}

TEST_F(CudaElements, SiluMulHoldsAtTheEndsOfTheRange) {
  Sample gate({6}, DType::f32), up({6}, DType::f32), out({6}, DType::f32);
  up.fill(std::vector<double>(6, 1));
  run(ops_->silu_mul, out, gate.fill({-200, 200, 0, 1e30, INFINITY, NAN}), up);
  const std::vector<double> got = out.values();
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[1], 200);
  EXPECT_EQ(got[2], 0);
  EXPECT_EQ(got[3], 1e30f);
  EXPECT_EQ(got[4], INFINITY);
  EXPECT_TRUE(std::isnan(got[5]));
}

TEST_F(CudaElements, RopeRotatesTheHalvesAndRoundsOnce) {
  for (const DType dtype : kFloats) {
    for (const int64_t dim : {2, 16, 24, 64, 80, 128}) {
      for (const int64_t tokens : {1, 7, 33}) {
        Sample cos({40, dim / 2}, DType::f32), sin({40, dim / 2}, DType::f32);
        Sample x({tokens, 3, dim}, dtype, 1), out({tokens, 3, dim}, dtype, 3);
        Sample positions({tokens}, DType::i32);
        cos.fill_normal(50);
        sin.fill_normal(51);
        x.fill_normal(static_cast<unsigned>(dim));
        for (int64_t t = 0; t < tokens; ++t) positions.set(t, static_cast<double>(t * 17 % 40));
        run(ops_->rope, out, x, cos, sin, positions);
        const Expected want = rotated(x, cos, sin, positions);
        expect_rounded(out, want.values, want.arithmetic);
        run(ops_->rope, x, x, cos, sin, positions);
        EXPECT_EQ(x.bits(), out.bits()) << "in place";
      }
    }
  }
}

TEST_F(CudaElements, RopeReportsAPositionOutsideItsTables) {
  Sample cos({10, 4}, DType::f32), sin({10, 4}, DType::f32), positions({2}, DType::i32);
  Sample x({2, 1, 8}, DType::f32), out({2, 1, 8}, DType::f32);
  cos.fill_normal(1);
  sin.fill_normal(2);
  x.fill_normal(3);
  for (const int32_t bad : {10, -1}) {
    positions.fill({9, static_cast<double>(bad)});
    expect_refused([&] { run(ops_->rope, out, x, cos, sin, positions); },
                   {"rope", "10 rows", fmt::format("position {} of token 1", bad)});
    EXPECT_TRUE(std::isfinite(out.values()[7]));
    EXPECT_TRUE(std::isnan(out.values()[8]));
  }
}

TEST_F(CudaElements, OfNothingIsNothing) {
  Sample empty({0, 8}, DType::f32), index({0}, DType::i32), table({4, 8}, DType::f32);
  Sample heads({0, 2, 8}, DType::f32), cos({4, 4}, DType::f32), sin({4, 4}, DType::f32);
  run(ops_->gather_rows, empty, index, table);
  run(ops_->add, empty, empty, empty);
  run(ops_->silu_mul, empty, empty, empty);
  run(ops_->rope, heads, heads, cos, sin, index);
}

TEST_F(CudaElements, RefuseWhatDoesNotFit) {
  Sample x({2, 8}, DType::f32), half({2, 8}, DType::bf16), wide({2, 9}, DType::f32);
  Sample index({2}, DType::i32), whole({2, 8}, DType::i32);
  expect_refused([&] { run(ops_->add, x, x, half); }, {"add", "b", "fp32", "bf16"});
  expect_refused([&] { run(ops_->add, whole, whole, whole); }, {"add", "int32"});
  expect_refused([&] { ops_->add({}, x, x, x); }, {"add", "CUDA device", "CPU"});
  expect_refused([&] { run(ops_->silu_mul, wide, x, x); }, {"silu_mul", "out", "[2, 9]"});
  expect_refused([&] { run(ops_->gather_rows, wide, index, x); }, {"gather_rows", "[2, 9]"});
  Sample odd({2, 1, 7}, DType::f32), heads({2, 1, 8}, DType::f32), cos({3, 3}, DType::f32);
  expect_refused([&] { run(ops_->rope, odd, odd, cos, cos, index); }, {"even head_dim", "7"});
  expect_refused([&] { run(ops_->rope, heads, heads, cos, cos, index); }, {"cos", "[3, 4]"});
}

}  // namespace
}  // namespace lockstep
