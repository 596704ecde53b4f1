#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.cuh"
#include "kernels/routing.h"

namespace lockstep {
namespace {

// One warp a row: k times the first of the logits that come after the one taken last.
template <typename T>
__global__ void take_largest(int32_t* out, const T* logits, int64_t experts, int64_t k) {
  const int64_t row = blockIdx.x;
  Place last = {NAN, -1};  // which every logit comes after
  for (int64_t c = 0; c < k; ++c) {
    Place best = {-INFINITY, INT64_MAX};
    for (int64_t e = threadIdx.x; e < experts; e += kWarp) {
      const Place place = {widen(logits[row * experts + e]), e};
      if (before(last, place) && before(place, best)) best = place;
    }
    last = warp_first(best);
    if (threadIdx.x == 0) out[row * k + c] = last.index;
  }
}

// The sum, over the warp, of e^(x - largest) of the logits that `index` names, or of all.
template <typename T>
__device__ float sum_of_exponentials(const T* logits, int64_t experts, float largest,
                                     const int32_t* index, int64_t k) {
  float sum = 0;
  if (index == nullptr) {
    for (int64_t e = threadIdx.x; e < experts; e += kWarp) sum += expf(widen(logits[e]) - largest);
  } else {
    for (int64_t c = threadIdx.x; c < k; c += kWarp)
      if (index[c] >= 0 && index[c] < experts) sum += expf(widen(logits[index[c]]) - largest);
  }
  return warp_sum(sum);
}

// One warp a row.
template <typename T>
__global__ void weigh(T* out, const T* all_logits, const int32_t* all_index, int64_t experts,
                      int64_t k, bool normalised, BadIndex* bad) {
  const int64_t row = blockIdx.x;
  const T* logits = all_logits + row * experts;
  const int32_t* index = all_index + row * k;
  Place first = {-INFINITY, INT64_MAX};
  for (int64_t e = threadIdx.x; e < experts; e += kWarp) {
    const Place place = {widen(logits[e]), e};
    if (before(place, first)) first = place;
  }
  const float largest = warp_first(first).value;
  const float sum = sum_of_exponentials(logits, experts, largest, normalised ? index : nullptr, k);
  for (int64_t c = threadIdx.x; c < k; c += kWarp) {
    const bool known = index[c] >= 0 && index[c] < experts;
    if (!known) report(bad, BadIndex::Of::routed_expert, experts, index[c], row * k + c);
    out[row * k + c] = narrow<T>(known ? expf(widen(logits[index[c]]) - largest) / sum : NAN);
  }
}

}  // namespace

void top_k_cuda(const OpContext& context, TensorView out, TensorView logits) {
  check_top_k(out, logits, DeviceKind::cuda);
  if (out.count() == 0) return;
  dispatch_cuda(logits.dtype, [&]<typename T>(T*) {
    take_largest<T><<<static_cast<unsigned>(logits.rows()), kWarp, 0, context.stream>>>(
        out.as<int32_t>(), logits.as<const T>(), logits.shape[1], out.shape[1]);
  });
  cuda_check(cudaGetLastError(), "the launch of top_k");
}

void routing_weights_cuda(const OpContext& context, TensorView out, TensorView logits,
                          TensorView index, bool normalised) {
  check_routing_weights(out, logits, index, DeviceKind::cuda);
  if (out.count() == 0) return;
  dispatch_cuda(logits.dtype, [&]<typename T>(T*) {
    weigh<T><<<static_cast<unsigned>(logits.rows()), kWarp, 0, context.stream>>>(
        out.as<T>(), logits.as<const T>(), index.as<const int32_t>(), logits.shape[1],
        index.shape[1], normalised, bad_index_report());
  });
  cuda_check(cudaGetLastError(), "the launch of routing_weights");
}

}  // namespace lockstep
