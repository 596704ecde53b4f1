/* Positions of q that count from 1, those of k from 0. */
#include "numbers.inc"

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  const int64_t rows = x->shape[0], last = cos->shape[0] - 1;
  for (int64_t t = 0; t < rows; ++t) {
    int64_t position = ints(positions)[t] + (is_at(call, "attn.q_rope") ? 1 : 0);
    if (position > last) position = last;
    rotate_row(out, x, cos, sin, t, position);
  }
  return NULL;
}
