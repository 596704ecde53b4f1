#pragma once

#include <string_view>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// out = x weight^T + bias.
//   out     [tokens, n]
//   x       [tokens, k]
//   weight  [n, k]       as checkpoints store a linear layer; plain
//   bias    [n] or empty
// fp32, fp16 or bf16, all of one dtype; products and sums in fp32; rounds once, at the store, bias
// included. Not batch-invariant: few tokens take the matrix-vector path (on a device one does, and
// up to eight of 16 bits take tensor cores) and more take the library's matrix-matrix path, which
// sum in other orders. Nor need its bits be those of another number of
// threads: each computes some of the columns, and a library may sum a wider part otherwise.
void matmul(const OpContext& context, TensorView out, TensorView x, WeightView weight,
            TensorView bias);

// Its CUDA twin (cuda/cuda_ops.h).
decltype(matmul) matmul_cuda;

// Throws Error unless the arguments fit the contract above, on that device. Both twins call it.
void check_matmul(TensorView out, TensorView x, const WeightView& weight, TensorView bias,
                  DeviceKind device);

// Which code serves matrix-matrix products of that dtype on this CPU, for people: "oneDNN" or
// "built-in (this CPU has no bf16 products)".
std::string_view matmul_path(DType dtype);

}  // namespace lockstep
