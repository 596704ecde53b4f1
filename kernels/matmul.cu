#include "kernels/add.h"
#include "kernels/base/memory.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/matmul_cublas.cuh"
#include "kernels/cuda/matmul_eight.cuh"
#include "kernels/cuda/matmul_rows.cuh"
#include "kernels/fused.h"
#include "kernels/matmul.h"
#include "kernels/rms_norm.h"
#include "kernels/silu_mul.h"

namespace lockstep {

void matmul_cuda(const OpContext& context, TensorView out, TensorView x, WeightView weight,
                 TensorView bias) {
  check_matmul(out, x, weight, bias, DeviceKind::cuda);
  if (out.count() == 0) return;
  const Linear one[] = {{out, weight, bias}};
  if (matmul_fits_eight(one, x)) return matmul_eight_cuda(context, one, x);
  if (x.rows() <= kFewTokens || !matmul_cublas(context, out, x, weight.codes, bias))
    matmul_rows_cuda(context, one, x, nullptr);
}

namespace {

// Computes x here, unless the launch of the products can do it; returns the input to hand to them.
const AddNormInput* defer_to_matmul(const OpContext& context, std::span<const Linear> all,
                                    bool gate_up_silu, const TensorView& x,
                                    const AddNormInput* input) {
  if (input == nullptr) return nullptr;
  check(input->sum.data != input->a.data && input->sum.data != input->b.data,
        "the sum of a deferred norm must lie apart from what is added, found it in place");
  if (matmul_computes_norm(all, gate_up_silu, x, *input)) {
    check_add(input->sum, input->a, input->b, DeviceKind::cuda);
    check_rms_norm(x, input->sum, input->weight);
    return input;
  }
  add_rms_norm_cuda(context, x, *input);
  return nullptr;
}

}  // namespace

void qkv_matmul_cuda(const OpContext& context, std::span<const Linear> all, TensorView x,
                     const AddNormInput* input) {
  for (const Linear& one : all) check_matmul(one.out, x, one.weight, one.bias, DeviceKind::cuda);
  input = defer_to_matmul(context, all, false, x, input);
  if (matmul_fits_eight(all, x)) return matmul_eight_cuda(context, all, x);
  if (!all.empty() && x.count() > 0 && together(all, x))
    return matmul_rows_cuda(context, all, x, input);
  for (const Linear& one : all) matmul_cuda(context, one.out, x, one.weight, one.bias);
}

void gate_up_silu_cuda(const OpContext& context, TensorView out, TensorView x,
                       WeightView gate_weight, WeightView up_weight, TensorView gate, TensorView up,
                       const AddNormInput* input) {
  const Linear both[] = {{gate, gate_weight, {}}, {up, up_weight, {}}};
  for (const Linear& one : both)
    for (const TensorView& to : {out, one.out.empty() ? out : one.out})
      check_matmul(to, x, one.weight, {}, DeviceKind::cuda);
  input = defer_to_matmul(context, both, true, x, input);
  if (matmul_fits_eight(both, x)) return gate_up_silu_eight_cuda(context, out, both[0], both[1], x);
  if (x.count() > 0 && together(both, x))
    return gate_up_silu_rows_cuda(context, out, both[0], both[1], x, input);
  Tensor own_gate, own_up;
  if (gate.empty()) gate = own_gate = Tensor(out.shape, out.dtype, out.device);
  if (up.empty()) up = own_up = Tensor(out.shape, out.dtype, out.device);
  matmul_cuda(context, gate, x, gate_weight, {});
  matmul_cuda(context, up, x, up_weight, {});
  silu_mul_cuda(context, out, gate, up);
}

}  // namespace lockstep
