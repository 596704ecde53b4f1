#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

using CudaRmsNorm = CudaTest;

TEST_F(CudaRmsNorm, RoundsOnceOverTheLastAxis) {
  for (const DType dtype : kFloats) {
    for (const int64_t width : {1, 5, 64, 100, 128, 896, 5000}) {
      const int64_t rows = 7;
      Sample x({rows, width}, dtype), weight({width}, dtype), out({rows, width}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2, 1, 1);
      run(ops_->rms_norm, out, x, weight, 1e-6f);
      const std::vector<double> in = x.values(), w = weight.values();
      std::vector<double> want, arithmetic;
      for (size_t row = 0; row < 7; ++row) {
        const auto n = static_cast<size_t>(width);
        double sum = 0;
        for (size_t i = 0; i < n; ++i) sum += in[row * n + i] * in[row * n + i];
        const double scale = 1 / std::sqrt(sum / static_cast<double>(width) + 1e-6f);
        for (size_t i = 0; i < n; ++i) {
          want.push_back(in[row * n + i] * scale * w[i]);
          // Each of 256 threads sums its part of the row, then 5 + 8 steps join them.
          arithmetic.push_back((static_cast<double>(width) / 512 + 20) * kUnit *
                               std::fabs(want.back()));
        }
      }
      expect_rounded(out, want, arithmetic);
    }
  }
}

TEST_F(CudaRmsNorm, ARowDependsOnItselfAlone) {
  Sample x({300, 200}, DType::bf16), weight({200}, DType::bf16), all({300, 200}, DType::bf16);
  Sample one({1, 200}, DType::bf16);
  x.fill_normal(1);
  weight.fill_normal(2);
  run(ops_->rms_norm, all, x, weight, 1e-6f);
  run(ops_->rms_norm, one, x.view().slice(123, 1), weight, 1e-6f);
  EXPECT_EQ(one.bits(), all.bits().substr(123 * 400, 400));
}

TEST_F(CudaRmsNorm, RefusesTensorsOfTheCpu) {
  const Sample x({2, 8}, DType::f32), weight({8}, DType::f32);
  expect_refused([&] { ops_->rms_norm({}, x, x, weight, 0); }, {"CUDA device", "CPU"});
}

}  // namespace
}  // namespace lockstep
