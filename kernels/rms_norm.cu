#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/rms_norm.h"

namespace lockstep {
namespace {

constexpr int kWarps = 4;  // of a block of narrow rows

template <typename T>
struct NormArguments {
  T* out;
  const T* x;
  const T* weight;
  int64_t rows, width;
  float eps;
};

// A block a row.
template <typename T, int kVector>
__global__ void __launch_bounds__(kNormThreads) normalise_rows(NormArguments<T> a) {
  struct alignas(sizeof(T) * kVector) Some {
    T e[kVector];
  };
  const T* row = a.x + int64_t{blockIdx.x} * a.width;
  T* out = a.out + int64_t{blockIdx.x} * a.width;
  normalise_wide<T, kVector>(out, row, a.weight, a.width, a.eps, [&](int64_t i, T* to) {
    *reinterpret_cast<Some*>(to) = *reinterpret_cast<const Some*>(row + i);
  });
}

// A warp a row.
template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp) normalise_narrow_rows(NormArguments<T> a) {
  pdl_launch_dependents();
  const int width = a.width;
  NarrowRow<T> weight, row;
  weight.read(a.weight, width);
  pdl_wait();
  const int64_t at = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (at >= a.rows) return;
  row.read(a.x + at * a.width, width);
  row.normalise(weight, width, a.eps);
  row.write(a.out + at * a.width, width);
}

template <typename T>
void launch(const OpContext& context, const NormArguments<T>& a) {
  if (a.rows == 0) return;
  if (a.width <= kNarrowRow) {
    launch_pdl("rms_norm", context.stream, (a.rows + kWarps - 1) / kWarps, kWarps * kWarp,
               normalise_narrow_rows<T>, a);
    return;
  }
  constexpr int kVector = Vector<T>::kSize;
  const bool wide = aligned_16(a.width * int64_t{sizeof(T)}, a.out, a.x, a.weight);
  launch_pdl("rms_norm", context.stream, a.rows, kNormThreads,
             wide ? normalise_rows<T, kVector> : normalise_rows<T, 1>, a);
}

}  // namespace

void rms_norm_cuda(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                   float eps) {
  check_rms_norm(out, x, weight);
  check(x.device.kind == DeviceKind::cuda,
        "rms_norm on the CUDA device wants its tensors there, found them "
        "on the CPU: copy them first");
  const int64_t width = x.shape.last();
  dispatch_cuda(x.dtype, [&]<typename T>(T*) {
    launch<T>(context,
              {out.as<T>(), x.as<const T>(), weight.as<const T>(), x.count() / width, width, eps});
  });
}

}  // namespace lockstep
