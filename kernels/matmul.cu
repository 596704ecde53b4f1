#include "kernels/cuda_ops.h"
#include "kernels/matmul.h"
#include "kernels/matmul_cublas.cuh"
#include "kernels/matmul_rows.cuh"

namespace lockstep {

void matmul_cuda(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                 TensorView bias) {
  constexpr int64_t kFewTokens = 4;  // more are quicker with the library, measured on an H200
  check_matmul(out, x, weight, bias, Device::cuda);
  if (out.count() == 0) return;
  if (x.rows() <= kFewTokens || !matmul_cublas(context, out, x, weight, bias))
    matmul_rows_cuda(context, out, x, weight, bias);
}

}  // namespace lockstep
