#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/rope.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct RopeArguments {
  T* out;
  const T* x;
  const float* cos;
  const float* sin;
  const int32_t* positions;
  int64_t pairs, heads, half, entries;  // pairs: over all tokens and heads
  BadIndex* bad;
};

// A thread a pair; both elements are read before either is written: out may be x.
template <typename T>
__global__ void rotate(RopeArguments<T> a) {
  after_the_kernel_before();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.pairs;
       i += stride) {
    const int64_t j = i % a.half, head = i / a.half, token = head / a.heads;
    const int64_t position = a.positions[token];
    float c = NAN, s = NAN;
    if (position >= 0 && position < a.entries) {
      c = a.cos[position * a.half + j];
      s = a.sin[position * a.half + j];
    } else {
      report(a.bad, BadIndex::Of::position, a.entries, position, token);
    }
    const int64_t at = head * 2 * a.half + j;
    const float low = widen(a.x[at]), high = widen(a.x[at + a.half]);
    a.out[at] = narrow<T>(low * c - high * s);
    a.out[at + a.half] = narrow<T>(high * c + low * s);
  }
}

}  // namespace

void rope_cuda(const OpContext& context, TensorView out, TensorView x, TensorView cos,
               TensorView sin, TensorView positions) {
  check_rope(out, x, cos, sin, positions, Device::cuda);
  const int64_t pairs = x.count() / 2;
  if (pairs == 0) return;
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    const RopeArguments<T> a = {out.as<T>(),
                                x.as<const T>(),
                                cos.as<const float>(),
                                sin.as<const float>(),
                                positions.as<const int32_t>(),
                                pairs,
                                x.shape[1],
                                x.shape[2] / 2,
                                cos.rows(),
                                bad_index_report()};
    launch_early("rope", context.stream, blocks_for(pairs, kThreads), kThreads, rotate<T>, a);
  });
}

}  // namespace lockstep
