#include "kernels/rms_norm.h"

#include "kernels/base/thread_pool.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

void expect_norm(const Shape& shape, DType dtype, double spread, float eps) {
  SCOPED_TRACE(fmt::format("{} {} spread {}", shape.text(), name_of(dtype), spread));
  Sample x(shape, dtype, 1), weight({shape.last()}, dtype, 3), out(shape, dtype, 5);
  x.fill_normal(1, spread);
  weight.fill_normal(2, 1, 1);
  rms_norm({}, out, x, weight, eps);
  const std::vector<double> in = x.values(), w = weight.values();
  std::vector<double> want, arithmetic;
  const auto width = static_cast<size_t>(shape.last());
  for (size_t row = 0; row < in.size(); row += width) {
    double sum = 0;
    for (size_t i = 0; i < width; ++i) sum += in[row + i] * in[row + i];
    const double scale = 1 / std::sqrt(sum / static_cast<double>(width) + static_cast<double>(eps));
    for (size_t i = 0; i < width; ++i) {
      want.push_back(in[row + i] * scale * w[i]);
      // Half of the relative error of the sum, then mean, eps, root, division and two products.
      arithmetic.push_back((static_cast<double>(width) / 8 + 12) * kUnit * std::fabs(want.back()));
    }
  }
  expect_rounded(out, want, arithmetic);
}

TEST(RmsNorm, RoundsOnceOverTheLastAxis) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const int64_t width : {1, 5, 16, 24, 64, 100, 896}) {
        for (const int64_t rows : {1, 2, 7, 33}) expect_norm({rows, width}, dtype, 1, 1e-6f);
        expect_norm({3, 4, width}, dtype, 1, 1e-6f);
      }
      expect_norm({4, 128}, dtype, 1e-3, 1e-6f);  // eps is as large as the mean
      expect_norm({4, 128}, dtype, 1000, 1e-5f);
    }
  });
}

TEST(RmsNorm, OfZerosIsZero) {
  Sample x({1, 8}, DType::bf16), weight({8}, DType::bf16), out({1, 8}, DType::bf16);
  x.fill(std::vector<double>(8, 0));
  weight.fill(std::vector<double>(8, 2));
  rms_norm({}, out, x, weight, 1e-6f);
  for (const double value : out.values()) EXPECT_EQ(value, 0);
}

TEST(RmsNorm, ARowDependsOnItselfAlone) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      const int64_t width = 1030, rows = 200;
      Sample x({rows, width}, dtype), weight({width}, dtype), all({rows, width}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2);
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        rms_norm({.threads = &pool}, all, x, weight, 1e-6f);
        for (const int64_t row : {0, 77, 199}) {
          Sample one({1, width}, dtype);
          rms_norm({}, one, x.view().slice(row, 1), weight, 1e-6f);
          const size_t bytes = one.bits().size();
          EXPECT_EQ(one.bits(), all.bits().substr(static_cast<size_t>(row) * bytes, bytes));
        }
      }
    }
  });
}

TEST(RmsNorm, WorksInPlace) {
  Sample x({5, 70}, DType::bf16), weight({70}, DType::bf16), out({5, 70}, DType::bf16);
  x.fill_normal(1);
  weight.fill_normal(2);
  rms_norm({}, out, x, weight, 1e-6f);
  rms_norm({}, x, x, weight, 1e-6f);
  EXPECT_EQ(x.bits(), out.bits());
}

TEST(RmsNorm, ANanMakesItsRowNan) {
  Sample x({3, 20}, DType::f32), weight({20}, DType::f32), out({3, 20}, DType::f32);
  x.fill_normal(1);
  weight.fill_normal(2);
  x.set(39, NAN);
  rms_norm({}, out, x, weight, 1e-6f);
  const std::vector<double> got = out.values();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 20 == 1) << i;
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  Sample x({2, 8}, DType::f32), weight({8}, DType::f32), out({2, 8}, DType::f32);
  Sample narrow({7}, DType::f32), half({8}, DType::f16), empty({2, 0}, DType::f32);
  expect_refused([&] { rms_norm({}, out, x, narrow, 0); }, {"weight", "[8]", "[7]"});
  expect_refused([&] { rms_norm({}, out, x, half, 0); }, {"weight", "fp32", "fp16"});
  expect_refused([&] { rms_norm({}, weight, x, weight, 0); }, {"out", "[2, 8]"});
  expect_refused([&] { rms_norm({}, empty, empty, weight, 0); }, {"[2, 0]"});
  TensorView far = x, far_out = out, far_weight = weight;
  far.device = far_out.device = far_weight.device = Device::cuda;
  expect_refused([&] { rms_norm({}, out, far, weight, 0); }, {"CPU", "CUDA device"});
  expect_refused([&] { rms_norm({}, far_out, far, far_weight, 0); }, {"CPU", "CUDA device"});
}

}  // namespace
}  // namespace lockstep
