#include "kernels/matmul_rows.cuh"

namespace lockstep {
namespace {

constexpr int kWarps = 8;  // of a block

template <typename T>
struct RowsArguments {
  T* out;
  const T* x;
  const T* weight;
  const T* bias;  // or null
  int64_t tokens, n, k;
};

// kParts warps share kWeights rows of weights, so that few rows keep a whole device reading; a
// block takes kWarps / kParts such bundles, and kTokens tokens.
template <typename T, int kTokens, int kWeights, int kVector, int kParts>
__global__ void __launch_bounds__(kWarps* kWarp) multiply(RowsArguments<T> a) {
  after_the_kernel_before();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, part = warp % kParts;
  const int64_t bundle = static_cast<int64_t>(blockIdx.x) * (kWarps / kParts) + warp / kParts;
  const int64_t row = bundle * kWeights, token = static_cast<int64_t>(blockIdx.y) * kTokens;
  float sums[kWeights][kTokens] = {};
  if (row < a.n) {
    const T *x[kTokens], *weight[kWeights];
#pragma unroll
    for (int t = 0; t < kTokens; ++t)  // those that there are not repeat the last one
      x[t] = a.x + min(token + t, a.tokens - 1) * a.k;
#pragma unroll
    for (int r = 0; r < kWeights; ++r) weight[r] = a.weight + min(row + r, a.n - 1) * a.k;
    dot_rows<T, kWeights, kTokens, kVector>(sums, weight, x, a.k,
                                            static_cast<int64_t>(part * kWarp + lane) * kVector,
                                            int64_t{kParts} * kWarp * kVector);
  }
  constexpr int kSums = kWeights * kTokens;
  static_assert(kSums <= kWarp);
  __shared__ float parts[kWarps][kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const float sum = warp_sum(sums[i / kTokens][i % kTokens]);
    if (lane == 0) parts[warp][i] = sum;
  }
  __syncthreads();
  const int64_t to_row = row + lane / kTokens, to_token = token + lane % kTokens;
  if (part != 0 || lane >= kSums || to_row >= a.n || to_token >= a.tokens) return;
  float sum = parts[warp][lane];
  for (int p = 1; p < kParts; ++p) sum += parts[warp + p][lane];
  if (a.bias != nullptr) sum += widen(a.bias[to_row]);
  a.out[to_token * a.n + to_row] = narrow<T>(sum);
}

template <typename T, int kTokens, int kWeights, int kVector, int kParts>
void launch(const OpContext& context, const RowsArguments<T>& a) {
  constexpr int64_t kRows = kWarps / kParts * kWeights;
  const dim3 blocks(static_cast<unsigned>((a.n + kRows - 1) / kRows),
                    static_cast<unsigned>((a.tokens + kTokens - 1) / kTokens));
  launch_early("matmul", context.stream, blocks, kWarps * kWarp,
               multiply<T, kTokens, kWeights, kVector, kParts>, a);
}

// How many warps share rows: until there are enough of them to keep a large device reading, as long
// as each finds something to read. By n and k alone, so that a row's bits do not depend on the
// tokens.
template <typename T, int kTokens, int kWeights, int kVector>
void launch_parts(const OpContext& context, const RowsArguments<T>& a) {
  constexpr int64_t kEnough = 2048;
  const auto enough = [&](int64_t parts) {
    return a.n * parts >= kEnough || a.k < 2 * parts * kWarp * kVector;
  };
  if (enough(1))
    launch<T, kTokens, kWeights, kVector, 1>(context, a);
  else if (enough(2))
    launch<T, kTokens, kWeights, kVector, 2>(context, a);
  else
    launch<T, kTokens, kWeights, kVector, 4>(context, a);
}

// With several tokens, two rows of weights share what is read of x, which would bound them.
template <typename T, int kVector>
void launch_tokens(const OpContext& context, const RowsArguments<T>& a) {
  if (a.tokens == 1)
    launch_parts<T, 1, 1, kVector>(context, a);
  else
    launch_parts<T, 4, 2, kVector>(context, a);
}

}  // namespace

void matmul_rows_cuda(const OpContext& context, const TensorView& out, const TensorView& x,
                      const TensorView& weight, const TensorView& bias) {
  const int64_t k = x.shape[1];
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    const RowsArguments<T> a = {out.as<T>(),
                                x.as<const T>(),
                                weight.as<const T>(),
                                bias.as<const T>(),
                                x.rows(),
                                weight.rows(),
                                k};
    if (aligned_16(k * size_of(x.dtype), x.data, weight.data))
      launch_tokens<T, Vector<T>::kSize>(context, a);
    else
      launch_tokens<T, 1>(context, a);
  });
}

}  // namespace lockstep
