// Kernels for ops whose every element is made of a few others, on a CUDA device: one pass over the
// elements, where LibTorch has a kernel and new memory a step. Each step of theirs
// rounds as LibTorch's does. Numbers are fp64 in the device's memory, row-major.
#pragma once

#include <cstdint>

#include "reference/kernel_queue.h"

namespace lockstep {

// Exact of a rope that rounds nowhere on the way. x: [rows, heads, 2 pairs]; cos, sin and error, as
// AngleTables has them, [rows, pairs]. Filled in: as the fields of Exact, in x's shape.
struct RopeRows {
  int64_t rows, heads, pairs;
  const double *x, *cos, *sin, *error;
  double *want, *magnitude, *angle, *x1c_x2s, *turned;
};

// Exact of a silu_mul that rounds nowhere on the way, of as many elements each.
struct SiluMulRows {
  int64_t count;
  const double *gate, *up;
  double *want, *magnitude;
};

// Exact of a norm that rounds nowhere on the way. x, want: [rows, width]; mean_square: [rows];
// weight: [width].
struct NormRows {
  int64_t rows, width;
  double eps;
  const double *x, *mean_square, *weight;
  double* want;
};

// The errors that own_errors() says they have. Those of a sum are so many sizes of its terms: at
// most `most`, and usually `walk`, whose square is the variance.
struct SumErrors {
  int64_t count;
  double most, walk;
  const double* magnitude;
  double *limit, *variance;
};
// Those of a norm are so many sizes of its results: at most `most`, and usually as many as its row
// has in of_rows, or, where that is null, `walk`.
struct NormErrors {
  int64_t rows, width;
  double most, walk;
  const double *want, *of_rows;
  double *limit, *variance;
};
// terms, logarithms: by row; score: by row and head; else [rows, heads, dim].
struct AttentionErrors {
  int64_t rows, heads, dim;
  double walk;  // of dim terms
  const double *terms, *logarithms, *score;
  const double *want, *magnitude, *spread, *spread_squares, *weighted_squares;
  double *limit, *variance, *shared;
};
struct RopeErrors {
  int64_t count;
  const double *want, *magnitude, *angle, *x1c_x2s, *turned;
  double *limit, *variance;
};
struct SiluMulErrors {
  int64_t count;
  const double *want, *magnitude, *factor;
  double *limit, *variance;
  bool* products;
};

bool has_pointwise_kernels();  // as has_attention_kernels()
void make_rope(const KernelQueue& queue, const RopeRows& rows);
void make_silu_mul(const KernelQueue& queue, const SiluMulRows& rows);
void make_norm(const KernelQueue& queue, const NormRows& rows);
void make_errors(const KernelQueue& queue, const SumErrors& errors);
void make_errors(const KernelQueue& queue, const NormErrors& errors);
void make_errors(const KernelQueue& queue, const AttentionErrors& errors);
void make_errors(const KernelQueue& queue, const RopeErrors& errors);
void make_errors(const KernelQueue& queue, const SiluMulErrors& errors);

}  // namespace lockstep
