#include <algorithm>

#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

using CudaMemory = CudaTest;

TEST_F(CudaMemory, WhatIsReleasedIsHandedOutAgain) {
  const void* first = nullptr;
  {
    const Tensor tensor({12345}, DType::f32, cuda_device());
    first = tensor.view().data;
  }
  const int64_t before = memory_.available();
  const Tensor again({12345}, DType::f32, cuda_device());
  EXPECT_EQ(again.view().data, first);
  EXPECT_LT(memory_.available(), before);
  const Tensor other({12345}, DType::f32, cuda_device());
  EXPECT_NE(other.view().data, first);
}

// Large prompts follow each other like this, a token more or less.
TEST_F(CudaMemory, WhatIsReleasedIsHandedOutAgainToWhomItFits) {
  const void* first = nullptr;
  {
    const Tensor tensor({6144, 4096}, DType::bf16, cuda_device());
    first = tensor.view().data;
  }
  for (const int64_t rows : {6144, 6141, 5600})
    EXPECT_EQ(Tensor({rows, 4096}, DType::bf16, cuda_device()).view().data, first) << rows;
  for (const int64_t rows : {6145, 5000, 1})
    EXPECT_NE(Tensor({rows, 4096}, DType::bf16, cuda_device()).view().data, first) << rows;
}

// Weights and pools are of such sizes.
TEST_F(CudaMemory, RoundSizesTakeNoMoreThanTheyAre) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const int64_t before = memory_.available();
  std::vector<Tensor> weights;
  for (int64_t bytes = 0; bytes < kBytes; bytes += int64_t{4} * 8192 * 4096)
    weights.emplace_back(Shape{8192, 4096}, DType::f32, cuda_device());
  EXPECT_EQ(before - memory_.available(), kBytes);
}

TEST_F(CudaMemory, IsAlignedAndHoldsWhatIsCopiedThere) {
  // The last ones go by pinned memory, one piece, and several of which the last is no whole one.
  for (const int64_t bytes : {1, 511, 512, 513, 100000, 5000000, 50000001}) {
    const Tensor tensor({bytes}, DType::u8, cuda_device());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data) % 256, 0u);
    std::vector<char> out(static_cast<size_t>(bytes)), back(out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 31);
    std::vector<char> sent = out;
    memory_.copy(tensor.view().data, sent.data(), bytes, nullptr);
    std::ranges::fill(sent, 0);  // what is not pinned has been read by then
    memory_.copy(back.data(), tensor.view().data, bytes, nullptr);
    memory_.wait(nullptr);
    EXPECT_EQ(back, out);
  }
}

TEST_F(CudaMemory, MoreThanTheDeviceHasIsASentence) {
  expect_refused([] { Tensor({int64_t{1} << 45}, DType::f32, cuda_device()); },
                 {"140737488355328 bytes", "device has not that much", "but", "--pages"});
  // And the error is not left behind for the next call, nor is what had been kept.
  Sample x({2, 8}, DType::f32), out({2, 8}, DType::f32);
  x.fill_normal(1);
  run(ops_->add, out, x, x);
}

TEST_F(CudaMemory, KeptMemoryIsGivenUpWhenADifferentSizeIsWanted) {
  const int64_t most = memory_.available() / 10 * 8;
  { const Tensor large({most}, DType::u8, cuda_device()); }
  const Tensor larger({most / 16 * 17}, DType::u8, cuda_device());
  EXPECT_NE(larger.view().data, nullptr);
}

}  // namespace
}  // namespace lockstep
