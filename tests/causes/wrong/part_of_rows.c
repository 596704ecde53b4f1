/* Positions of k from 9 on are one too large, as of a page table that begins at 1 after the first
 * page. */
#include "numbers.inc"

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  const int64_t rows = x->shape[0], last = cos->shape[0] - 1;
  for (int64_t t = 0; t < rows; ++t) {
    int64_t position = ints(positions)[t];
    if (is_at(call, "attn.k_rope") && position >= 9 && position < last) ++position;
    rotate_row(out, x, cos, sin, t, position);
  }
  return NULL;
}
