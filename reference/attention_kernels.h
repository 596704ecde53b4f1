// Two kernels of exact attention on a CUDA device: what stands between its products of matrices, on
// tensors of all scores of a block of queries. All numbers are fp64 in the device's memory. Sums
// are made in an order that sizes alone decide.
//
// A row is a query of a head, [kv heads, group, queries]: row r is of query r % queries.
#pragma once

#include <cstdint>

#include "reference/kernel_queue.h"

namespace lockstep {

struct SoftmaxRows {
  int64_t heads, queries, keys;
  double scale;
  // [queries, 2]: the first key that each sees and the one after the last, of all keys, of which
  // `first_key` is the first one here.
  const int64_t* seen;
  int64_t first_key;
  double* scores;   // [rows, keys]: sum q k, then the weights p, 0 of keys that are not seen
  double* sizes;    // [rows, keys]: sum |q k|, then p^2
  double* score;    // filled in, [queries, heads]: the largest size that is seen, times scale
  double* squares;  // filled in, [rows]: sum p^2
};

struct SpreadRows {
  int64_t kv_heads, group, queries, keys, dim;
  const int64_t* seen;  // as above
  int64_t first_key;
  const double* p;           // [rows, keys]
  const double* v;           // [kv heads, keys, dim]
  int64_t v_head, v_key;     // strides of v
  const double* weighted;    // [rows, 2 dim]: sum p |v|, sum p v
  const double* of_squares;  // [rows, 2 dim]: sum p^2 v, sum p^2 v^2
  const double* squares;     // [rows]: sum p^2
  // Filled in, [queries, heads, dim], as the fields of Exact are named.
  double *out, *magnitude, *spread, *spread_squares, *weighted_squares;
};

// Whether this build has them: else they are not to be called.
bool has_attention_kernels();
void softmax_rows(const KernelQueue& queue, const SoftmaxRows& block);
void spread_rows(const KernelQueue& queue, const SpreadRows& block);

}  // namespace lockstep
