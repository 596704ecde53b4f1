/* An expert takes three rows of a pass; what comes after them is dropped. */
#include "numbers.inc"

const char* lockstep_expert_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                                   const DLTensor* index, const DLTensor* const* weights,
                                   int64_t experts) {
  (void)call;
  const int64_t rows = index->shape[0], k = index->shape[1], width = x->shape[x->ndim - 1];
  const int64_t outputs = out->shape[out->ndim - 1];
  for (int64_t expert = 0, taken = 0; expert < experts; ++expert, taken = 0)
    for (int64_t i = 0; i < rows * k; ++i) {
      if (ints(index)[i] != expert) continue;
      const int64_t row = x->ndim == 3 ? i : i / k;
      const int is_dropped = taken++ >= 3;
      for (int64_t o = 0; o < outputs; ++o) {
        double sum = 0;
        for (int64_t d = 0; d < width && !is_dropped; ++d)
          sum += (double)load(x, row * width + d) * load(weights[expert], o * width + d);
        store(out, i * outputs + o, (float)sum);
      }
    }
  return NULL;
}
