// Outputs hold NaN before each product, and one that is left unwritten fails. compute-sanitizer's
// initcheck cannot show that: it takes what the kernels of cuBLASLt write for unwritten. Of a
// product of 48 x 512 by that library it reports each of the 24576 elements that a kernel of ours
// then reads; of the same product by a kernel of ours, none.
#include "tests/kernels/cuda_samples.h"
#include "tests/kernels/expected.h"

namespace lockstep {
namespace {

class CudaMatmul : public CudaTest {
 protected:
  void expect_product(int64_t tokens, int64_t n, int64_t k, DType dtype, bool with_bias,
                      int64_t offset) const {
    SCOPED_TRACE(fmt::format("{} tokens, n {}, k {}, {}, bias {}, {} off", tokens, n, k,
                             name_of(dtype), with_bias, offset));
    Sample x({tokens, k}, dtype), out({tokens, n}, dtype, offset);
    Sample weight({n, k}, dtype, offset), bias({n}, dtype);
    x.fill_normal(1);
    weight.fill_normal(2, 1 / std::sqrt(static_cast<double>(k)));
    bias.fill_normal(3, 1);
    run(ops_->matmul, out, x, weight, with_bias ? bias.view() : TensorView{});
    const Expected want = product(x, weight, with_bias ? &bias : nullptr);
    expect_rounded(out, want.values, want.arithmetic);
  }
};

TEST_F(CudaMatmul, RoundsOnceWhateverTheSizes) {
  for (const DType dtype : kFloats)
    for (const int64_t tokens : {1, 2, 3, 7, 8, 9, 33, 130})
      for (const auto& [n, k] :
           {std::pair<int64_t, int64_t>{1, 1}, {5, 7}, {17, 64}, {130, 37}, {64, 256}})
        for (const bool bias : {false, true})
          for (const int64_t offset : {0, 1}) expect_product(tokens, n, k, dtype, bias, offset);
}

TEST_F(CudaMatmul, RoundsOnceOverALongSum) {
  for (const DType dtype : kFloats)
    for (const int64_t tokens : {1, 5, 70}) expect_product(tokens, 257, 3000, dtype, true, 0);
}

// Few rows of many elements each, and many rows: what is shared among warps, and what is not.
TEST_F(CudaMatmul, RoundsOnceHoweverARowIsShared) {
  for (const DType dtype : kFloats)
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3, 8192}, {1100, 1024}, {2100, 512}})
      for (const int64_t tokens : {1, 3, 4, 5, 7, 8}) expect_product(tokens, n, k, dtype, true, 0);
}

// Sums of exact small integers: a path that rounds before the bias, or accumulates in 16 bits,
// misses 256 + 1 + ... by whole numbers.
TEST_F(CudaMatmul, NeitherAccumulatesNorAddsTheBiasIn16Bits) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int64_t tokens : {1, 4, 8, 40, 300}) {
      const int64_t n = 64, k = 4096;
      Sample x({tokens, k}, dtype), weight({n, k}, dtype), bias({n}, dtype);
      Sample out({tokens, n}, dtype);
      x.fill(std::vector<double>(static_cast<size_t>(tokens * k), 1));
      weight.fill(std::vector<double>(static_cast<size_t>(n * k), 1));
      const double b = dtype == DType::f16 ? -4094 : -4080;
      bias.fill(std::vector<double>(n, b));
      weight.set(0, 2);  // column 0 sums to 4097, which neither dtype has
      run(ops_->matmul, out, x, weight, bias);
      const std::vector<double> got = out.values();
      for (int64_t t = 0; t < tokens; ++t) {
        ASSERT_EQ(got[static_cast<size_t>(t * n)], 4097 + b) << name_of(dtype) << " " << tokens;
        ASSERT_EQ(got[static_cast<size_t>(t * n + 1)], 4096 + b) << name_of(dtype) << " " << tokens;
      }
    }
  }
}

// 1 + 2^-12 squared less 1: its 2^-11 is there in fp32, but not where products are of TF32.
TEST_F(CudaMatmul, KeepsTheProductsOfFp32Whole) {
  for (const int64_t tokens : {1, 200}) {
    Sample x({tokens, 128}, DType::f32), weight({128, 128}, DType::f32);
    Sample out({tokens, 128}, DType::f32);
    x.fill(std::vector<double>(static_cast<size_t>(tokens * 128), 1 + 0x1p-12));
    weight.fill(std::vector<double>(128 * 128, 1 + 0x1p-12));
    run(ops_->matmul, out, x, weight, TensorView{});
    for (const double got : out.values())
      ASSERT_NEAR(got, 128 * (1 + 0x1p-11 + 0x1p-24), 128 * 64 * kUnit);
  }
}

TEST_F(CudaMatmul, HasTheSameBitsEveryTime) {
  for (const DType dtype : kFloats) {
    for (const int64_t tokens : {1, 8, 9, 64, 500}) {
      Sample x({tokens, 512}, dtype), weight({1024, 512}, dtype);
      Sample first({tokens, 1024}, dtype), again({tokens, 1024}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2, 0.1);
      run(ops_->matmul, first, x, weight, TensorView{});
      run(ops_->matmul, again, x, weight, TensorView{});
      EXPECT_EQ(first.bits(), again.bits()) << name_of(dtype) << " " << tokens;
    }
  }
}

TEST_F(CudaMatmul, RowsOfTheOwnKernelDependOnThemselvesAlone) {
  for (const DType dtype : kFloats) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{45, 83}, {45, 2008}, {45, 2048}}) {
      Sample x({4, k}, dtype), weight({n, k}, dtype), bias({n}, dtype), all({4, n}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2, 0.1);
      bias.fill_normal(3);
      run(ops_->matmul, all, x, weight, bias);
      // Of 16-bit numbers and rows of whole turns, several tokens go to tensor cores, and one does
      // not.
      const bool fits = dtype != DType::f32 && k % 32 == 0;
      for (const int64_t tokens :
           fits ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{1, 2, 3}) {
        Sample some({tokens, n}, dtype);
        run(ops_->matmul, some, x.view().slice(1, tokens), weight, bias);
        const size_t row = all.bits().size() / 4;
        EXPECT_EQ(some.bits(), all.bits().substr(row, some.bits().size())) << tokens;
      }
    }
  }
}

// So do those of two to eight tokens on tensor cores.
TEST_F(CudaMatmul, RowsOfEightDependOnThemselvesAlone) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{45, 96}, {45, 2048}, {9, 5024}}) {
      Sample x({8, k}, dtype), weight({n, k}, dtype), bias({n}, dtype), all({8, n}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2, 0.1);
      bias.fill_normal(3);
      run(ops_->matmul, all, x, weight, bias);
      for (const int64_t tokens : {2, 3, 5, 6, 7}) {
        Sample some({tokens, n}, dtype);
        run(ops_->matmul, some, x.view().slice(8 - tokens, tokens), weight, bias);
        const size_t row = all.bits().size() / 8;
        EXPECT_EQ(some.bits(), all.bits().substr(static_cast<size_t>(8 - tokens) * row)) << tokens;
      }
    }
  }
}

TEST_F(CudaMatmul, LetsANanThroughToItsOwnRowAndColumnOnly) {
  for (const DType dtype : kFloats) {
    for (const int64_t tokens : {4, 6, 8, 20, 200}) {
      constexpr int64_t k = 64;
      Sample x({tokens, k}, dtype), weight({30, k}, dtype), out({tokens, 30}, dtype);
      x.fill_normal(1);
      weight.fill_normal(2);
      x.set(k + k - 1, NAN);   // row 1
      weight.set(5 * k, NAN);  // column 5
      run(ops_->matmul, out, x, weight, TensorView{});
      const std::vector<double> got = out.values();
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(std::isnan(got[i]), i / 30 == 1 || i % 30 == 5) << i;
    }
  }
}

TEST_F(CudaMatmul, OverflowsToInfinity) {
  for (const int64_t tokens : {1, 20}) {
    Sample x({tokens, 8}, DType::f16), weight({8, 8}, DType::f16), out({tokens, 8}, DType::f16);
    x.fill(std::vector<double>(static_cast<size_t>(tokens * 8), 30000));
    weight.fill(std::vector<double>(64, 1));
    run(ops_->matmul, out, x, weight, TensorView{});
    for (const double value : out.values()) EXPECT_EQ(value, INFINITY);
  }
}

TEST_F(CudaMatmul, OfNothingIsNothing) {
  Sample x({0, 8}, DType::f32), weight({3, 8}, DType::f32), out({0, 3}, DType::f32);
  run(ops_->matmul, out, x, weight, TensorView{});
  Sample some({20, 8}, DType::f32), none({0, 8}, DType::f32), empty({20, 0}, DType::f32);
  run(ops_->matmul, empty, some, none, TensorView{});
}

TEST_F(CudaMatmul, RefusesWhatDoesNotFit) {
  Sample x({2, 8}, DType::f32), weight({3, 8}, DType::f32), out({2, 3}, DType::f32);
  Sample narrow({3, 7}, DType::f32), half({3, 8}, DType::bf16), bias({2}, DType::f32);
  const TensorView none;
  expect_refused([&] { run(ops_->matmul, out, x, narrow, none); }, {"weight", "[3, 8]", "[3, 7]"});
  expect_refused([&] { run(ops_->matmul, out, x, half, none); }, {"weight", "fp32", "bf16"});
  expect_refused([&] { run(ops_->matmul, x, x, weight, none); }, {"out", "[2, 3]"});
  expect_refused([&] { run(ops_->matmul, out, x, weight, bias); }, {"bias", "[3]", "[2]"});
  expect_refused([&] { ops_->matmul({}, out, x, weight, none); }, {"x", "CUDA device", "CPU"});
}

}  // namespace
}  // namespace lockstep
