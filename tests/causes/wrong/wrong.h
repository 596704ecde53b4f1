/* Numbers of a tensor, for kernels that are wrong as real engines' were: each file beside this one
 * is one of them, written before any hypothesis about it. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/lockstep_ops.h"

int32_t lockstep_ops_abi(void) { return LOCKSTEP_OPS_ABI; }

static inline float load(const DLTensor* t, int64_t i) {
  const char* at = (const char*)t->data + t->byte_offset;
  if (t->dtype.bits == 32) return ((const float*)at)[i];
  const uint16_t half = ((const uint16_t*)at)[i];
  if (t->dtype.code != kDLBfloat) {
    _Float16 value;
    memcpy(&value, &half, sizeof value);
    return (float)value;
  }
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline void store(const DLTensor* t, int64_t i, float value) {
  char* at = (char*)t->data + t->byte_offset;
  if (t->dtype.bits == 32) {
    ((float*)at)[i] = value;
  } else if (t->dtype.code != kDLBfloat) {
    const _Float16 half = (_Float16)value;
    memcpy(at + 2 * i, &half, sizeof half);
  } else {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value == value) bits += 0x7fff + ((bits >> 16) & 1); /* to the nearest, halves to even */
    ((uint16_t*)at)[i] = (uint16_t)(bits >> 16);
  }
}

static inline const int32_t* ints(const DLTensor* t) {
  return (const int32_t*)((const char*)t->data + t->byte_offset);
}

static inline int64_t count_of(const DLTensor* t) {
  int64_t count = 1;
  for (int axis = 0; axis < t->ndim; ++axis) count *= t->shape[axis];
  return count;
}

static inline int is_at(const LockstepCall* call, const char* point) {
  return strcmp(call->point, point) == 0;
}

/* The right norm, of `width` of the `stride` elements of a row, their squares divided by `by`. */
static inline void norm_rows(const DLTensor* out, const DLTensor* x, const DLTensor* w,
                             const DLTensor* gains, float eps, double by) {
  const int64_t width = w->shape[0], rows = count_of(x) / width;
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i)
      squares += (double)load(x, i) * load(x, i);
    const double scale = 1 / sqrt(squares / by + eps);
    for (int64_t i = 0; i < width; ++i)
      store(out, row * width + i, (float)(load(x, row * width + i) * scale * load(gains, i)));
  }
}

/* y = x w^T + bias, row `from(n)` of w, over the first k of it. */
static inline void multiply(const DLTensor* out, const DLTensor* x, const DLTensor* w,
                            const DLTensor* bias, int64_t (*from)(int64_t n, int64_t rows),
                            int64_t k_used) {
  const int64_t n = w->shape[0], k = w->shape[1], rows = count_of(x) / k;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t o = 0; o < n; ++o) {
      const int64_t row = from ? from(o, n) : o;
      double sum = bias ? load(bias, row) : 0;
      for (int64_t i = 0; i < k_used; ++i)
        sum += (double)load(x, t * k + i) * load(w, row * k + i);
      store(out, t * n + o, (float)sum);
    }
}

/* An attention whose parts can be wrong. Null: as it should be. */
typedef struct Parts {
  double (*score)(double score);                            /* of a scaled score */
  int64_t (*kv_head)(int64_t head, int64_t heads, int64_t kv_heads);
  int64_t (*slot)(const int32_t* table, int64_t key, int64_t page_size);
  int64_t (*first_key)(int64_t position);
  double added; /* to the sum of the weights, in units of the largest */
} Parts;

static inline void attend(const DLTensor* out, const DLTensor* q, const LockstepCache* cache,
                          const LockstepBatch* batch, float scale, int64_t window, Parts parts) {
  const int64_t heads = q->shape[1], dim = q->shape[2];
  const int64_t kv_heads = cache->k->shape[2], page_size = cache->k->shape[1];
  const int64_t requests = batch->context_length->shape[0], columns = batch->page_table->shape[1];
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t first = ints(batch->query_start)[r], end = ints(batch->query_start)[r + 1];
    const int64_t length = ints(batch->context_length)[r];
    const int32_t* table = ints(batch->page_table) + r * columns;
    double* weights = malloc((size_t)length * sizeof *weights);
    for (int64_t t = first; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t position = length - (end - t);
        const int64_t kv = parts.kv_head ? parts.kv_head(h, heads, kv_heads)
                                         : h / (heads / kv_heads);
        int64_t begin = parts.first_key ? parts.first_key(position) : 0;
        if (window > 0 && position - window + 1 > begin) begin = position - window + 1;
        double top = -INFINITY, sum = 0;
        for (int64_t key = begin; key <= position; ++key) {
          const int64_t slot = parts.slot ? parts.slot(table, key, page_size)
                                          : table[key / page_size] * page_size + key % page_size;
          double score = 0;
          for (int64_t d = 0; d < dim; ++d)
            score += (double)load(q, (t * heads + h) * dim + d) *
                     load(cache->k, (slot * kv_heads + kv) * dim + d);
          score *= scale;
          if (parts.score) score = parts.score(score);
          weights[key] = score;
          if (score > top) top = score;
        }
        if (parts.added > 0 && top < 0) top = 0;
        for (int64_t key = begin; key <= position; ++key)
          sum += weights[key] = exp(weights[key] - top);
        sum += parts.added * exp(-top);
        for (int64_t d = 0; d < dim; ++d) {
          double y = 0;
          for (int64_t key = begin; key <= position; ++key) {
            const int64_t slot = parts.slot ? parts.slot(table, key, page_size)
                                            : table[key / page_size] * page_size + key % page_size;
            y += weights[key] * load(cache->v, (slot * kv_heads + kv) * dim + d);
          }
          store(out, (t * heads + h) * dim + d, (float)(y / sum));
        }
      }
    free(weights);
  }
}
