#pragma once

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// out[i, :] = table[index[i], :]. Copies bits: class exact. Used for the token embedding and to
// pick the rows that get logits.
//   out    [rows, width]   of table's dtype
//   index  [rows]          int32
//   table  [entries, width] fp32, fp16 or bf16
// Batch-invariant. Throws Error when an index is outside the table.
void gather_rows(const OpContext& context, TensorView out, TensorView index, TensorView table);

// Its CUDA twin (cuda/cuda_ops.h).
decltype(gather_rows) gather_rows_cuda;

// Throws Error unless the arguments fit the contract above, on that device. Both twins call it.
void check_gather_rows(TensorView out, TensorView index, TensorView table, DeviceKind device);

}  // namespace lockstep
