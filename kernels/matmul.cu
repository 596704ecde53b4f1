#include "kernels/add.h"
#include "kernels/base/memory.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/matmul_cublas.cuh"
#include "kernels/cuda/matmul_rows.cuh"
#include "kernels/fused.h"
#include "kernels/matmul.h"
#include "kernels/rms_norm.h"
#include "kernels/silu_mul.h"

namespace lockstep {

void matmul_cuda(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                 TensorView bias) {
  check_matmul(out, x, weight, bias, Device::cuda);
  if (out.count() == 0) return;
  if (x.rows() <= kFewTokens || !matmul_cublas(context, out, x, weight, bias)) {
    const Linear one[] = {{out, weight, bias}};
    matmul_rows_cuda(context, one, x, nullptr);
  }
}

namespace {

// Makes x here, unless the products of one launch can: what they are then to be given.
const AddNorm* left_to_products(const OpContext& context, std::span<const Linear> all, bool gated,
                                const TensorView& x, const AddNorm* made) {
  if (made == nullptr) return nullptr;
  check(made->sum.data != made->a.data && made->sum.data != made->b.data,
        "products that make their own x want its sum apart from what is added, found it in place");
  if (makes_own_x(all, gated, x, *made)) {
    check_add(made->sum, made->a, made->b, Device::cuda);
    check_rms_norm(x, made->sum, made->weight);
    return made;
  }
  add_rms_norm_cuda(context, x, *made);
  return nullptr;
}

}  // namespace

void matmuls_cuda(const OpContext& context, std::span<const Linear> all, TensorView x,
                  const AddNorm* made) {
  for (const Linear& one : all) check_matmul(one.out, x, one.weight, one.bias, Device::cuda);
  made = left_to_products(context, all, false, x, made);
  if (!all.empty() && x.count() > 0 && together(all, x))
    return matmul_rows_cuda(context, all, x, made);
  for (const Linear& one : all) matmul_cuda(context, one.out, x, one.weight, one.bias);
}

void gated_cuda(const OpContext& context, TensorView out, TensorView x, TensorView gate_weight,
                TensorView up_weight, TensorView gate, TensorView up, const AddNorm* made) {
  const Linear both[] = {{gate, gate_weight, {}}, {up, up_weight, {}}};
  for (const Linear& one : both)
    for (const TensorView& to : {out, one.out.empty() ? out : one.out})
      check_matmul(to, x, one.weight, {}, Device::cuda);
  made = left_to_products(context, both, true, x, made);
  if (x.count() > 0 && together(both, x))
    return gated_rows_cuda(context, out, both[0], both[1], x, made);
  Tensor own_gate, own_up;
  if (gate.empty()) gate = own_gate = Tensor(out.shape, out.dtype, Device::cuda);
  if (up.empty()) up = own_up = Tensor(out.shape, out.dtype, Device::cuda);
  matmul_cuda(context, gate, x, gate_weight, {});
  matmul_cuda(context, up, x, up_weight, {});
  silu_mul_cuda(context, out, gate, up);
}

}  // namespace lockstep
