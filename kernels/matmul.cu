#include "kernels/cuda_ops.h"
#include "kernels/fused.h"
#include "kernels/matmul.h"
#include "kernels/matmul_cublas.cuh"
#include "kernels/matmul_rows.cuh"
#include "kernels/memory.h"
#include "kernels/silu_mul.h"

namespace lockstep {

void matmul_cuda(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                 TensorView bias) {
  check_matmul(out, x, weight, bias, Device::cuda);
  if (out.count() == 0) return;
  if (x.rows() <= kFewTokens || !matmul_cublas(context, out, x, weight, bias)) {
    const Linear one[] = {{out, weight, bias}};
    matmul_rows_cuda(context, one, x);
  }
}

void matmuls_cuda(const OpContext& context, std::span<const Linear> all, TensorView x) {
  for (const Linear& one : all) check_matmul(one.out, x, one.weight, one.bias, Device::cuda);
  if (!all.empty() && x.count() > 0 && together(all, x)) return matmul_rows_cuda(context, all, x);
  for (const Linear& one : all) matmul_cuda(context, one.out, x, one.weight, one.bias);
}

void gated_cuda(const OpContext& context, TensorView out, TensorView x, TensorView gate_weight,
                TensorView up_weight, TensorView gate, TensorView up) {
  const Linear both[] = {{gate, gate_weight, {}}, {up, up_weight, {}}};
  for (const Linear& one : both)
    for (const TensorView& to : {out, one.out.empty() ? out : one.out})
      check_matmul(to, x, one.weight, {}, Device::cuda);
  if (x.count() > 0 && together(both, x)) return gated_rows_cuda(context, out, both[0], both[1], x);
  Tensor own_gate, own_up;
  if (gate.empty()) gate = own_gate = Tensor(out.shape, out.dtype, Device::cuda);
  if (up.empty()) up = own_up = Tensor(out.shape, out.dtype, Device::cuda);
  matmul_cuda(context, gate, x, gate_weight, {});
  matmul_cuda(context, up, x, up_weight, {});
  silu_mul_cuda(context, out, gate, up);
}

}  // namespace lockstep
