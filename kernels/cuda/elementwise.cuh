#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"
#include "kernels/cuda/device.cuh"

namespace lockstep {

// out[i] = Function()(a[i], b[i]) in fp32, rounded once, 16 bytes at a time.
template <typename Function, typename T, int kSize>
__global__ void combine(T* out, const T* a, const T* b, int64_t n) {
  pdl_launch_dependents_and_wait();
  struct alignas(sizeof(T) * kSize) Some {
    T e[kSize];
  };
  const int64_t stride = item_stride();
  for (int64_t i = first_item(); i < n / kSize; i += stride) {
    const Some x = reinterpret_cast<const Some*>(a)[i], y = reinterpret_cast<const Some*>(b)[i];
    Some to;
    for (int c = 0; c < kSize; ++c) to.e[c] = narrow<T>(Function()(widen(x.e[c]), widen(y.e[c])));
    reinterpret_cast<Some*>(out)[i] = to;
  }
}

// Combines tensors that were checked to be alike.
template <typename Function>
void launch_combine(const OpContext& context, const TensorView& out, const TensorView& a,
                    const TensorView& b, const char* op) {
  constexpr int kThreads = 256;
  if (a.count() == 0) return;
  const bool wide = aligned_16(a.bytes(), out.data, a.data, b.data);
  dispatch_cuda(a.dtype, [&]<typename T>(T*) {
    constexpr int kSize = Vector<T>::kSize;
    const auto kernel = wide ? combine<Function, T, kSize> : combine<Function, T, 1>;
    const unsigned blocks = blocks_for(a.count() / (wide ? kSize : 1), kThreads);
    launch_pdl(op, context.stream, blocks, kThreads, kernel, out.as<T>(), a.as<const T>(),
               b.as<const T>(), a.count());
  });
}

}  // namespace lockstep
