/* q's heads taken out of a fused weight in the order (head in group, group) instead of (group, head
 * in group). */
#include "numbers.inc"

static int64_t swapped(int64_t n, int64_t rows) {
  const int64_t heads = 6, groups = 2, dim = rows / heads, head = n / dim;
  return (head % groups * (heads / groups) + head / groups) * dim + n % dim;
}

const char* lockstep_matmul(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                            const DLTensor* weight, const DLTensor* bias) {
  multiply(out, x, weight, bias, is_at(call, "attn.q") ? swapped : NULL, weight->shape[1]);
  return NULL;
}
