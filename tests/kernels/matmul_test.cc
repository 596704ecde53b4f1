#include "kernels/matmul.h"

#include "kernels/base/thread_pool.h"
#include "kernels/cpu/matmul_onednn.h"
#include "kernels/cpu/matmul_rows.h"
#include "tests/kernels/expected.h"

namespace lockstep {
namespace {

struct Size {
  int64_t tokens, n, k;
};

void expect_product(Size size, DType dtype, bool with_bias, ThreadPool* threads) {
  SCOPED_TRACE(fmt::format("{} tokens, n {}, k {}, {}, bias {}", size.tokens, size.n, size.k,
                           name_of(dtype), with_bias));
  const double spread = 1 / std::sqrt(static_cast<double>(size.k));
  Sample x({size.tokens, size.k}, dtype), out({size.tokens, size.n}, dtype, 3);
  // Weights of a mapped file may begin at an odd element, as here.
  Sample weight({size.n, size.k}, dtype, 1), bias({size.n}, dtype, 5);
  x.fill_normal(1);
  weight.fill_normal(2, spread);
  bias.fill_normal(3, 1);
  matmul({.threads = threads}, out, x, weight, with_bias ? bias.view() : TensorView{});
  const Expected want = product(x, weight, with_bias ? &bias : nullptr);
  expect_rounded(out, want.values, want.arithmetic);
}

TEST(Matmul, RoundsOnceWhateverTheSizes) {
  ThreadPool threads(2);
  on_every_isa([&] {
    for (const DType dtype : kFloats)
      for (const int64_t tokens : {1, 2, 3, 7, 8, 9, 33})
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {5, 7}, {17, 64}, {130, 37}})
          for (const bool bias : {false, true})
            expect_product({tokens, n, k}, dtype, bias, n == 130 ? &threads : nullptr);
  });
}

TEST(Matmul, RoundsOnceOverALongSum) {
  ThreadPool threads(2);
  for (const DType dtype : kFloats)
    for (const int64_t tokens : {1, 5, 70})
      expect_product({tokens, 257, 3000}, dtype, true, &threads);
}

// Sums of exact small integers: a path that rounds before the bias, or accumulates in 16 bits,
// misses 256 + 1 + ... by whole numbers.
TEST(Matmul, NeitherAccumulatesNorAddsTheBiasIn16Bits) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int64_t tokens : {1, 4, 40}) {
      const int64_t n = 64, k = 4096;
      Sample x({tokens, k}, dtype), weight({n, k}, dtype), bias({n}, dtype),
          out({tokens, n}, dtype);
      x.fill(std::vector<double>(static_cast<size_t>(tokens * k), 1));
      weight.fill(std::vector<double>(static_cast<size_t>(n * k), 1));
      // 4096 - 4095 = 1 after the sum, in 16 bits: -4096 is the nearest that bf16 has to -4095.
      const double b = dtype == DType::f16 ? -4094 : -4080;
      bias.fill(std::vector<double>(n, b));
      weight.set(0, 2);  // column 0 sums to 4097, which neither dtype has
      matmul({}, out, x, weight, bias);
      const std::vector<double> got = out.values();
      for (int64_t t = 0; t < tokens; ++t) {
        EXPECT_EQ(got[static_cast<size_t>(t * n)], 4097 + b) << name_of(dtype) << " " << tokens;
        EXPECT_EQ(got[static_cast<size_t>(t * n + 1)], 4096 + b) << name_of(dtype) << " " << tokens;
      }
    }
  }
}

TEST(Matmul, BothPathsGiveTheSameProduct) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (!onednn_has(dtype)) continue;
    Sample x({20, 100}, dtype), weight({70, 100}, dtype), a({20, 70}, dtype), b({20, 70}, dtype);
    x.fill_normal(1);
    weight.fill_normal(2, 0.1);
    matmul_rows({}, a, x, weight, {});
    matmul_onednn({}, b, x, weight, {});
    const Expected want = product(x, weight, nullptr);
    expect_rounded(a, want.values, want.arithmetic);
    expect_rounded(b, want.values, want.arithmetic);
  }
}

TEST(Matmul, RowsOfTheOwnLoopsDependOnThemselvesAlone) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      const int64_t tokens = 71, n = 45, k = 83;
      Sample x({tokens, k}, dtype), weight({n, k}, dtype, 1), bias({n}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2, 0.1);
      bias.fill_normal(3);
      Sample all({tokens, n}, dtype);
      matmul_rows({}, all, x, weight, bias);
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const int64_t t : {0, 3, 64, 70}) {
          Sample one({1, n}, dtype);
          matmul_rows({.threads = &pool}, one, x.view().slice(t, 1), weight, bias);
          const size_t bytes = one.bits().size();
          EXPECT_EQ(one.bits(), all.bits().substr(static_cast<size_t>(t) * bytes, bytes)) << t;
        }
      }
    }
  });
}

TEST(Matmul, ThreadsDoNotChangeABit) {
  for (const DType dtype : kFloats) {
    for (const int64_t tokens : {2, 40}) {
      Sample x({tokens, 300}, dtype), weight({500, 300}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2, 0.1);
      Sample alone({tokens, 500}, dtype);
      matmul({}, alone, x, weight, {});
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        Sample out({tokens, 500}, dtype);
        matmul({.threads = &pool}, out, x, weight, {});
        EXPECT_EQ(out.bits(), alone.bits()) << name_of(dtype) << " on " << threads;
      }
    }
  }
}

TEST(Matmul, LetsANanThroughToItsOwnRowAndColumnOnly) {
  for (const DType dtype : kFloats) {
    for (const int64_t tokens : {4, 20}) {
      Sample x({tokens, 40}, dtype), weight({30, 40}, dtype), out({tokens, 30}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2);
      x.set(40 + 39, NAN);      // row 1
      weight.set(5 * 40, NAN);  // column 5
      matmul({}, out, x, weight, {});
      const std::vector<double> got = out.values();
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(std::isnan(got[i]), i / 30 == 1 || i % 30 == 5) << i;
    }
  }
}

TEST(Matmul, OverflowsToInfinity) {
  for (const int64_t tokens : {1, 20}) {
    Sample x({tokens, 8}, DType::f16), weight({3, 8}, DType::f16), out({tokens, 3}, DType::f16);
    x.fill(std::vector<double>(static_cast<size_t>(tokens * 8), 30000));
    weight.fill(std::vector<double>(24, 1));
    matmul({}, out, x, weight, {});
    for (const double value : out.values()) EXPECT_EQ(value, INFINITY);
  }
}

TEST(Matmul, OfNoTokensIsNothing) {
  Sample x({0, 8}, DType::f32), weight({3, 8}, DType::f32), out({0, 3}, DType::f32);
  matmul({}, out, x, weight, {});
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  Sample x({2, 8}, DType::f32), weight({3, 8}, DType::f32), out({2, 3}, DType::f32);
  Sample narrow({3, 7}, DType::f32), half({3, 8}, DType::bf16), bias({2}, DType::f32);
  Sample doubles({2, 8}, DType::i64);
  expect_refused([&] { matmul({}, out, x, narrow, {}); }, {"weight", "[3, 8]", "[3, 7]"});
  expect_refused([&] { matmul({}, out, x, half, {}); }, {"weight", "fp32", "bf16"});
  expect_refused([&] { matmul({}, x, x, weight, {}); }, {"out", "[2, 3]"});
  expect_refused([&] { matmul({}, out, x, weight, bias); }, {"bias", "[3]", "[2]"});
  expect_refused([&] { matmul({}, out, doubles, weight, {}); }, {"int64"});
  TensorView lost = weight;
  lost.data = nullptr;
  expect_refused([&] { matmul({}, out, x, lost, {}); }, {"weight", "memory"});
  lost.device = Device::cuda;
  expect_refused([&] { matmul({}, out, x, lost, {}); }, {"weight", "CUDA device"});
}

TEST(Matmul, SaysWhichCodeItTakes) {
  EXPECT_EQ(matmul_path(DType::f32), "oneDNN");
  EXPECT_EQ(matmul_path(DType::f16), "built-in (oneDNN has no fp16 products on CPUs)");
  EXPECT_EQ(matmul_path(DType::bf16) == "oneDNN", onednn_has(DType::bf16));
  EXPECT_THROW(matmul_path(DType::i32), Error);
}

// Codes that pass for numbers would give a wrong result without a word.
TEST(Matmul, RefusesAWeightWithScales) {
  Sample x({2, 8}, DType::f32), weight({3, 8}, DType::f32), scales({3}, DType::f32);
  Sample out({2, 3}, DType::f32);
  const WeightView scaled(weight.view(), scales.view());
  expect_refused([&] { matmul({}, out, x, scaled, {}); }, {"matmul", "[3, 8]", "scales"});
  WeightView mislabelled = scaled;
  mislabelled.kind = WeightView::Kind::plain;
  expect_refused([&] { matmul({}, out, x, mislabelled, {}); }, {"matmul", "scales"});
  matmul({}, out, x, weight, {});
}

}  // namespace
}  // namespace lockstep
