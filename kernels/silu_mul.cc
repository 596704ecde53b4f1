#include "kernels/silu_mul.h"

#include "kernels/base/arguments.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

template <typename T>
struct SiluMulKernel {
  T* out;
  const T* gate;
  const T* up;
  int64_t begin, end;

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t i = begin; i < end; i += N) {
      const simd::F<N> g = simd::load<N>(gate + i, end - i);
      const simd::F<N> u = simd::load<N>(up + i, end - i);
      simd::store<N>(out + i, g / (1.0f + simd::exp<N>(-g)) * u, end - i);
    }
  }
};

}  // namespace

void check_silu_mul(TensorView out, TensorView gate, TensorView up, DeviceKind device) {
  constexpr auto kOp = "silu_mul";
  check_storage(kOp, gate.dtype);
  check_tensor(kOp, "gate", gate, gate.dtype, gate.shape, device);
  check_tensor(kOp, "up", up, gate.dtype, gate.shape, device);
  check_tensor(kOp, "out", out, gate.dtype, gate.shape, device);
}

void silu_mul(const OpContext& context, TensorView out, TensorView gate, TensorView up) {
  check_silu_mul(out, gate, up, DeviceKind::cpu);
  dispatch("silu_mul", gate.dtype, [&]<typename T>(T*) {
    parallel_for(context.threads, gate.count(), 8192, [&](int64_t begin, int64_t end) {
      on_best_isa(SiluMulKernel<T>{out.as<T>(), gate.as<const T>(), up.as<const T>(), begin, end});
    });
  });
}

}  // namespace lockstep
