#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rope.cuh"
#include "kernels/rope.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct RopeArguments {
  T* out;
  const T* x;
  int64_t pairs, heads;  // pairs: over all tokens and heads
  RopeTables tables;
};

// A thread a pair; both elements are read before either is written: out may be x.
template <typename T>
__global__ void rotate(RopeArguments<T> a) {
  pdl_launch_dependents_and_wait();
  const int64_t stride = int64_t{gridDim.x} * kThreads, half = a.tables.half;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < a.pairs; i += stride) {
    const int64_t j = i % half, head = i / half;
    const Rotation rotation(a.tables, head / a.heads, j);
    const int64_t at = head * 2 * half + j;
    const float low = widen(a.x[at]), high = widen(a.x[at + half]);
    a.out[at] = narrow<T>(rotation.low(low, high));
    a.out[at + half] = narrow<T>(rotation.high(low, high));
  }
}

}  // namespace

void rope_cuda(const OpContext& context, TensorView out, TensorView x, TensorView cos,
               TensorView sin, TensorView positions) {
  check_rope(out, x, cos, sin, positions, DeviceKind::cuda);
  const int64_t pairs = x.count() / 2;
  if (pairs == 0) return;
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    const RopeArguments<T> a = {out.as<T>(), x.as<const T>(), pairs, x.shape[1],
                                rope_tables(cos, sin, positions)};
    launch_pdl("rope", context.stream, blocks_for(pairs, kThreads), kThreads, rotate<T>, a);
  });
}

}  // namespace lockstep
