#include <cuda_runtime.h>

#include "kernels/cuda_ops.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

// Skips, by name and with the reason, where there is no device.
class CudaRmsNorm : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(status);
    ops_ = lockstep_cuda_ops(&memory_);
    set_cuda_memory(memory_);
  }
  void TearDown() override { set_cuda_memory({}); }

  // rms_norm on the device, of tensors that are copied there; `out` comes back.
  void run(const Sample& out, const TensorView& x, const Sample& weight, float eps) const {
    const Tensor far_out = upload(out), far_x = upload(x), far_weight = upload(weight);
    ops_->rms_norm({}, far_out, far_x, far_weight, eps);
    const auto bytes = static_cast<size_t>(out.view().bytes());
    ASSERT_EQ(cudaMemcpy(out.view().data, far_out.view().data, bytes, cudaMemcpyDeviceToHost),
              cudaSuccess);
  }

  static Tensor upload(const TensorView& from) {
    Tensor to(from.shape, from.dtype, Device::cuda);
    EXPECT_EQ(cudaMemcpy(to.view().data, from.data, static_cast<size_t>(from.bytes()),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    return to;
  }

  DeviceMemory memory_;
  const Ops* ops_ = nullptr;
};

TEST_F(CudaRmsNorm, RoundsOnceOverTheLastAxis) {
  for (const DType dtype : kFloats) {
    for (const int64_t width : {1, 5, 64, 100, 128, 896, 5000}) {
      const int64_t rows = 7;
      Sample x({rows, width}, dtype), weight({width}, dtype), out({rows, width}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2, 1, 1);
      run(out, x, weight, 1e-6f);
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
  run(all, x, weight, 1e-6f);
  run(one, x.view().slice(123, 1), weight, 1e-6f);
  EXPECT_EQ(one.bits(), all.bits().substr(123 * 400, 400));
}

TEST_F(CudaRmsNorm, RefusesTensorsOfTheCpu) {
  const Sample x({2, 8}, DType::f32), weight({8}, DType::f32);
  expect_refused([&] { ops_->rms_norm({}, x, x, weight, 0); }, {"CUDA device", "CPU"});
}

TEST_F(CudaRmsNorm, MoreMemoryThanTheDeviceHasIsASentence) {
  expect_refused([] { Tensor({int64_t{1} << 45}, DType::f32, Device::cuda); }, {"memory"});
  Sample x({2, 8}, DType::f32), weight({8}, DType::f32), out({2, 8}, DType::f32);
  x.fill_normal(1);
  weight.fill_normal(2);
  run(out, x, weight, 0);  // and the error is not left behind for the next call
}

}  // namespace
}  // namespace lockstep
