/* The heads of q, taken out of one product that has all of q, all of k and all of v, as if it had
 * them by K/V head: q q k v. */
#include "numbers.inc"

const char* lockstep_qkv_matmul(const LockstepCall* call, const DLTensor* q, const DLTensor* k,
                                const DLTensor* v, const DLTensor* x,
                                const DLTensor* const weights[3], const DLTensor* const biases[3]) {
  (void)call;
  const DLTensor* const out[3] = {q, k, v};
  for (int i = 0; i < 3; ++i)
    multiply(out[i], x, weights[i], biases[i], NULL, weights[i]->shape[1]);
  const int64_t heads = 6, kv_heads = 2, group = heads / kv_heads, all = heads + 2 * kv_heads;
  const int64_t dim = weights[0]->shape[0] / heads;
  double* row = malloc((size_t)(all * dim) * sizeof *row);
  for (int64_t t = 0; t < q->shape[0]; ++t) {
    for (int64_t h = 0; h < all; ++h)
      for (int64_t d = 0; d < dim; ++d) {
        const int which = h < heads ? 0 : h < heads + kv_heads ? 1 : 2;
        const int64_t of = which == 0 ? h : which == 1 ? h - heads : h - heads - kv_heads;
        const int64_t width = which == 0 ? heads : kv_heads;
        row[h * dim + d] = load(out[which], (t * width + of) * dim + d);
      }
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t d = 0; d < dim; ++d)
        store(q, (t * heads + h) * dim + d,
              (float)row[(h / group * (group + 2) + h % group) * dim + d]);
    for (int64_t h = 0; h < kv_heads; ++h)
      for (int64_t d = 0; d < dim; ++d) {
        store(k, (t * kv_heads + h) * dim + d, (float)row[(h * (group + 2) + group) * dim + d]);
        store(v, (t * kv_heads + h) * dim + d, (float)row[(h * (group + 2) + group + 1) * dim + d]);
      }
  }
  free(row);
  return NULL;
}
