// RMSNorm on the CPU. Threads share the rows, and each row is one thread's, so that its bits depend
// on nothing but the row; the mean and its root are fp64, all else is fp32.
#include "kernels/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/arguments.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

template <typename T>
struct RmsNormKernel {
  T* out;
  const T* x;
  const T* weight;
  int64_t width, begin, end;  // rows [begin, end)
  float eps;

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t row = begin; row < end; ++row) normalise<N>(out + row * width, x + row * width);
  }

  template <int N>
  [[gnu::always_inline]] void normalise(T* to, const T* from) const {
    // Lanes are added up apart and joined at the end: vectors of another width give other last
    // bits.
    simd::F<N> squares = {};
    for (int64_t i = 0; i < width; i += N) {
      const simd::F<N> v = simd::load<N>(from + i, width - i);
      squares += v * v;
    }
    // One rounding instead of four of a number that the whole row is multiplied with.
    const double mean = static_cast<double>(simd::sum<N>(squares)) / static_cast<double>(width);
    const auto scale = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(eps)));
    for (int64_t i = 0; i < width; i += N) {
      const simd::F<N> v = simd::load<N>(from + i, width - i);
      const simd::F<N> w = simd::load<N>(weight + i, width - i);
      simd::store<N>(to + i, v * scale * w, width - i);
    }
  }
};

}  // namespace

void check_rms_norm(TensorView out, TensorView x, TensorView weight) {
  constexpr auto kOp = "rms_norm";
  check_storage(kOp, x.dtype);
  if (x.shape.rank() < 1 || x.shape.last() <= 0)
    fail("rms_norm wants x with a last axis of at least 1 element, found the shape {}: reshape it",
         x.shape.text());
  check_tensor(kOp, "x", x, x.dtype, x.shape, x.device.kind);
  check_tensor(kOp, "weight", weight, x.dtype, {x.shape.last()}, x.device.kind);
  check_tensor(kOp, "out", out, x.dtype, x.shape, x.device.kind);
}

void rms_norm(const OpContext& context, TensorView out, TensorView x, TensorView weight,
              float eps) {
  // That check takes the device of x for the wanted one, so that the twins can share it: here it
  // must be the CPU.
  check_rms_norm(out, x, weight);
  check_tensor("rms_norm", "x", x, x.dtype, x.shape);
  const int64_t width = x.shape.last(), rows = x.count() / width;
  dispatch("rms_norm", x.dtype, [&]<typename T>(T*) {
    parallel_for(context.threads, rows, 32768 / width + 1, [&](int64_t begin, int64_t end) {
      on_best_isa(RmsNormKernel<T>{out.as<T>(), x.as<const T>(), weight.as<const T>(), width, begin,
                                   end, eps});
    });
  });
}

}  // namespace lockstep
