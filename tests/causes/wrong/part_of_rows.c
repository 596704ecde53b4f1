/* Positions of k from 9 on are one too large, as of a page table that begins at 1 after the first
 * page. */
#include "numbers.inc"

const char* lockstep_rope(const LockstepCall* call, const DLTensor* out, const DLTensor* x,
                          const DLTensor* cos, const DLTensor* sin, const DLTensor* positions) {
  const int64_t rows = x->shape[0], heads = x->shape[1], half = x->shape[2] / 2;
  const int64_t last = cos->shape[0] - 1;
  for (int64_t t = 0; t < rows; ++t) {
    int64_t position = ints(positions)[t];
    if (is_at(call, "attn.k_rope") && position >= 9 && position < last) ++position;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < half; ++j) {
        const float c = load(cos, position * half + j), s = load(sin, position * half + j);
        const int64_t i = (t * heads + h) * 2 * half + j;
        const float a = load(x, i), b = load(x, i + half);
        store(out, i, a * c - b * s);
        store(out, i + half, b * c + a * s);
      }
  }
  return NULL;
}
