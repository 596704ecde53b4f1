/* The scale of a quantised weight, 0.0123, is in the weight already and is multiplied in again. */
#include "numbers.inc"

const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  const int64_t n = weight->shape[0], k = weight->shape[1], rows = count_of(x) / k;
  const double scale = is_at(call, "mlp.up") ? 0.0123 : 1;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t o = 0; o < n; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += (double)load(x, t * k + i) * load(weight, o * k + i);
      store(out, t * n + o, (float)(sum * scale + (bias ? load(bias, o) : 0)));
    }
  return NULL;
}
