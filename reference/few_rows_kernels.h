// The products of few_rows.h on a CUDA device, in one pass over the weight: for so few rows
// LibTorch writes it out in fp64, and once more without its signs.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "reference/kernel_queue.h"

namespace lockstep {

// Rows up to which products are read from the weight as it is held, and not widened first.
inline constexpr int64_t kMostFewRows = 8;
inline constexpr int64_t kFewRowsTerms = 8;  // their number is a multiple of this

// Numbers are in the device's memory, rows lie together, and w begins at a multiple of 16 bytes.
struct FewRows {
  int64_t rows, terms, outputs;  // 1 to kMostFewRows rows
  const double* x;               // [rows, terms]
  const void* w;                 // [outputs, terms]
  DType dtype;                   // of w: fp32, fp16 or bf16
  double* y;                     // [rows, outputs]: sum x w
  double* sizes;                 // likewise: sum |x w|; null: not asked for
};

bool has_few_rows_kernels();  // as has_attention_kernels()
// A row's sums do not depend on which other rows there are.
void multiply_few_rows(const KernelQueue& queue, const FewRows& product);

}  // namespace lockstep
