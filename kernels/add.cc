#include "kernels/add.h"

#include "kernels/base/arguments.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

// out = a + b in fp32, rounded at the store.
template <typename T>
struct AddKernel {
  T* out;
  const T* a;
  const T* b;
  int64_t begin, end;

  template <int N>
  [[gnu::always_inline]] void operator()() const {
    for (int64_t i = begin; i < end; i += N)
      simd::store<N>(out + i, simd::load<N>(a + i, end - i) + simd::load<N>(b + i, end - i),
                     end - i);
  }
};

}  // namespace

void check_add(TensorView out, TensorView a, TensorView b, DeviceKind device) {
  constexpr auto kOp = "add";
  check_storage(kOp, a.dtype);
  check_tensor(kOp, "a", a, a.dtype, a.shape, device);
  check_tensor(kOp, "b", b, a.dtype, a.shape, device);
  check_tensor(kOp, "out", out, a.dtype, a.shape, device);
}

void add(const OpContext& context, TensorView out, TensorView a, TensorView b) {
  check_add(out, a, b, DeviceKind::cpu);
  dispatch("add", a.dtype, [&]<typename T>(T*) {
    // Pieces so large that waking a thread for one of them pays.
    parallel_for(context.threads, a.count(), 16384, [&](int64_t begin, int64_t end) {
      on_best_isa(AddKernel<T>{out.as<T>(), a.as<const T>(), b.as<const T>(), begin, end});
    });
  });
}

}  // namespace lockstep
