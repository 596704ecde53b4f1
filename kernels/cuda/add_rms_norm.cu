// The residual addition and the norm behind it in one kernel: a row is added, stored, and normed by
// the block that added it, so that the stream is read once. The arithmetic is that of the two ops
// (rms_norm.cuh), bit for bit, with the sum rounded to the dtype before it is squared. Rows that
// rms_norm takes several of in a block, and memory that only some of the ops could read 16 bytes at
// a time, are left to the two ops.
#include "kernels/add.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/rms_norm.h"

namespace lockstep {
namespace {

template <typename T>
struct AddNormArguments {
  T* out;
  T* sum;
  const T* a;
  const T* b;
  const T* weight;
  int64_t width;
  float eps;
};

// A block a row.
template <typename T, int kVector>
__global__ void __launch_bounds__(kNormThreads) add_and_normalise(AddNormArguments<T> a) {
  using Some = Elements<T, kVector>;
  const int64_t row = int64_t{blockIdx.x} * a.width;
  normalise_wide<T, kVector>(a.out + row, a.sum + row, a.weight, a.width, a.eps,
                             [&](int64_t i, T* to) {
                               const Some sum = sum_of<T, kVector>(a.a + row + i, a.b + row + i);
                               *reinterpret_cast<Some*>(a.sum + row + i) = sum;
                               *reinterpret_cast<Some*>(to) = sum;
                             });
}

}  // namespace

void add_rms_norm_cuda(const OpContext& context, TensorView out, const AddNormInput& input) {
  const auto& [sum, a, b, weight, eps] = input;
  const int64_t width = a.shape.last();
  if (width <= kNarrowRow) {  // rows of which rms_norm takes several in a block
    add_cuda(context, sum, a, b);
    return rms_norm_cuda(context, out, sum, weight, eps);
  }
  check_add(sum, a, b, DeviceKind::cuda);
  check_rms_norm(out, sum, weight);
  if (a.count() == 0) return;
  dispatch_cuda(a.dtype, [&]<typename T>(T*) {
    constexpr int kVector = Vector<T>::kSize;
    const AddNormArguments<T> arguments = {
        out.as<T>(), sum.as<T>(), a.as<const T>(), b.as<const T>(), weight.as<const T>(),
        width,       eps};
    const int64_t bytes = width * size_of(a.dtype);
    // The order of the sum is that of rms_norm, which does not look where a and b lie.
    const bool wide = aligned_16(bytes, out.data, sum.data, weight.data);
    if (wide && !aligned_16(bytes, a.data, b.data)) {
      add_cuda(context, sum, a, b);
      return rms_norm_cuda(context, out, sum, weight, eps);
    }
    launch_pdl("add_rms_norm", context.stream, a.count() / width, kNormThreads,
               wide ? add_and_normalise<T, kVector> : add_and_normalise<T, 1>, arguments);
  });
}

}  // namespace lockstep
