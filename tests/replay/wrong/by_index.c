/* Ops that are told by an index what to read, each wrong in its own way. */
#include "tests/causes/wrong/numbers.inc"

/* Indices have 8 bits. */
const char* lockstep_gather_rows(const LockstepCall* call, const DLTensor* out,
                                 const DLTensor* index, const DLTensor* table) {
  (void)call;
  const int64_t width = table->shape[1];
  for (int64_t i = 0; i < index->shape[0] * width; ++i)
    store(out, i, load(table, (ints(index)[i / width] & 0xff) * width + i % width));
  return NULL;
}

/* The sum is of all experts, also where it should be of those that were chosen. */
const char* lockstep_softmax_of(const LockstepCall* call, const DLTensor* out,
                                const DLTensor* logits, const DLTensor* index, int32_t normalised) {
  (void)call, (void)normalised;
  const int64_t experts = logits->shape[1], chosen = index->shape[1];
  for (int64_t t = 0; t < logits->shape[0]; ++t) {
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += exp(load(logits, t * experts + e));
    for (int64_t i = t * chosen; i < (t + 1) * chosen; ++i)
      store(out, i, (float)(exp(load(logits, t * experts + ints(index)[i])) / sum));
  }
  return NULL;
}

/* Without the last inputs of every row. */
const char* lockstep_expert_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                   const DLTensor* index, const DLTensor* const* weights,
                                   int64_t experts) {
  (void)call, (void)experts;
  const int64_t chosen = out->shape[1], n = out->shape[2], in = x->shape[x->ndim - 1];
  for (int64_t i = 0; i < out->shape[0] * chosen; ++i) {
    const DLTensor* weight = weights[ints(index)[i]];
    const int64_t row = x->ndim == 3 ? i : i / chosen;
    for (int64_t o = 0; o < n; ++o) {
      double sum = 0;
      for (int64_t j = 0; j < in - 5; ++j)
        sum += (double)load(x, row * in + j) * load(weight, o * in + j);
      store(out, i * n + o, (float)sum);
    }
  }
  return NULL;
}

/* Positions have 4 bits. */
const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  (void)call;
  for (int64_t t = 0; t < x->shape[0]; ++t)
    rotate_row(out, x, cos, sin, t, ints(positions)[t] & 0xf);
  return NULL;
}
