// Products of few tokens, whose time is that of reading the weights. A warp takes a bundle of
// weight rows through up to kTokens tokens, and lanes take the elements of k in turns, 16 bytes
// each. Several matrices with the same x are one launch (q, k and v; gate and up), and a block may
// make x itself, by the arithmetic of add_rms_norm, while the first weights are on their way. The
// order of a sum depends on k and the width of a load alone.
#include "kernels/cuda/matmul_rows.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/silu_mul.cuh"

namespace lockstep {
namespace {

constexpr int kWarps = 8;  // of a block
// Rows are short of which a warp has all under way with this many vectors a lane.
constexpr int kShort = 4;
constexpr int64_t kShortBytes = int64_t{kShort} * kWarp * 16;
constexpr int kRowsWithNorm = 2;  // of a warp that makes its own x: fewer blocks, which all make it

template <typename T>
struct Matrix {
  T* out = nullptr;  // null: not wanted
  const T* weight = nullptr;
  const T* bias = nullptr;  // or null
  int64_t n = 0;
  int64_t bundles = 0;  // of rows, a warp each
};

// AddNormInput as the kernel takes it.
template <typename T>
struct AddNormPointers {
  T* sum = nullptr;  // null: x is there already
  const T* a = nullptr;
  const T* b = nullptr;
  const T* weight = nullptr;
  float eps = 0;
};

template <typename T>
struct RowsArguments {
  Matrix<T> all[kMostTogether];  // unused entries have n = 0
  T* x;
  AddNormPointers<T> input;
  T* out;  // of the products' silu_mul
  int64_t tokens, k;
};

// The rows that a warp multiplies. With kGateUp these are one row of each of two matrices.
template <typename T, int kWeights, bool kGateUp>
struct WarpRows {
  Matrix<T> matrix[kGateUp ? 2 : 1];
  int64_t row;

  __device__ explicit WarpRows(const RowsArguments<T>& a) {
    row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
    matrix[0] = a.all[0];
    if constexpr (kGateUp) {
      matrix[1] = a.all[1];
    } else {
#pragma unroll
      for (int m = 1; m < kMostTogether; ++m)
        if (row >= matrix[0].bundles && a.all[m].bundles > 0)
          row -= matrix[0].bundles, matrix[0] = a.all[m];
      row *= kWeights;
    }
  }
  __device__ bool exists() const { return row < matrix[0].n; }
  // A row beyond the last repeats the last one.
  __device__ const T* weight(int r, int64_t k) const {
    const int64_t last = matrix[0].n - 1;
    if constexpr (kGateUp) return matrix[r].weight + min(row, last) * k;
    return matrix[0].weight + min(row + r, last) * k;
  }
  // Rounds the sum of row r, and shows it where it is wanted.
  __device__ T finish(float sum, int r, int64_t token) const {
    const int64_t n = matrix[0].n, to = kGateUp ? row : row + r;
    if (to >= n) return {};
    T* out = matrix[0].out;
    if constexpr (kGateUp) {
      if (r == 1) out = matrix[1].out;
    } else if (matrix[0].bias != nullptr) {
      sum = __fadd_rn(sum, widen(matrix[0].bias[to]));
    }
    const T rounded = narrow<T>(sum);
    if (out != nullptr) out[token * n + to] = rounded;
    return rounded;
  }
};

// Blocks that a multiprocessor is to have room for: what is under way in it keeps memory busy. For
// three a thread that makes x has not registers enough, but where it is gated.
template <int kTokens, int kWeights, int kAhead, bool kGateUp, bool kComputesNorm>
constexpr int kRoom = kTokens == 1 && kWeights* kAhead <= 8 && (kGateUp || !kComputesNorm) ? 3 : 2;

// Makes x in the memory of the block, with the bits of add_rms_norm; the first block keeps it and
// the sum.
template <typename T, int kVector>
__device__ void compute_norm(const RowsArguments<T>& a, T* x) {
  static_assert(kWarps * kWarp == kNormThreads);
  using Some = Elements<T, kVector>;
  const bool keeps = blockIdx.x == 0;
  normalise_wide<T, kVector, false>(x, x, a.input.weight, a.k, a.input.eps, [&](int64_t i, T* to) {
    const Some sum = sum_of<T, kVector>(a.input.a + i, a.input.b + i);
    if (keeps) *reinterpret_cast<Some*>(a.input.sum + i) = sum;
    *reinterpret_cast<Some*>(x + i) = sum;
    *reinterpret_cast<Some*>(to) = sum;
  });
  __syncthreads();
  if (!keeps) return;
  for (int64_t i = int64_t{threadIdx.x} * kVector; i < a.k; i += int64_t{kNormThreads} * kVector)
    *reinterpret_cast<Some*>(a.x + i) = *reinterpret_cast<const Some*>(x + i);
}

// A warp a bundle of kWeights rows, for kTokens tokens.
template <typename T, int kTokens, int kWeights, int kVector, int kAhead, bool kGateUp,
          bool kComputesNorm>
__global__ void __launch_bounds__(kWarps* kWarp,
                                  kRoom<kTokens, kWeights, kAhead, kGateUp, kComputesNorm>)
    multiply(RowsArguments<T> a) {
  constexpr int kSums = kWeights * kTokens;
  static_assert(kSums <= kWarp && (!kGateUp || kWeights == 2) && (!kComputesNorm || kTokens == 1));
  pdl_launch_dependents();
  const WarpRows<T, kWeights, kGateUp> rows_of_warp(a);
  if (!kComputesNorm && !rows_of_warp.exists()) return pdl_wait();
  const T* rows[kWeights];
#pragma unroll
  for (int r = 0; r < kWeights; ++r) rows[r] = rows_of_warp.weight(r, a.k);
  // The kernel before never writes weights, so that they are loaded while it still runs.
  WeightRows<T, kWeights, kVector, kAhead> weights(rows, a.k);
  const int64_t first = int64_t{blockIdx.y} * kTokens;
  const T* x[kTokens];
  if constexpr (kComputesNorm) {
    __shared__ __align__(16) T own_x[kAhead * kWarp * kVector];
    compute_norm<T, kVector>(a, own_x);
    x[0] = own_x;
  } else {
    pdl_wait();
#pragma unroll
    for (int t = 0; t < kTokens; ++t)  // tokens beyond the last repeat the last one
      x[t] = a.x + min(first + t, a.tokens - 1) * a.k;
  }
  float sums[kWeights][kTokens];
  weights.multiply(sums, x);
  const int lane = threadIdx.x % kWarp;
  float mine = 0;  // sum `lane`
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const float sum = warp_sum(sums[i / kTokens][i % kTokens]);
    if (lane == i) mine = sum;
  }
  const int64_t token = first + lane % kTokens;
  T product{};
  if (lane < kSums && token < a.tokens) product = rows_of_warp.finish(mine, lane / kTokens, token);
  if constexpr (kGateUp) {
    const float up = __shfl_down_sync(~0u, widen(product), kTokens);
    if (lane < kTokens && token < a.tokens && rows_of_warp.exists())
      a.out[token * rows_of_warp.matrix[0].n + rows_of_warp.row] =
          narrow<T>(SiluMul()(widen(product), up));
  }
}

template <typename T, int kTokens, int kWeights, int kVector, int kAhead, bool kGateUp,
          bool kComputesNorm = false>
void launch(const OpContext& context, RowsArguments<T> a) {
  int64_t bundles = 0;
  for (Matrix<T>& matrix : a.all) {
    matrix.bundles = kGateUp ? matrix.n : (matrix.n + kWeights - 1) / kWeights;
    bundles = kGateUp ? a.all[0].n : bundles + matrix.bundles;
  }
  if (bundles == 0) return;
  const dim3 blocks((bundles + kWarps - 1) / kWarps, (a.tokens + kTokens - 1) / kTokens);
  launch_pdl("matmul", context.stream, blocks, kWarps * kWarp,
             multiply<T, kTokens, kWeights, kVector, kAhead, kGateUp, kComputesNorm>, a);
}

// Loads all of a row of one token at once where it is no longer than those of common models; k
// alone decides. With several tokens four vectors a lane are the quickest, measured on an H200.
template <typename T, int kTokens, int kWeights, bool kGateUp>
void launch_ahead(const OpContext& context, const RowsArguments<T>& a) {
  constexpr int kVector = Vector<T>::kSize;
  if constexpr (kTokens > 1) {
    launch<T, kTokens, kWeights, kVector, kShort, kGateUp>(context, a);
  } else {
    const int64_t vectors = (a.k + kWarp * kVector - 1) / (kWarp * kVector);  // a lane
    if (vectors <= kShort)
      launch<T, kTokens, kWeights, kVector, kShort, kGateUp>(context, a);
    else if (vectors <= 8)
      launch<T, kTokens, kWeights, kVector, 8, kGateUp>(context, a);
    else
      launch<T, kTokens, kWeights, kVector, 12, kGateUp>(context, a);
  }
}

// With several tokens, two rows of weights share what is read of x, which would bound them. Where
// that leaves multiprocessors of an H200 without a block, each row has a warp of its own.
template <typename T, bool kGateUp>
void launch_tokens(const OpContext& context, const RowsArguments<T>& a, bool wide) {
  constexpr int kOne = kGateUp ? 2 : 1;  // weights of a warp: a row of gate and one of up
  int64_t rows = 0;
  for (const Matrix<T>& matrix : a.all) rows += matrix.n;
  const bool few = !kGateUp && rows < int64_t{132} * kWarps * 2;
  if (!wide && a.tokens == 1)
    launch<T, 1, kOne, 1, 2, kGateUp>(context, a);
  else if (!wide)
    launch<T, 4, 2, 1, 2, kGateUp>(context, a);
  else if (a.tokens == 1)
    launch_ahead<T, 1, kOne, kGateUp>(context, a);
  else if (a.tokens == 2 && few)
    launch_ahead<T, 2, kOne, kGateUp>(context, a);
  else if (a.tokens == 2)
    launch_ahead<T, 2, 2, kGateUp>(context, a);
  else if (few)
    launch_ahead<T, 4, kOne, kGateUp>(context, a);
  else
    launch_ahead<T, 4, 2, kGateUp>(context, a);
}

bool aligned(const Linear& one, const TensorView& x) {
  return aligned_16(x.shape[1] * size_of(x.dtype), static_cast<const char*>(x.data),
                    static_cast<const char*>(one.weight.codes.data));
}

template <typename T>
RowsArguments<T> arguments_of(std::span<const Linear> all, const TensorView& x,
                              const AddNormInput* input) {
  RowsArguments<T> a = {.x = x.as<T>(), .tokens = x.rows(), .k = x.shape[1]};
  if (input != nullptr)
    a.input = {input->sum.as<T>(), input->a.as<const T>(), input->b.as<const T>(),
               input->weight.as<const T>(), input->eps};
  for (size_t i = 0; i < all.size(); ++i)
    a.all[i] = {all[i].out.as<T>(), all[i].weight.codes.as<const T>(), all[i].bias.as<const T>(),
                all[i].weight.codes.rows()};
  return a;
}

}  // namespace

bool together(std::span<const Linear> all, const TensorView& x) {
  return all.size() <= kMostTogether && x.rows() <= kFewTokens &&
         std::ranges::all_of(
             all, [&](const Linear& one) { return aligned(one, x) == aligned(all[0], x); });
}

bool matmul_computes_norm(std::span<const Linear> all, bool gate_up_silu, const TensorView& x,
                          const AddNormInput& input) {
  if (all.empty() || x.rows() != 1 || !together(all, x) || !aligned(all[0], x)) return false;
  const int64_t k = x.shape[1], bytes = k * size_of(x.dtype);
  if (k <= kNarrowRow || bytes > kShortBytes ||
      !aligned_16(bytes, input.sum.as<char>(), input.a.as<char>(), input.b.as<char>(),
                  input.weight.as<char>()))
    return false;
  // Measured on an H200: all of the blocks are to be at work at once, and the weights of few are
  // there before x is, whoever makes it.
  constexpr int64_t kMostGateUp = 3 * 132 * kWarps, kMost = 2 * 132 * kWarps * kRowsWithNorm;
  if (gate_up_silu) return all[0].weight.codes.rows() <= kMostGateUp;
  int64_t rows = 0;
  for (const Linear& one : all) rows += one.weight.codes.rows();
  return rows > kMost / 2 && rows <= kMost;
}

void matmul_rows_cuda(const OpContext& context, std::span<const Linear> all, const TensorView& x,
                      const AddNormInput* input) {
  const bool wide = aligned(all[0], x);
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    const auto a = arguments_of<T>(all, x, input);
    if (input != nullptr)
      launch<T, 1, kRowsWithNorm, Vector<T>::kSize, kShort, false, true>(context, a);
    else
      launch_tokens<T, false>(context, a, wide);
  });
}

void gate_up_silu_rows_cuda(const OpContext& context, const TensorView& out, const Linear& gate,
                            const Linear& up, const TensorView& x, const AddNormInput* input) {
  const Linear both[] = {gate, up};
  const bool wide = aligned(gate, x);
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    auto a = arguments_of<T>(both, x, input);
    a.out = out.as<T>();
    if (input != nullptr)
      launch<T, 1, 2, Vector<T>::kSize, kShort, true, true>(context, a);
    else
      launch_tokens<T, true>(context, a, wide);
  });
}

}  // namespace lockstep
