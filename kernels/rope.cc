#include "kernels/rope.h"

#include "kernels/base/arguments.h"
#include "kernels/base/bad_index.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

template <typename T>
struct RopeKernel {
  T* out;
  const T* x;
  const float* cos;
  const float* sin;
  const int32_t* positions;
  int64_t heads, half, begin, end;  // tokens [begin, end)

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h)
        rotate<N>((t * heads + h) * 2 * half, positions[t] * half);
  }

  // Both halves are read before either is written: out may be x.
  template <int N>
  [[gnu::always_inline]] void rotate(int64_t head, int64_t row) const {
    for (int64_t j = 0; j < half; j += N) {
      const int64_t n = half - j;
      const simd::F<N> low = simd::load<N>(x + head + j, n);
      const simd::F<N> high = simd::load<N>(x + head + half + j, n);
      const simd::F<N> c = simd::load<N>(cos + row + j, n);
      const simd::F<N> s = simd::load<N>(sin + row + j, n);
      simd::store<N>(out + head + j, low * c - high * s, n);
      simd::store<N>(out + head + half + j, high * c + low * s, n);
    }
  }
};

}  // namespace

void check_rope(TensorView out, TensorView x, TensorView cos, TensorView sin, TensorView positions,
                DeviceKind device) {
  constexpr auto kOp = "rope";
  check_storage(kOp, x.dtype);
  check_rank(kOp, "x", x, 3);
  check_rank(kOp, "cos", cos, 2);
  check(x.shape.last() % 2 == 0, "rope wants an even head_dim, found {}: it rotates halves",
        x.shape.last());
  check_tensor(kOp, "x", x, x.dtype, x.shape, device);
  check_tensor(kOp, "out", out, x.dtype, x.shape, device);
  check_tensor(kOp, "cos", cos, DType::f32, {cos.rows(), x.shape.last() / 2}, device);
  check_tensor(kOp, "sin", sin, DType::f32, cos.shape, device);
  check_tensor(kOp, "positions", positions, DType::i32, {x.rows()}, device);
}

void rope(const OpContext& context, TensorView out, TensorView x, TensorView cos, TensorView sin,
          TensorView positions) {
  check_rope(out, x, cos, sin, positions, DeviceKind::cpu);
  const auto* p = positions.as<const int32_t>();
  // All positions are looked at before a row is written.
  for (int64_t t = 0; t < x.rows(); ++t)
    if (p[t] < 0 || p[t] >= cos.rows()) refuse({BadIndex::Of::position, cos.rows(), p[t], t});
  dispatch("rope", x.dtype, [&]<typename T>(T*) {
    parallel_for(context.threads, x.rows(), 16384 / (x.row_size() + 1) + 1,
                 [&](int64_t begin, int64_t end) {
                   on_best_isa(RopeKernel<T>{out.as<T>(), x.as<const T>(), cos.as<const float>(),
                                             sin.as<const float>(), positions.as<const int32_t>(),
                                             x.shape[1], x.shape[2] / 2, begin, end});
                 });
  });
}

}  // namespace lockstep
