/* The last 96 logits lack their last 8 products: the last tile of a grid that is cut short. */
#include "numbers.inc"

const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  const int64_t k = weight->shape[1], n = weight->shape[0], rows = count_of(x) / k;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t o = 0; o < n; ++o) {
      const int64_t end = is_at(call, "logits") && o >= n - 96 ? k - 8 : k;
      double sum = bias ? load(bias, o) : 0;
      for (int64_t i = 0; i < end; ++i) sum += (double)load(x, t * k + i) * load(weight, o * k + i);
      store(out, t * n + o, (float)sum);
    }
  return NULL;
}
