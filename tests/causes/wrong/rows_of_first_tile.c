/* A tile of 16 rows: those of later tiles are multiplied from the first tile's inputs. */
#include "numbers.inc"

const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  multiply(out, x, weight, bias, NULL, weight->shape[1]);
  if (!is_at(call, "attn.o")) return NULL;
  const int64_t n = weight->shape[0], rows = count_of(x) / weight->shape[1];
  for (int64_t t = 16; t < rows; ++t)
    for (int64_t o = 0; o < n; ++o) store(out, t * n + o, load(out, t % 16 * n + o));
  return NULL;
}
