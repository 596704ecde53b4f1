// Products of up to eight tokens, whose time is that of reading the weights. A block takes eight
// rows of weights and its warps take turns of 32 columns, which the tensor cores multiply with the
// eight tokens: each weight is read by one lane, from memory to its registers. A product of tensor
// cores sums over 16 columns in any order, so that a lane reads 16 bytes as they lie and calls them
// the columns that mma.sync wants it to have. The warps' sums are added last, in the order of the
// warps.
#include <algorithm>

#include "kernels/cuda/matmul_eight.cuh"
#include "kernels/cuda/matmul_rows.cuh"
#include "kernels/cuda/silu_mul.cuh"
#include "kernels/cuda/tensor_cores.cuh"

namespace lockstep {
namespace {

constexpr int kWarps = 8;     // of a block
constexpr int kRows = 8;      // of weights, of a block
constexpr int kTokens = 8;    // at most
constexpr int kColumns = 32;  // of a turn

template <typename T>
struct EightArguments {
  struct Matrix {
    T* out = nullptr;  // null: not wanted
    const T* weight = nullptr;
    const T* bias = nullptr;  // or null
    int64_t n = 0;
    int64_t blocks = 0;
  };
  Matrix all[kMostTogether];  // unused entries have no blocks
  const T* x;
  T* out;  // of the products' silu_mul
  int64_t tokens, k;
};

// The rows of weights that a block multiplies: of one matrix, or the same ones of gate and up.
template <typename T, bool kGateUp>
struct BlockRows {
  static constexpr int kMatrices = kGateUp ? 2 : 1;
  using Matrix = typename EightArguments<T>::Matrix;
  Matrix matrix[kMatrices];
  int64_t first;

  __device__ explicit BlockRows(const EightArguments<T>& a) {
    int64_t block = blockIdx.x;
    matrix[0] = a.all[0];
    if constexpr (kGateUp) {
      matrix[1] = a.all[1];
    } else {
#pragma unroll
      for (int m = 1; m < kMostTogether; ++m)
        if (block >= matrix[0].blocks && a.all[m].blocks > 0)
          block -= matrix[0].blocks, matrix[0] = a.all[m];
    }
    first = block * kRows;
  }
  // A row beyond the last repeats the last one.
  __device__ const T* row(int m, int row, int64_t k) const {
    return matrix[m].weight + min(first + row, matrix[m].n - 1) * k;
  }
  // Rounds an element, and stores it where it is wanted.
  __device__ T finish(int m, float sum, int64_t token, int row) const {
    const int64_t to = first + row;
    if (matrix[m].bias != nullptr) sum = __fadd_rn(sum, widen(matrix[m].bias[to]));
    const T rounded = narrow<T>(sum);
    if (matrix[m].out != nullptr) matrix[m].out[token * matrix[m].n + to] = rounded;
    return rounded;
  }
};

// The sums of a warp: of two products each, so that their chains are half as long.
template <typename T>
__device__ void add_turn(float (&sums)[2][4], const uint4& weights, const uint4& x) {
  mma_m16n8k16<T>(sums[0], {x.x, 0, x.y, 0}, {weights.x, weights.y});
  mma_m16n8k16<T>(sums[1], {x.z, 0, x.w, 0}, {weights.z, weights.w});
}

// kAhead: turns of a warp whose weights are under way at once.
template <typename T, int kAhead, bool kGateUp>
__global__ void __launch_bounds__(kWarps* kWarp) multiply_eight(EightArguments<T> a) {
  constexpr int kMatrices = kGateUp ? 2 : 1;
  pdl_launch_dependents();
  const BlockRows<T, kGateUp> rows(a);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // A lane has a row of weights, a token, and the eight columns of them.
  const int mine = lane / 4;
  const int64_t turns = a.k / kColumns;
  const T* weights[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) weights[m] = rows.row(m, mine, a.k) + lane % 4 * 8;
  uint4 held[kAhead][kMatrices];
  const auto read = [&](int64_t turn) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
#pragma unroll
      for (int m = 0; m < kMatrices; ++m)
        if (turn + i * kWarps < turns)
          held[i][m] = *reinterpret_cast<const uint4*>(weights[m] + (turn + i * kWarps) * kColumns);
  };
  // The kernel before never writes weights, so that they are loaded while it still runs.
  read(warp);
  pdl_wait();
  const T* x = a.x + min(int64_t{mine}, a.tokens - 1) * a.k + lane % 4 * 8;
  float sums[kMatrices][2][4] = {};
  for (int64_t turn = warp; turn < turns; turn += kAhead * kWarps) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (turn + i * kWarps >= turns) continue;
      const uint4 of_token = *reinterpret_cast<const uint4*>(x + (turn + i * kWarps) * kColumns);
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) add_turn<T>(sums[m], held[i][m], of_token);
    }
    read(turn + kAhead * kWarps);
  }
  __shared__ float parts[kMatrices][kWarps][kTokens][kRows];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      parts[m][warp][mine][lane % 4 * 2 + i] = __fadd_rn(sums[m][0][i], sums[m][1][i]);
  __syncthreads();
  const int token = threadIdx.x / kRows, row = threadIdx.x % kRows;
  if (token >= a.tokens || rows.first + row >= rows.matrix[0].n) return;
  T products[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    float sum = parts[m][0][token][row];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum = __fadd_rn(sum, parts[m][w][token][row]);
    products[m] = rows.finish(m, sum, token, row);
  }
  if constexpr (kGateUp)
    a.out[token * rows.matrix[0].n + rows.first + row] =
        narrow<T>(SiluMul()(widen(products[0]), widen(products[1])));
}

template <typename T, bool kGateUp>
void launch(const OpContext& context, std::span<const Linear> all, const TensorView& x,
            const TensorView& out) {
  EightArguments<T> a = {
      .x = x.as<const T>(), .out = out.as<T>(), .tokens = x.rows(), .k = x.shape[1]};
  int64_t blocks = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t n = all[i].weight.codes.rows();
    a.all[i] = {all[i].out.as<T>(), all[i].weight.codes.as<const T>(), all[i].bias.as<const T>(), n,
                (n + kRows - 1) / kRows};
    blocks = kGateUp ? a.all[i].blocks : blocks + a.all[i].blocks;
  }
  if (blocks == 0) return;
  const auto launched = [&]<int kAhead>() {
    launch_pdl("matmul", context.stream, dim3(blocks), kWarps * kWarp,
               multiply_eight<T, kAhead, kGateUp>, a);
  };
  const int64_t turns = (a.k / kColumns + kWarps - 1) / kWarps;  // of a warp
  if (turns <= 4)
    launched.template operator()<4>();
  else if (turns <= 8 || kGateUp)
    launched.template operator()<8>();
  else
    launched.template operator()<12>();
}

template <bool kGateUp>
void launch_of_dtype(const OpContext& context, std::span<const Linear> all, const TensorView& x,
                     const TensorView& out) {
  if (x.dtype == DType::f16)
    launch<__half, kGateUp>(context, all, x, out);
  else
    launch<__nv_bfloat16, kGateUp>(context, all, x, out);
}

}  // namespace

bool matmul_fits_eight(std::span<const Linear> all, const TensorView& x) {
  constexpr int64_t kFewest = 2;  // one is quicker with a warp a row
  if (all.empty() || all.size() > kMostTogether || x.dtype == DType::f32 || x.rows() < kFewest ||
      x.rows() > kTokens || x.shape[1] % kColumns != 0)
    return false;
  return std::ranges::all_of(all, [&](const Linear& one) {
    return aligned_16(16, static_cast<const char*>(x.data),
                      static_cast<const char*>(one.weight.codes.data));
  });
}

void matmul_eight_cuda(const OpContext& context, std::span<const Linear> all, const TensorView& x) {
  launch_of_dtype<false>(context, all, x, {});
}

void gate_up_silu_eight_cuda(const OpContext& context, const TensorView& out, const Linear& gate,
                             const Linear& up, const TensorView& x) {
  const Linear both[] = {gate, up};
  launch_of_dtype<true>(context, both, x, out);
}

}  // namespace lockstep
