#include "kernels/base/memory.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/matmul_rows.cuh"
#include "kernels/experts.h"

namespace lockstep {
namespace {

constexpr int kMostExperts = 480;  // whose addresses a launch takes along in its 4 KiB
constexpr int kWarps = 8;          // of a block of multiply
constexpr int kRows = 4;           // of x that read a row of weights together

// The rows of out, those of one expert together: rows [start[e], start[e + 1]) of `order` are
// those of expert e, and at e = experts come those that name none.
struct Sorted {
  int32_t* order;
  int32_t* start;
};

// By one block, with room for a counter an expert.
__global__ void sort_by_expert(Sorted to, const int32_t* index, int64_t rows, int experts,
                               BadIndex* bad) {
  __shared__ int next[kMostExperts + 1];
  for (int e = threadIdx.x; e <= experts; e += blockDim.x) next[e] = 0;
  __syncthreads();
  const auto expert_of = [&](int64_t row) {
    return index[row] >= 0 && index[row] < experts ? index[row] : experts;
  };
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    if (expert_of(row) == experts) report(bad, BadIndex::Of::used_expert, experts, index[row], row);
    atomicAdd(&next[expert_of(row)], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int e = 0; e <= experts; ++e) {
      const int count = next[e];
      to.start[e] = next[e] = sum;
      sum += count;
    }
    to.start[experts + 1] = sum;
  }
  __syncthreads();
  // In no certain order within an expert: no row's result depends on the others.
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x)
    to.order[atomicAdd(&next[expert_of(row)], 1)] = row;
}

template <typename T>
struct ExpertArguments {
  T* out;
  const T* x;
  Sorted sorted;
  int64_t n, k;
  int64_t shared;  // rows of out that read the same row of x
  int experts;
  const T* weights[kMostExperts];
};

// A warp a row of an expert's weights, for all rows of x that chose it; blockIdx.y is the expert.
template <typename T, int kVector>
__global__ void __launch_bounds__(kWarps* kWarp)
    multiply(const __grid_constant__ ExpertArguments<T> a) {
  const int lane = threadIdx.x % kWarp, expert = blockIdx.y;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= a.n) return;
  const int end = a.sorted.start[expert + 1];
  for (int first = a.sorted.start[expert]; first < end; first += kRows) {
    int64_t to[kRows];
    const T* x[kRows];
    for (int t = 0; t < kRows; ++t) {  // those that there are not repeat the last one
      to[t] = a.sorted.order[min(first + t, end - 1)];
      x[t] = a.x + to[t] / a.shared * a.k;
    }
    float sums[1][kRows] = {};
    if (expert < a.experts)
      WeightRows<T, 1, kVector, 4>({a.weights[expert] + row * a.k}, a.k).multiply(sums, x);
    for (int t = 0; t < kRows; ++t) {
      const float sum = expert < a.experts ? warp_sum(sums[0][t]) : NAN;
      if (lane == 0 && first + t < end) a.out[to[t] * a.n + row] = narrow<T>(sum);
    }
  }
}

// A thread an element.
template <typename T>
__global__ void weigh(T* out, const T* x, const T* weights, int64_t elements, int64_t k,
                      int64_t width) {
  const int64_t stride = item_stride();
  for (int64_t i = first_item(); i < elements; i += stride) {
    const int64_t token = i / width;
    float sum = 0;
    for (int64_t c = token * k; c < (token + 1) * k; ++c)
      sum = fmaf(widen(weights[c]), widen(x[c * width + i % width]), sum);
    out[i] = narrow<T>(sum);
  }
}

}  // namespace

void expert_matmul_cuda(const OpContext& context, TensorView out, TensorView x, TensorView index,
                        const std::vector<TensorView>& weights) {
  check_expert_matmul(out, x, index, weights, DeviceKind::cuda);
  const int experts = weights.size();
  check(experts <= kMostExperts,
        "expert_matmul on the CUDA device wants at most {} experts, found {}: use --device cpu",
        kMostExperts, experts);
  const int64_t rows = index.count(), n = out.shape[2], k = weights[0].shape[1];
  check(rows <= INT32_MAX,
        "expert_matmul on the CUDA device wants at most {} choices, found {}: use a smaller batch",
        INT32_MAX, rows);
  if (out.count() == 0) return;
  const Tensor order({rows}, DType::i32, out.device);
  const Tensor start({experts + 2}, DType::i32, out.device);
  const Sorted sorted = {order.as<int32_t>(), start.as<int32_t>()};
  sort_by_expert<<<1, 1024, 0, context.stream>>>(sorted, index.as<const int32_t>(), rows, experts,
                                                 bad_index_report());
  cuda_check(cudaGetLastError(), "the launch of expert_matmul's sort");
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    ExpertArguments<T> a = {
        out.as<T>(), x.as<const T>(), sorted, n, k, x.shape.rank() == 2 ? index.shape[1] : 1,
        experts};
    bool wide = aligned_16(k * size_of(x.dtype), x.data);
    for (int e = 0; e < experts; ++e) {
      a.weights[e] = weights[e].as<const T>();
      wide = wide && aligned_16(0, a.weights[e]);
    }
    const dim3 blocks((n + kWarps - 1) / kWarps, experts + 1);
    const auto kernel = wide ? multiply<T, Vector<T>::kSize> : multiply<T, 1>;
    kernel<<<blocks, kWarps * kWarp, 0, context.stream>>>(a);
  });
  cuda_check(cudaGetLastError(), "the launch of expert_matmul");
}

void weighted_sum_cuda(const OpContext& context, TensorView out, TensorView x, TensorView weights) {
  constexpr int kThreads = 256;
  check_weighted_sum(out, x, weights, DeviceKind::cuda);
  if (out.count() == 0) return;
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    weigh<T><<<blocks_for(out.count(), kThreads), kThreads, 0, context.stream>>>(
        out.as<T>(), x.as<const T>(), weights.as<const T>(), out.count(), x.shape[1], x.shape[2]);
  });
  cuda_check(cudaGetLastError(), "the launch of weighted_sum");
}

}  // namespace lockstep
